// Does it pay? The verdict in a sentence, what each policy earns over the control, and since when.

import { chart } from "../chart.js";
import { coded, h, say, swatch } from "../dom.js";
import { NONE, count, measured, moment, signed, time, within } from "../format.js";
import { looks } from "../looks.js";
import { scaleOf, whisker } from "../marks.js";
import { align } from "../series.js";
import { table } from "../table.js";

export function verdict(app) {
  let names = [];
  let palette = null;
  let found = null;
  let plot = null;

  const sentence = h("p", { class: "sentence", "aria-live": "polite" }, "Reading the log.");
  const place = h("div");
  const date = h("p", { class: "told" });
  const left = h("p", { class: "told" });
  const uplifts = table({
    label: "Uplift over the control",
    keyOf: (row) => row.policy ?? "",
    columns: [
      { key: "policy", title: "Policy", sign: (row) => `${row.policy}`, node: named },
      { key: "difference", title: "Over the control", number: true, sign: (row) => JSON.stringify(row), node: earned },
      {
        key: "ratio",
        title: "Ratio",
        number: true,
        sign: (row) => JSON.stringify(row.ratio_interval),
        node: (row) =>
          row.ratio_interval && stacked(row.ratio.toFixed(2), within(row.ratio_interval, 2)),
        hint: "What it earns as a share of what the control earns, and its interval at any time.",
      },
      { key: "decisions", title: "Decisions", number: true, text: (row) => count(row.decisions) },
      { key: "safe", title: "Safe to say since", number: true, sign: (row) => row.safe_since ?? "", node: safe },
    ],
  });
  const node = h(
    "section",
    { class: "card verdict", data: { state: "refused" } },
    h("h2", {}, "Does it pay?"),
    sentence,
    date,
    place,
    uplifts.node,
    left,
  );

  const colour = (row) => (row.policy ? palette.color(row.policy) : "var(--ink)");
  const stacked = (text, small) => h("span", { class: "stacked" }, h("span", {}, text), h("small", {}, small));

  // As the sentence: that which earns most for sure.
  const best = () =>
    found.uplifts.filter((each) => each.policy).reduce((a, b) => (a && a.interval[0] >= b.interval[0] ? a : b), null);

  function named(row) {
    return h("span", { class: "named" }, swatch(colour(row)), h("span", {}, row.policy ?? "everything else"));
  }

  function earned(row) {
    const scale = scaleOf(found.uplifts.map((each) => each.interval));
    return h(
      "span",
      { class: "stacked" },
      whisker({ mean: row.difference, interval: row.interval }, scale, colour(row)),
      h("span", {}, (row.difference > 0 ? "+" : "") + measured(row.difference, row.interval)),
      h("small", {}, `${within(row.interval)} at any time`),
      h("small", {}, `${within(row.fixed_interval)} at one look`),
    );
  }

  function safe(row) {
    if (row.safe_since === null) return NONE;
    return stacked(moment(Date.parse(row.safe_since) / 1000), `${count(row.safe_decisions)} decisions`);
  }

  const log = looks(app, "verdict", show, (message) => sentence.replaceChildren(message));

  function show(answer) {
    found = answer;
    node.dataset.state = found.state;
    if (sentence.dataset.text !== found.sentence) sentence.replaceChildren(...coded(found.sentence));
    sentence.dataset.text = found.sentence;
    uplifts.node.hidden = place.hidden = !found.uplifts.length;
    uplifts.update(found.uplifts);
    const others = Object.entries(found.left_out);
    const all = others.reduce((sum, [, many]) => sum + many, found.decisions);
    const next = found.next_at === null ? "" : `; next at ${time(Date.parse(found.next_at) / 1000)}`;
    const made = moment(Date.parse(found.as_of) / 1000);
    say(date, `As of ${made}: ${count(found.decisions)} of ${count(all)} decisions${next}.`);
    left.replaceChildren(others.map(([why, many]) => `${count(many)} decisions do not count: ${why}.`).join(" "));
    draw();
  }

  function draw() {
    if (!plot || !found?.uplifts.length) return;
    const lines = names.map((name) => {
      const looks = found.uplifts.find((each) => each.policy === name)?.history ?? [];
      return {
        at: looks.map((each) => each.at),
        columns: ["value", "low", "high"].map((key) => looks.map((each) => each[key])),
      };
    });
    const columns = align(lines);
    plot.update(columns, columns[0][0], columns[0].at(-1));
  }

  return {
    node,
    ask: log.ask,
    /** policies: all names. colors: their palette. changes: see chart. */
    build(policies, colors, hidden, changes) {
      names = policies;
      palette = colors;
      plot?.destroy();
      const label = "Uplift of each policy over the control over time, with intervals that hold at any time";
      plot = chart({
        label,
        names,
        palette,
        write: (value) => signed(value, 3),
        banded: true,
        lead: () => best()?.policy,
        height: 220,
        zero: true,
        hidden,
        changes,
      });
      place.replaceChildren(h("p", { class: "told" }, "What a decision earns over one of the control. The band is the interval that holds at any time: of the best policy, or of the one that you point at."), plot.node);
      uplifts.forget();
      if (found) show(found);
    },
    redraw: () => plot?.redraw(),
    choose: (name) => plot?.choose(name),
    destroy() {
      log.stop();
      plot?.destroy();
    },
  };
}
