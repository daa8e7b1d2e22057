// How the policies of one experiment do: against each other, now and over time.

import { get, of } from "../api.js";
import { change, pause, reset } from "../actions.js";
import { chart, choice, legend } from "../chart.js";
import { fact, h, say, section } from "../dom.js";
import { contextOf, curl } from "../examples.js";
import { chance, count, figure, measured, percent, reward, within } from "../format.js";
import { bar, scaleOf, whisker } from "../marks.js";
import { paletteOf } from "../palette.js";
import { Samples, align, means, shares } from "../series.js";
import { table } from "../table.js";
import { changes } from "./changes.js";
import { prices } from "./prices.js";
import { rollouts } from "./rollouts.js";
import { verdict } from "./verdict.js";

// seconds: of the axis; step: of the samples; recent: over how much a recent mean goes.
const RANGES = {
  "15 min": { seconds: 900, step: 5, recent: 60 },
  "1 h": { seconds: 3_600, step: 5, recent: 300 },
  "1 d": { seconds: 86_400, step: 300, recent: 3_600 },
  "1 w": { seconds: 604_800, step: 300, recent: 21_600 },
};
const LEAST_S = 60; // a young service's first minute fills the axis
const KEPT = { 5: 3_600, 300: 604_800 };

export function overview(app) {
  const hidden = new Set();
  let range = "15 min";
  let mode = "far";
  let status = null;
  let names = "";
  let charts = null;
  let samples = new Map();

  const facts = h("dl", { class: "facts" });
  const plots = h("div", { class: "view" });
  const start = h("div");
  const policies = table({
    label: "Policies",
    keyOf: (row) => row.name,
    columns: [
      { key: "name", title: "Policy", sign: (row) => `${row.kind} ${row.share}`, node: named },
      {
        key: "traffic",
        title: "Traffic",
        number: true,
        sign: (row) => `${row.traffic} ${row.share}`,
        node: (row) =>
          h(
            "span",
            { class: "stacked" },
            h("span", {}, row.share === 0 ? "paused" : percent(row.traffic)),
            bar(row.traffic, paletteOf(app).color(row.name)),
          ),
        hint: "Of the traffic that names no policy.",
      },
      { key: "decisions", title: "Decisions", number: true, text: (row) => count(row.decisions) },
      {
        key: "settled",
        title: "Rewards",
        number: true,
        text: (row) => count(row.settled),
        hint: "Settled: a reward came, or the default holds.",
      },
      {
        key: "mean",
        title: "Mean reward",
        number: true,
        text: (row) => measured(row.mean_reward, row.mean_reward_interval),
      },
      {
        key: "interval",
        title: "95 % interval",
        number: true,
        sign: (row) => `${row.mean_reward_interval} ${scaleKey()}`,
        node: (row) =>
          row.mean_reward_interval &&
          h(
            "span",
            { class: "stacked" },
            whisker({ mean: row.mean_reward, interval: row.mean_reward_interval }, scale(), paletteOf(app).color(row.name)),
            h("small", {}, within(row.mean_reward_interval)),
          ),
      },
      {
        key: "explores",
        title: "Explores",
        number: true,
        sign: (row) => `${row.entropy_mean} ${row.propensity_mean}`,
        node: (row) =>
          row.entropy_mean === null
            ? h("span", { class: "muted" }, "not known yet")
            : h(
                "span",
                { class: "stacked" },
                h("span", {}, `${figure(Math.exp(row.entropy_mean))} arms`),
                h("small", {}, `shown one: ${chance(row.propensity_mean)}`),
              ),
        hint: "How many arms a choice is among, in effect (e to its entropy), and the chance of the shown one: running means over decisions of this process.",
      },
      {
        key: "version",
        title: "Version",
        text: (row) =>
          `${row.version}${row.staged === null ? "" : ` (${row.staged} staged)`}${row.training_due ? ", training due" : ""}`,
      },
      { key: "actions", title: "Change", wide: true, sign: (row) => `${row.share}`, node: buttons },
    ],
  });
  const pays = verdict(app);
  const costs = prices(app);
  const changed = changes(app);
  const staged = rollouts(app);
  const freedom = h("p", { class: "told" });
  const node = h("div", { class: "view" }, staged.node, pays.node, facts, start, plots, section("Policies", policies.node), changed.node, costs.node);

  const scale = () => scaleOf(status.figures.map((each) => each.mean_reward_interval));
  const scaleKey = () => `${scale().low} ${scale().high}`;

  function named(row) {
    return h(
      "span",
      { class: "named" },
      paletteOf(app).swatch(row.name),
      h("span", {}, row.name, h("small", {}, row.kind)),
    );
  }

  function buttons(row) {
    const button = (text, act) =>
      h(
        "button",
        { type: "button", class: "small", "aria-label": `${text} ${row.name}`, onclick: () => act(app, status, row) },
        text,
      );
    return h(
      "span",
      { class: "actions" },
      button("Share", change),
      button(row.share === 0 ? "Resume" : "Pause", row.share === 0 ? change : pause),
      button("Reset", reset),
    );
  }

  function build() {
    charts?.all.forEach((each) => each.destroy());
    const own = status.figures.map((each) => each.name);
    const palette = paletteOf(app);
    const { low, high, aggregation } = status.reward;
    const bounds = aggregation === "sum" ? {} : { low, high };
    const make = (label, write, more) => chart({ label, names: own, palette, write, hidden, changes: changed.notable, ...more });
    const mean = make("Mean reward of each policy over time, with 95 percent intervals", (value) => value.toFixed(3), {
      banded: true,
      height: 300,
      bounds,
    });
    const share = make("Share of the decisions over time", (value) => percent(value, 0), {
      bounds: { low: 0, high: 1 },
      least: 0.04,
    });
    const explores = make("Arms that a choice is among, in effect, over time", figure, { bounds: { low: 1 } });
    charts = { mean, share, explores, all: [mean, share, explores] };
    pays.build(own, palette, hidden, changed.notable);
    const head = h(
      "div",
      { class: "head" },
      h("h2", {}, "Mean reward"),
      choice(
        "Of which rewards",
        [
          ["far", "All so far"],
          ["recent", "Recent"],
        ],
        mode,
        (value) => {
          mode = value;
          draw();
        },
      ),
      choice(
        "Time shown",
        Object.keys(RANGES).map((each) => [each, each]),
        range,
        pick,
      ),
    );
    plots.replaceChildren(
      h(
        "section",
        { class: "card" },
        head,
        legend(own, palette, hidden, {
          changed: redraw,
          choose: (name) => [pays, mean].forEach((each) => each.choose(name)),
        }),
        h("p", { class: "told" }, "Point at a line or a name for its 95 % interval."),
        mean.node,
      ),
      h(
        "div",
        { class: "two" },
        section("Share of decisions", share.node),
        section("How much it explores", freedom, explores.node),
      ),
    );
  }

  async function pick(value) {
    if (RANGES[value].step !== RANGES[range].step) samples = new Map();
    range = value;
    app.ask();
    draw();
  }

  function redraw() {
    pays.redraw();
    charts?.all.forEach((each) => each.redraw());
  }

  function draw() {
    if (!charts) return;
    const { seconds, recent } = RANGES[range];
    const now = status.now;
    const of = status.figures
      .map((each) => samples.get(each.name)?.columns ?? {})
      .map((each) => (each.at ? each : EMPTY));
    const rewards = of.map((each) => means(each, status.reward, mode === "recent" ? recent : 0));
    const first = Math.min(now - LEAST_S, ...of.map((each) => each.at[0] ?? now));
    const put = (plot, lines) => plot.update(align(lines), Math.max(now - seconds, first), now);
    put(
      charts.mean,
      rewards.map((each) => ({ at: each.at, columns: [each.mean, each.low, each.high] })),
    );
    put(
      charts.share,
      shares(of, recent).map((each) => ({ at: each.at, columns: [each.values] })),
    );
    put(
      charts.explores,
      of.map((each) => ({ at: each.at, columns: [each.entropy.map((nats) => (nats === null ? null : Math.exp(nats)))] })),
    );
  }

  function tell() {
    const { figures } = status;
    const sum = (key) => figures.reduce((all, each) => all + (each[key] ?? 0), 0);
    const due = status.training_due;
    facts.replaceChildren(
      fact("Mean reward", reward(status.mean_reward), "Of all settled rewards of all policies."),
      fact("Decisions", count(sum("decisions"))),
      fact("Rewards", count(status.settled), "Settled: a reward came, or the default holds."),
      fact("Decisions per second", figure(pace()), "By this process, over the last samples."),
      fact("Training due", due.length ? due.join(", ") : "no"),
    );
  }

  function tellFreedom() {
    const busy = status.figures.filter((each) => each.share && each.entropy_mean !== null);
    const first = busy.sort((a, b) => b.traffic - a.traffic)[0];
    if (!first) return;
    const arms = figure(Math.exp(first.entropy_mean));
    say(freedom, `A choice of ${first.name} is among ${arms} arms in effect; 1 means that it is sure.`);
  }

  function pace() {
    let sum = 0;
    for (const { columns } of samples.values()) {
      const last = (columns.at?.length ?? 0) - 1;
      const back = Math.max(last - 6, 0);
      if (last > back)
        sum += (columns.decisions[last] - columns.decisions[back]) / (columns.at[last] - columns.at[back]);
    }
    return sum;
  }

  async function guide() {
    const none = status.figures.every((each) => !each.decisions && !each.settled);
    plots.hidden = none;
    start.hidden = !none;
    if (!none) {
      start.replaceChildren();
    } else if (!start.firstChild) {
      const { definition } = await get(of(app.name));
      start.replaceChildren(
        h(
          "section",
          { class: "card empty" },
          h("h1", {}, "No decision yet"),
          h("p", {}, "Ask for one, say what came of it, and watch this page."),
          curl("1. Which arm to show?", "POST", "select", {
            experiment: app.name,
            context: contextOf(definition.features),
          }),
          curl("2. What came of it: with the decision_id of the answer", "POST", "reward", {
            decision_id: "…",
            reward: 1,
          }),
        ),
      );
    }
  }

  return {
    node,
    async refresh(current) {
      const { step } = RANGES[range];
      const after = Math.max(...[...samples.values()].map((each) => each.last), 0);
      const [found, history] = await Promise.all([
        get(of(app.name, "status")),
        get(of(app.name, "history"), { step, after }),
      ]);
      if (!current()) return;
      status = found;
      for (const each of history.policies) {
        if (!samples.has(each.name)) samples.set(each.name, new Samples());
        if (each.at.length && step === RANGES[range].step) samples.get(each.name).add(each, status.now - KEPT[step]);
      }
      const own = JSON.stringify([status.policies, status.control]);
      if (own !== names) {
        names = own;
        policies.forget();
        build();
      }
      tell();
      tellFreedom();
      pays.ask();
      costs.ask();
      changed.ask(status.last_change);
      staged.ask(status);
      policies.update(status.figures);
      await guide();
      draw();
    },
    redraw,
    destroy() {
      pays.destroy();
      costs.destroy();
      changed.destroy();
      staged.destroy();
      charts?.all.forEach((each) => each.destroy());
    },
  };
}

const EMPTY = { at: [], count: [], total: [], squares: [], decisions: [], entropy: [], propensity: [] };
