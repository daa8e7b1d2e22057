// Changes to what is served: each is confirmed, and refused where somebody else changed the
// experiment meanwhile (If-Match names the revision that is on the screen).

import { of, post, put, remove } from "./api.js";
import { field, form, toast } from "./dialog.js";
import { h } from "./dom.js";
import { chosen, percent } from "./format.js";
import { valueOf } from "./examples.js";

const matching = (status) => ({ "If-Match": `"${status.revision}"` });

async function changed(app, outcome, text) {
  if (outcome === null) return;
  toast(text);
  app.ask();
}

/** Attributes by type, as the features whose inputs they have; an arm may lack any. */
const ATTRIBUTES = {
  number: { type: "numeric" },
  text: { type: "text" },
  boolean: { type: "choice" },
};

/** Give a policy another share of the traffic. */
export async function change(app, status, row) {
  const others = status.figures.filter((each) => each.name !== row.name).reduce((sum, each) => sum + each.share, 0);
  const said = h("small", { "aria-live": "polite" });
  const input = h("input", {
    name: "share",
    type: "number",
    min: 0,
    step: "any",
    value: row.share || 1,
    required: true,
    autofocus: true,
    oninput: tell,
  });
  function tell() {
    const share = Number(input.value);
    const all = share + others;
    said.textContent =
      all > 0
        ? `${percent(share / all)} of the traffic; now ${percent(row.traffic)}.`
        : "At least one policy needs a share above 0.";
  }
  tell();
  const outcome = await form({
    title: `Share of ${row.name}`,
    text: "A weight beside those of the other policies. A visitor who was told apart by a unit may come to another policy. What the policy learned stays.",
    fields: [field("Share", input), said],
    action: "Change the share",
    submit: (given) =>
      put(of(status.name, "policies", row.name, "share"), { share: Number(given.get("share")) }, matching(status)),
  });
  await changed(app, outcome, `${row.name} has the share ${outcome?.share}.`);
}

export async function pause(app, status, row) {
  const outcome = await form({
    title: `Pause ${row.name}?`,
    text: "Its share becomes 0: it decides no more, except where a request names it. Rewards of what it decided still come in, and it keeps what it learned.",
    action: "Pause it",
    submit: () => put(of(status.name, "policies", row.name, "share"), { share: 0 }, matching(status)),
  });
  await changed(app, outcome, `${row.name} is paused.`);
}

const STEPS = {
  advance: {
    title: "Advance",
    text: ({ stages, stage }) =>
      stage + 2 < stages.length
        ? `It takes ${chosen(stages[stage + 1])} of the traffic of both, whatever the figures say.`
        : "It takes all traffic of both, whatever the figures say, and the rollout is finished.",
    action: "Advance it",
    done: "advances",
  },
  hold: {
    title: "Hold",
    text: ({ share }) =>
      `It stays at ${chosen(share)} until somebody lets it go on. A loss beyond the margin still takes it back.`,
    action: "Hold it",
    done: "is held",
  },
  resume: {
    title: "Resume",
    text: ({ share, undecided_after_days: days }) =>
      `It goes on at ${chosen(share)}, and has ${days} days for an outcome.`,
    action: "Resume it",
    done: "goes on",
  },
  back: {
    title: "Roll back",
    text: ({ baseline }) => `${baseline} has its traffic back at once, and the rollout is over.`,
    action: "Roll it back",
    done: "is rolled back",
    danger: true,
  },
};

/** Take a step of a rollout: a key of STEPS. Returns the rollout after it, or null. */
export async function step(app, status, rollout, kind) {
  const { title, text, action, done, danger } = STEPS[kind];
  const why = h("input", { name: "reason", maxlength: 500, autocomplete: "off", autofocus: true });
  const outcome = await form({
    title: `${title} ${rollout.challenger}?`,
    text: text(rollout),
    fields: [field("Why, for people (optional)", why)],
    action,
    danger,
    submit: (given) =>
      post(of(status.name, "rollouts", rollout.policy, kind), { reason: given.get("reason") }, matching(status)),
  });
  await changed(app, outcome, `${rollout.challenger} ${done}.`);
  return outcome;
}

export async function reset(app, status, row) {
  const typed = h("input", { name: "typed", required: true, autocomplete: "off", autofocus: true });
  const outcome = await form({
    title: `Reset ${row.name}?`,
    text: "It forgets all it learned: its head starts from the prior, its net untrained. This cannot be undone.",
    fields: [field(`Write ${row.name} to confirm`, typed)],
    action: "Reset it",
    danger: true,
    submit: (given) => {
      if (given.get("typed") !== row.name) throw new Error(`Write ${row.name} to confirm.`);
      return post(of(status.name, "policies", row.name, "reset"), undefined, matching(status));
    },
  });
  await changed(app, outcome, `${row.name} starts anew.`);
}

export async function retire(app, arm) {
  const outcome = await form({
    title: "Retire this arm?",
    text: `${arm} is chosen no more. What was shown of it can still be rewarded.`,
    action: "Retire it",
    danger: true,
    submit: async () => {
      await remove(of(app.name, "arms", arm));
      return true;
    },
  });
  await changed(app, outcome, `${arm} is retired.`);
}

/** Add an arm. features, attributes: of an arm, as the definition declares them. */
export async function add(app, { features, attributes }) {
  const id = h("input", { name: "id", required: true, maxlength: 256, autocomplete: "off", autofocus: true });
  const inputsOf = (declared) => Object.entries(declared).map(([name, feature]) => [name, feature, inputOf(feature)]);
  const seen = inputsOf(features);
  const ruled = inputsOf(
    Object.fromEntries(Object.entries(attributes).map(([name, type]) => [name, ATTRIBUTES[type]])),
  );
  const given = (inputs) =>
    Object.fromEntries(
      inputs
        .map(([name, feature, input]) => [name, read(name, feature, input)])
        .filter(([, value]) => value !== undefined),
    );
  const outcome = await form({
    title: "Add an arm",
    text: `It can be chosen at once. An arm that is there already gets these features${ruled.length ? " and attributes" : ""}.`,
    fields: [
      field("Id", id),
      [...seen, ...ruled].map(([name, feature, input]) => field(name, input, hintOf(feature))),
    ],
    action: "Add it",
    submit: () => put(of(app.name, "arms", id.value), { features: given(seen), attributes: given(ruled) }),
  });
  await changed(app, outcome, `${outcome?.id} can be chosen.`);
}

function inputOf(feature) {
  if (feature.type === "categorical" && feature.unknown === "reject" && feature.values.length <= 200)
    return h(
      "select",
      {},
      feature.default === null ? null : h("option", { value: "" }, `${feature.default} (default)`),
      feature.values.map((value) => h("option", { value }, value)),
    );
  if (feature.type === "choice")
    return h("select", {}, ["", "true", "false"].map((value) => h("option", { value }, value)));
  if (feature.type === "boolean") return h("input", { type: "checkbox", checked: feature.default === true });
  if (feature.type === "numeric")
    return h("input", {
      type: "number",
      step: "any",
      required: feature.default === null,
      placeholder: feature.default,
    });
  if (feature.type === "vector")
    return h("input", {
      required: true,
      value: feature.size <= 8 ? JSON.stringify(valueOf(feature)) : null,
      placeholder: `[${feature.size} numbers]`,
    });
  return h("input", { required: feature.default === null, placeholder: feature.default, maxlength: 256 });
}

function hintOf(feature) {
  if (feature.type === "vector") return `${feature.size} numbers, as JSON: [0.1, 0.2]`;
  if (feature.type === "hashed") return "Any text.";
  return "";
}

/** undefined: left out, the default holds. */
function read(name, feature, input) {
  if (feature.type === "boolean") return input.checked;
  if (input.value === "") return undefined;
  if (feature.type === "choice") return input.value === "true";
  if (feature.type === "numeric") return Number(input.value);
  if (feature.type !== "vector") return input.value;
  try {
    return JSON.parse(input.value);
  } catch {
    throw new Error(`${name}: write a list of numbers, such as [0.1, 0.2].`);
  }
}
