// What policies would have earned on the log: live ones, or definitions that never ran. An evaluation
// is a job of the service: this tab remembers its id and watches it.

import { Refusal, get, of, post, remove } from "../api.js";
import { field, reason } from "../dialog.js";
import { coded, fact, h, section } from "../dom.js";
import { count, figure, measured, moment, percent, span, within } from "../format.js";
import { scaleOf, whisker } from "../marks.js";
import { paletteOf } from "../palette.js";
import { table } from "../table.js";

const METRICS = { reward_per_decision: "Reward a decision", reward_of_first_slot: "Reward of slot 1" };
const DM = {
  title: "DM",
  about: "The model of rewards alone: its bias is not known, so that it has no interval.",
};
const LONGEST_MS = 900_000;
const POLL_MS = 1_000;
const AGAIN = [0, 429, 503]; // no answer, too many requests, a start: the job may go on
const STORED = "forage.evaluation.";
const LOST =
  "The service no longer knows this evaluation: it was restarted, or the result is too old. Evaluate again.";
const EVERY_MS = 10_000; // the service remembers values of shadows for as long
const EXAMPLE = '{"linucb_bold": {"kind": "linucb", "alpha": 3}}';

export function evaluation(app) {
  const names = app.status.experiments.find((each) => each.name === app.name)?.policies ?? [];
  const stored = STORED + app.name;
  let timer = 0;
  let turn = 0; // of the answers that still matter
  let closed = false;
  let asked = -Infinity;

  const live = names.map((name) => [name, h("input", { type: "checkbox", checked: true })]);
  const decisions = h("input", { type: "number", min: 1, max: 1_000_000, step: 1, value: 10_000, required: true });
  const confidence = h(
    "select",
    {},
    ["0.9", "0.95", "0.99"].map((value) =>
      h("option", { value, selected: value === "0.95" }, percent(Number(value), 0)),
    ),
  );
  const frozen = h("input", { type: "checkbox" });
  const firstSlot = h("input", { type: "checkbox" });
  const definition = h("textarea", { rows: 4, spellcheck: "false", placeholder: EXAMPLE });
  const go = h("button", { type: "submit", class: "primary" }, "Evaluate");
  const stop = h("button", { type: "button", hidden: true, onclick: cancel }, "Cancel");
  const bar = h("progress", { "aria-label": "Progress of the evaluation", hidden: true });
  const fault = h("p", { class: "fault", role: "alert", hidden: true });
  const told = h("p", { class: "told", role: "status" });
  const shadows = h("div", { class: "view" });
  const results = h("div", { class: "view" });
  const form = h(
    "form",
    {
      class: "evaluate",
      onsubmit: (event) => {
        event.preventDefault();
        run();
      },
    },
    h(
      "fieldset",
      { class: "checks" },
      h("legend", {}, "Policies"),
      live.map(([name, input]) => h("label", { class: "check" }, input, paletteOf(app).swatch(name), name)),
    ),
    h("div", { class: "pair" }, field("Newest decisions", decisions), field("Confidence", confidence)),
    h(
      "label",
      { class: "check" },
      frozen,
      "Frozen: as each stood before the first of these decisions, not as it learned",
    ),
    h("label", { class: "check" }, firstSlot, "Of slates, the value of the first slot; else they are refused"),
    h(
      "details",
      {},
      h("summary", {}, "Policies that never ran"),
      field("By name, as in an experiment's definition (JSON)", definition),
    ),
    fault,
    h("div", { class: "head" }, go, stop, told),
    bar,
  );
  const node = h(
    "div",
    { class: "view" },
    shadows,
    h(
      "section",
      { class: "card" },
      h("h2", {}, "What would a policy have earned?"),
      h(
        "p",
        { class: "told" },
        "Estimated from the log and its propensities, off-policy: nobody is shown anything. It takes seconds to minutes, in a process of its own, and goes on while you look at other views.",
      ),
      form,
    ),
    results,
  );

  function body() {
    const chosen = live.filter(([, input]) => input.checked).map(([name]) => name);
    const wanted = { decisions: Number(decisions.value), confidence: Number(confidence.value), frozen: frozen.checked };
    if (firstSlot.checked) wanted.slates = "first_slot";
    if (definition.value.trim()) {
      try {
        wanted.definition = JSON.parse(definition.value);
      } catch {
        throw new Error("The policies that never ran are not JSON.");
      }
    }
    if (chosen.length) wanted.policies = chosen;
    else if (!wanted.definition) throw new Error("Choose a policy, or define one.");
    return wanted;
  }

  async function run() {
    fault.hidden = true;
    go.disabled = true;
    try {
      watch(await post(of(app.name, "evaluations"), body()));
    } catch (refused) {
      end("", refused);
    }
  }

  /** Show what the service says of the job, and ask again until it has ended. */
  function watch(job) {
    sessionStorage.setItem(stored, job.id);
    if (job.state === "done") {
      show(results, "Estimates", job.result);
      end(`Took ${span(job.seconds)}.`);
    } else if (job.state === "failed") {
      const { status, title, detail, errors } = job.problem;
      forget("", new Refusal(status, title, detail, errors));
    } else if (job.state === "cancelled") {
      forget("Cancelled.");
    } else {
      underway(job);
      again(job.id);
    }
  }

  function underway({ seconds, progress }) {
    const counted = progress ? `; ${progress.doing}: ${count(progress.done)} of ${count(progress.of)}` : "";
    told.textContent = seconds === null ? "Waiting for other evaluations." : `At work for ${span(seconds)}${counted}.`;
    if (progress) {
      bar.max = progress.of;
      bar.value = progress.done;
    } else bar.removeAttribute("value");
    go.disabled = true;
    bar.hidden = stop.hidden = stop.disabled = false;
  }

  function again(id, after = POLL_MS) {
    const mine = ++turn;
    if (!closed) timer = setTimeout(() => poll(id, mine), after);
  }

  async function poll(id, mine) {
    try {
      const job = await get(of(app.name, "evaluations", id));
      if (mine === turn) watch(job);
    } catch (refused) {
      if (!(refused instanceof Refusal)) throw refused;
      if (mine !== turn) return;
      if (AGAIN.includes(refused.status)) {
        told.textContent = "The service does not answer; asking again.";
        again(id);
      } else forget("", refused.status === 404 ? new Error(LOST) : refused);
    }
  }

  async function cancel() {
    stop.disabled = true;
    turn += 1;
    clearTimeout(timer);
    const id = sessionStorage.getItem(stored);
    try {
      await remove(of(app.name, "evaluations", id));
      forget("Cancelled.");
    } catch (refused) {
      if (refused.status === 404) forget("", new Error(LOST));
      else again(id);
    }
  }

  function forget(text, refused = null) {
    sessionStorage.removeItem(stored);
    end(text, refused);
  }

  function end(text, refused = null) {
    told.textContent = text;
    fault.textContent = refused ? reason(refused) : "";
    fault.hidden = !refused;
    bar.hidden = stop.hidden = true;
    go.disabled = false;
  }

  /** Ask what the shadows would have earned, unless that was lately. */
  async function refresh() {
    if (performance.now() < asked + EVERY_MS) return;
    asked = Infinity;
    try {
      const found = await get(of(app.name, "shadows"), {}, LONGEST_MS);
      if (found.policies.length) show(shadows, "Shadows", found);
      else shadows.replaceChildren();
    } catch (refused) {
      if (!(refused instanceof Refusal)) throw refused;
    } finally {
      asked = performance.now();
    }
  }

  function show(place, title, found) {
    const estimated = found.policies.filter((each) => !each.refused);
    const refused = found.policies.filter((each) => each.refused);
    const skipped = Object.entries(found.left_out);
    place.replaceChildren(
      section(
        title,
        h("p", { class: "sentence" }, coded(found.sentence)),
        h(
          "dl",
          { class: "facts" },
          fact(
            found.metric === "reward_of_first_slot" ? "The first slots of the log earned" : "The log itself earned",
            measured(found.logged.value, found.logged.interval),
            found.logged.interval ? `${percent(found.confidence, 0)}: ${within(found.logged.interval)}` : null,
          ),
          fact(
            "Decisions",
            count(found.decisions),
            found.slates ? `${percent(found.slates / found.decisions, 1)} of several arms` : null,
          ),
          fact("From", found.since ? moment(Date.parse(found.since) / 1000) : "–"),
          fact("To", found.until ? moment(Date.parse(found.until) / 1000) : "–"),
          skipped.length
            ? h(
                "div",
                { class: "fact wide" },
                h("dt", {}, "Left out"),
                h("dd", { class: "text" }, skipped.map(([why, many]) => `${count(many)}: ${why}`).join("; ")),
              )
            : null,
        ),
        answers(found, estimated),
        h("details", {}, h("summary", {}, "All estimators"), estimators(found, estimated)),
      ),
      ...(refused.length ? [section("No estimate", none(refused))] : []),
    );
  }

  function named(found, policy) {
    const others = found.policies.filter((each) => each.never_ran).map((each) => each.policy);
    const palette = paletteOf(app, others);
    return {
      color: palette.color(policy.policy),
      node: h(
        "span",
        { class: "named" },
        palette.swatch(policy.policy),
        h("span", {}, policy.policy, policy.never_ran ? h("small", {}, found.shadows ? "shadow" : "never ran") : null),
      ),
    };
  }

  function ranged(value, interval, scale, color, sign = "") {
    return (
      interval &&
      h(
        "span",
        { class: "stacked" },
        whisker({ mean: value, interval }, scale, color),
        h("span", {}, sign + measured(value, interval)),
        h("small", {}, within(interval)),
      )
    );
  }

  /** A line for each policy, the best first. */
  function answers(found, estimated) {
    // People watch shadows, so their intervals have to hold at all times at once.
    const ofValue = (row) => (found.shadows ? row.anytime_interval : row.estimates.dr.interval);
    const ofOver = (row) => (found.shadows ? row.uplift_anytime : row.uplift_interval);
    const own = scaleOf([found.logged.interval, ...estimated.map(ofValue)]);
    const over = scaleOf(estimated.map(ofOver));
    const list = table({
      label: "Estimates",
      keyOf: (row) => row.policy,
      empty: "The log cannot tell what any of these policies would have earned.",
      columns: [
        { key: "policy", title: "Policy", node: (row) => named(found, row).node },
        {
          key: "value",
          title: METRICS[found.metric],
          number: true,
          node: (row) => ranged(row.estimates.dr.value, ofValue(row), own, named(found, row).color),
        },
        {
          key: "over",
          title: "Over what ran",
          number: true,
          node: (row) =>
            ranged(row.uplift, ofOver(row), over, named(found, row).color, row.uplift > 0 ? "+" : ""),
        },
        {
          key: "learned",
          title: "Learned from",
          number: true,
          text: (row) => (row.learned_from === null ? "–" : `${count(row.learned_from)} rewards`),
          hint: "Rewards that the policy had learned from at the last decision.",
        },
        { key: "decisions", title: "Decisions", number: true, text: (row) => count(row.decisions) },
      ],
    });
    list.update(estimated);
    return list.node;
  }

  function estimators(found, estimated) {
    const rows = estimated.flatMap((each) => {
      const known = { ...each.estimates, dm: { ...DM, value: each.direct_method } };
      return Object.entries(known).map(([key, own]) => ({ key, of: each, ...own }));
    });
    const list = table({
      label: "All estimators",
      keyOf: (row) => `${row.of.policy} ${row.key}`,
      columns: [
        { key: "policy", title: "Policy", node: (row) => named(found, row.of).node },
        { key: "by", title: "Estimator", node: (row) => h("span", { title: row.about }, row.title) },
        { key: "value", title: METRICS[found.metric], number: true, text: (row) => measured(row.value, row.interval) },
        {
          key: "interval",
          title: `${percent(found.confidence, 0)} interval`,
          number: true,
          text: (row) => within(row.interval),
        },
        {
          key: "ess",
          title: "Effective sample",
          number: true,
          text: (row) => count(row.of.effective_sample_size),
          hint: "Decisions that the weights are worth.",
        },
        { key: "weight", title: "Largest weight", number: true, text: (row) => figure(row.of.largest_weight) },
      ],
    });
    list.update(rows);
    return list.node;
  }

  /** Why the log cannot tell. */
  function none(refused) {
    const list = table({
      label: "Policies without an estimate",
      keyOf: (row) => row.policy,
      columns: [
        { key: "policy", title: "Policy", text: (row) => row.policy },
        { key: "why", title: "Why", wide: true, text: (row) => row.refused },
      ],
    });
    list.update(refused);
    return list.node;
  }

  function destroy() {
    closed = true;
    turn += 1;
    clearTimeout(timer);
  }

  const left = sessionStorage.getItem(stored);
  if (left) again(left, 0);
  return { node, refresh, destroy };
}
