// Dialogs: ask for a key, confirm a change, fill in a form. The browser keeps the focus inside and
// closes them on Escape.

import { h } from "./dom.js";

/**
 * Show a form in a dialog. fields: nodes; submit: called with FormData, its failure is shown and the
 * dialog stays. Resolves to what it returned, or to null where the dialog was closed.
 */
export function form({ title, text = "", fields = [], action, danger = false, submit }) {
  return new Promise((resolve) => {
    let outcome = null;
    const fault = h("p", { class: "fault", role: "alert", hidden: true });
    const go = h("button", { type: "submit", class: danger ? "danger" : "primary" }, action);
    const close = h("button", { type: "button", onclick: () => dialog.close() }, "Cancel");
    const body = h(
      "form",
      { method: "dialog" },
      h("h2", { id: "dialog-title" }, title),
      text ? h("p", {}, text) : null,
      fields,
      fault,
      h("div", { class: "buttons" }, close, go),
    );
    const dialog = h("dialog", { "aria-labelledby": "dialog-title" }, body);
    body.addEventListener("submit", async (event) => {
      event.preventDefault();
      go.disabled = true;
      fault.hidden = true;
      try {
        outcome = await submit(new FormData(body));
        dialog.close();
      } catch (refused) {
        fault.textContent = reason(refused);
        fault.hidden = false;
      } finally {
        go.disabled = false;
      }
    });
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(outcome);
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}

/** What was wrong and where, in a sentence. */
export function reason(refused) {
  const faults = (refused.faults ?? []).filter((fault) => fault.path);
  const said =
    refused.title && refused.title !== refused.message ? `${refused.title}: ${refused.message}` : refused.message;
  if (!faults.length) return said;
  return `${refused.title}: ${faults.map((fault) => `${fault.path} ${fault.message}`).join("; ")}`;
}

export function field(label, input, hint = "") {
  return h("label", { class: "field" }, h("span", {}, label), input, hint ? h("small", {}, hint) : null);
}

let leaving = 0;

/** Say something in passing. */
export function toast(text) {
  const place = document.getElementById("toast");
  place.textContent = text;
  place.dataset.shown = "";
  clearTimeout(leaving);
  leaving = setTimeout(() => delete place.dataset.shown, 5_000);
}
