// How far is a rollout? Its stages as steps, the challenger's interval against the margin, how long
// it takes, and the steps that people may take.

import { step } from "../actions.js";
import { fact, h, say } from "../dom.js";
import { NONE, chosen, count, figure, moment, signed, span } from "../format.js";
import { looks } from "../looks.js";
import { scaleOf } from "../marks.js";
import { paletteOf } from "../palette.js";

const STATES = {
  running: ["good", "Running"],
  held: ["warn", "Held"],
  undecided: ["warn", "Undecided"],
  rolled_back: ["bad", "Rolled back"],
  finished: ["good", "Finished"],
};
const ENDED = ["rolled_back", "finished"];
const GUARDRAILS = {
  fallbacks: "Fallbacks",
  errors: "Errors",
  latency: "Slow decisions",
  entropy: "Entropy",
  sample_ratio: "Sample ratio",
  segments: "Segment",
};
const KINDS = { ok: "good", breached: "bad" };
const TOLD_S = 7 * 86_400; // an outcome is shown for a week

export function rollouts(app) {
  const cards = new Map();
  let status = null;

  const place = h("div");
  const node = h("section", { class: "card", hidden: true }, h("h2", {}, "Rollouts"), place);
  const log = looks(app, "rollouts", ({ rollouts: found }) => show(found), () => {});

  function show(found) {
    const told = found.filter((each) => !ENDED.includes(each.state) || each.last.at > status.now - TOLD_S);
    node.hidden = !told.length;
    const wanted = new Set(told.map((each) => each.policy));
    for (const policy of cards.keys()) if (!wanted.has(policy)) cards.delete(policy);
    for (const each of told) {
      if (!cards.has(each.policy)) cards.set(each.policy, card(act));
      cards.get(each.policy).show(each, paletteOf(app));
    }
    const nodes = told.map((each) => cards.get(each.policy).node);
    if (nodes.length !== place.children.length || nodes.some((each, at) => each !== place.children[at]))
      place.replaceChildren(...nodes);
  }

  async function act(rollout, kind) {
    const after = await step(app, status, rollout, kind);
    if (after) cards.get(after.policy)?.show(after, paletteOf(app));
  }

  return {
    node,
    /** now: figures of the experiment, whose revision a step names. */
    ask(now) {
      status = now;
      log.ask();
    },
    destroy: log.stop,
  };
}

/** One rollout. Its buttons stay as long as they do the same, so that the focus stays. */
function card(act) {
  let sign = "";
  const title = h("h3");
  const pill = h("span", { class: "pill" });
  const sentence = h("p", { class: "sentence", "aria-live": "polite" });
  const stages = h("ol", { class: "stages" });
  const range = h("div");
  const facts = h("dl", { class: "facts" });
  const watched = h("ul", { class: "guardrails", "aria-label": "Guardrails" });
  const actions = h("div", { class: "actions" });
  const head = h("div", { class: "head" }, title, pill);
  const node = h("article", { class: "rollout" }, head, sentence, stages, range, facts, watched, actions);

  function show(rollout, palette) {
    const { challenger, baseline, state, stage, figures, forecast } = rollout;
    const [kind, text] = STATES[state];
    const ended = ENDED.includes(state);
    say(title, `${challenger} in place of ${baseline}`);
    pill.dataset.kind = kind;
    say(pill, text);
    say(sentence, rollout.sentence);
    stages.replaceChildren(...rollout.stages.map((share, at) => stageOf(rollout, share, at)));
    range.replaceChildren(...gauge(figures, palette.color(rollout.policy)));
    facts.hidden = !figures;
    if (figures) facts.replaceChildren(...told(figures, forecast));
    watched.hidden = !rollout.guardrails.length;
    watched.replaceChildren(...rollout.guardrails.map(guardrailOf));
    const now = `${state} ${stage}`;
    if (sign === now) {
      for (const button of actions.children) button.rollout = rollout;
      return;
    }
    sign = now;
    actions.replaceChildren(...(ended ? [] : buttons(rollout)));
  }

  function buttons(rollout) {
    const next = rollout.stages[rollout.stage + 1];
    const held = rollout.state !== "running";
    return [
      ["advance", `Advance to ${chosen(next)}`, held ? "primary" : null],
      held ? ["resume", "Resume"] : ["hold", "Hold"],
      ["back", "Roll back"],
    ].map(([kind, text, look]) => {
      const button = h("button", { type: "button", class: look, onclick: () => act(button.rollout, kind) }, text);
      button.setAttribute("aria-label", `${text}: ${rollout.challenger}`);
      button.rollout = rollout;
      return button;
    });
  }

  return { node, show };
}

function stageOf({ stage, state, stage_since: since }, share, at) {
  const present = at === stage && !ENDED.includes(state);
  const passed = state === "finished" || (state !== "rolled_back" && at < stage);
  const said = present ? `since ${moment(since)}` : passed ? "passed" : "";
  return h(
    "li",
    { "aria-current": present ? "step" : null, data: passed ? { passed: "" } : {} },
    chosen(share),
    h("small", {}, said),
  );
}

function guardrailOf({ guardrail, segment, state, metric, value, bound, decisions }) {
  const found = value === null ? "" : `${figure(value)}, bound ${figure(bound)}, of ${count(decisions)}`;
  return h(
    "li",
    { title: metric },
    segment ? `${GUARDRAILS[guardrail]} ${segment}` : GUARDRAILS[guardrail],
    state in KINDS ? h("span", { class: "pill", data: { kind: KINDS[state] } }, state) : null,
    h("small", {}, state in KINDS ? found : ` ${state}`),
  );
}

/** The interval of the difference beside the loss that is allowed, where all are known. */
function gauge(figures, color) {
  if (!figures) return [];
  const { difference, interval, margin } = figures;
  if ([difference, margin, ...interval].includes(null)) return [];
  const scale = scaleOf([interval, [-margin, 0]]);
  const room = 0.12 * (scale.high - scale.low || 1);
  const at = (value) => (100 * (value - scale.low + room)) / (scale.high - scale.low + 2 * room);
  const mark = (name, value, ...inside) => h("span", { class: name, "--x": `${at(value)}%` }, ...inside);
  const label = (value, text) => h("small", { "--x": `${at(value)}%` }, text);
  const close = at(0) - at(-margin) < 22; // the words would overlap
  return [
    h(
      "div",
      {
        class: "gauge",
        role: "img",
        "aria-label": `Interval of the difference: ${signed(interval[0])} to ${signed(interval[1])}; the margin: ${signed(-margin)}`,
      },
      label(-margin, "margin"),
      close ? null : label(0, "as the baseline"),
      mark("limit", -margin),
      mark("even", 0),
      h("span", {
        class: "range",
        "--x": `${at(interval[0])}%`,
        "--width": `${at(interval[1]) - at(interval[0])}%`,
        "--color": color,
      }),
      h("span", { class: "mean", "--x": `${at(difference)}%`, "--color": color }),
    ),
  ];
}

function told(figures, forecast) {
  const { difference, interval, margin, own, baseline, evidence, visitors } = figures;
  const known = interval.every((end) => end !== null);
  return [
    fact("Settled decisions", `${count(own)} of it, ${count(baseline)} of the baseline`),
    fact(
      "Difference",
      difference === null ? NONE : `${signed(difference)}${known ? ` (${interval.map((end) => signed(end)).join(" to ")})` : ""}`,
      "Reward of a decision less the baseline's, and its interval, which holds at any time.",
    ),
    fact("May lose", margin === null ? NONE : figure(margin), "The margin, in rewards of a decision."),
    fact("Evidence of a loss", evidence === null ? NONE : figure(evidence), "At 1 the rollout is taken back."),
    fact("Visitors in effect", count(visitors), "Of the policy with fewer; an advance needs 50."),
    fact("All stages", lasts(forecast), "Of a challenger as good as the baseline, in the median, at the traffic of now."),
  ];
}

function lasts(forecast) {
  if (!forecast) return "not known yet";
  if (forecast.cannot_end) return "longer than it may stay undecided";
  return forecast.seconds === null ? "without an end" : `about ${span(forecast.seconds)}`;
}
