// The last decisions, and why each was made.

import { get, of } from "../api.js";
import { reason } from "../dialog.js";
import { h, say } from "../dom.js";
import { chance, time } from "../format.js";
import { paletteOf } from "../palette.js";
import { table } from "../table.js";
import { explained } from "./decision.js";

const SLOW_MS = 300; // of ten thousand candidates a decision takes a second

export function decisions(app) {
  let chosen = null;
  let held = false;
  const narrow = matchMedia("(max-width: 900px)");
  const policies = app.status.experiments.find((each) => each.name === app.name)?.policies ?? [];

  const policy = h(
    "select",
    { "aria-label": "Policy", onchange: () => app.ask() },
    h("option", { value: "" }, "All policies"),
    policies.map((name) => h("option", { value: name }, name)),
  );
  const hold = h("input", {
    type: "checkbox",
    onchange: () => {
      held = hold.checked;
      app.ask();
    },
  });
  const id = h("input", {
    name: "id",
    placeholder: "Id of a decision",
    "aria-label": "Id of a decision",
    autocomplete: "off",
    spellcheck: "false",
    maxlength: 64,
  });
  const seek = h(
    "form",
    {
      class: "seek",
      onsubmit: (event) => {
        event.preventDefault();
        if (id.value.trim()) open(id.value.trim());
      },
    },
    id,
    h("button", { type: "submit" }, "Explain"),
  );
  const list = table({
    label: "Last decisions",
    keyOf: (row) => row.id,
    empty: "No decision since this process started. An older one is found by its id.",
    columns: [
      {
        key: "at",
        title: "Time",
        node: (row) =>
          h(
            "button",
            { type: "button", class: "link", "aria-label": `Why, at ${time(row.at)}`, onclick: () => open(row.id) },
            time(row.at),
          ),
      },
      {
        key: "policy",
        title: "Policy",
        node: (row) => h("span", { class: "named" }, paletteOf(app).swatch(row.policy), row.policy),
      },
      {
        key: "arm",
        title: "Arm",
        node: (row) =>
          h("span", { class: "arm" }, row.arm, row.shown > 1 ? h("small", {}, `and ${row.shown - 1} more`) : null),
      },
      { key: "propensity", title: "Propensity", number: true, text: (row) => chance(row.propensity) },
    ],
  });
  const why = h(
    "section",
    { class: "card why", "aria-live": "polite", tabindex: -1 },
    h("h2", {}, "Why"),
    h("p", { class: "nothing" }, "Choose a decision to see what it was chosen from, and what moved it."),
  );
  const told = h("p", { class: "told" });
  const node = h(
    "div",
    { class: "view split" },
    h(
      "section",
      { class: "card long" },
      h("div", { class: "head" }, h("h2", {}, "Last decisions"), policy, h("label", { class: "check" }, hold, "Hold")),
      seek,
      told,
      list.node,
    ),
    why,
  );

  async function open(wanted) {
    chosen = wanted;
    mark();
    const tell = (text) => why.replaceChildren(h("h2", {}, "Why"), h("p", { class: "nothing" }, text));
    const slow = setTimeout(tell, SLOW_MS, "Deriving it from the log.");
    try {
      const found = await get(`decisions/${encodeURIComponent(wanted)}`, { experiment: app.name });
      if (chosen !== wanted) return;
      why.replaceChildren(explained(found));
      node.dataset.open = "";
      if (narrow.matches) why.scrollIntoView({ behavior: "smooth" });
      why.focus({ preventScroll: true });
    } catch (refused) {
      why.replaceChildren(
        h("h2", {}, "Why"),
        h(
          "p",
          { class: "fault", role: "alert" },
          refused.status === 404 ? "The log holds no decision of this id." : reason(refused),
        ),
      );
    } finally {
      clearTimeout(slow);
    }
  }

  function mark() {
    for (const row of node.querySelectorAll("tr[data-chosen]")) delete row.dataset.chosen;
    const row = list.rowOf(chosen);
    if (row) row.dataset.chosen = "";
  }

  return {
    node,
    async refresh(current) {
      if (held) return;
      const { decisions: found } = await get(of(app.name, "decisions"), {
        policy: policy.value,
        limit: narrow.matches ? 12 : 50,
      });
      if (!current()) return;
      list.update(found);
      say(told, "By this process, newest first.");
      mark();
    },
  };
}
