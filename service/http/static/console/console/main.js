// The console: asks the service every two seconds while it is looked at, and shows what it said.

import { Refusal, get, key } from "./api.js";
import { field, form } from "./dialog.js";
import { h, say } from "./dom.js";
import { time } from "./format.js";
import { isDark } from "./palette.js";
import { arms } from "./views/arms.js";
import { decisions } from "./views/decisions.js";
import { evaluation } from "./views/evaluation.js";
import { experiments } from "./views/experiments.js";
import { health } from "./views/health.js";
import { overview } from "./views/overview.js";

const EVERY_MS = 2_000;
const LONGEST_MS = 15_000;
const TABS = {
  overview: ["Overview", overview],
  arms: ["Arms", arms],
  decisions: ["Decisions", decisions],
  health: ["Health", health],
  evaluation: ["Evaluation", evaluation],
};

const $ = (id) => document.getElementById(id);
const app = { status: null, name: null, tab: "overview", go, ask: tick };
let view = null;
let shown = "";
let timer = 0;
let failures = 0;
let heard = null;
let asking = false;
let again = false;
let turn = 0;

// -- where we are ----------------------------------------------------------------------------------

function go(name, tab = "overview") {
  location.hash = name ? `#/${encodeURIComponent(name)}/${tab}` : "#/";
}

function read() {
  const [name = "", tab = ""] = location.hash.replace(/^#\/?/, "").split("/");
  app.name = name ? decoded(name) : null;
  app.tab = tab in TABS ? tab : "overview";
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function show() {
  const known = app.status?.experiments.some((each) => each.name === app.name) ?? false;
  const wanted = known ? `${app.name}/${app.tab}` : "";
  if (wanted === shown && view) return;
  view?.destroy?.();
  shown = wanted;
  turn += 1;
  view = known ? TABS[app.tab][1](app) : experiments(app);
  $("content").replaceChildren(view.node);
  document.title = !known ? "Forage" : `${app.name}: ${TABS[app.tab][0]} – Forage`;
  tabs(known);
}

function tabs(known) {
  const buttons = known
    ? Object.entries(TABS).map(([tab, [title]]) =>
        h(
          "button",
          {
            type: "button",
            role: "tab",
            id: `tab-${tab}`,
            "aria-selected": String(tab === app.tab),
            "aria-controls": "content",
            tabindex: tab === app.tab ? 0 : -1,
            onclick: () => go(app.name, tab),
          },
          title,
        ),
      )
    : [];
  const focused = $("tabs").contains(document.activeElement);
  $("tabs").replaceChildren(
    ...(known ? [h("div", { role: "tablist", "aria-label": "Views", onkeydown: arrow }, buttons)] : []),
  );
  const content = $("content");
  if (known) {
    content.setAttribute("role", "tabpanel");
    content.setAttribute("aria-labelledby", `tab-${app.tab}`);
    if (focused) $(`tab-${app.tab}`).focus();
  } else {
    content.removeAttribute("role");
    content.removeAttribute("aria-labelledby");
  }
}

function arrow(event) {
  const names = Object.keys(TABS);
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  const ends = { Home: 0, End: names.length - 1 }[event.key];
  if (step === undefined && ends === undefined) return;
  event.preventDefault();
  go(app.name, names[ends ?? (names.indexOf(app.tab) + step + names.length) % names.length]);
}

// -- what the service says -------------------------------------------------------------------------

async function tick() {
  again = asking;
  if (asking || document.hidden) return;
  asking = true;
  clearTimeout(timer);
  try {
    app.status = await get("status");
    picker();
    if (app.name === null && app.status.experiments.length === 1 && !location.hash) {
      history.replaceState(null, "", `#/${encodeURIComponent(app.status.experiments[0].name)}/overview`);
      read();
      picker();
    }
    show();
    const mine = turn;
    await view.refresh(() => mine === turn);
    succeed();
  } catch (refused) {
    if (!(refused instanceof Refusal)) throw refused;
    await fail(refused);
  } finally {
    asking = false;
    timer = setTimeout(tick, again ? 0 : Math.min(EVERY_MS * 2 ** Math.max(failures - 2, 0), LONGEST_MS));
  }
}

function succeed() {
  failures = 0;
  heard = Date.now() / 1000;
  $("content").removeAttribute("aria-busy");
  const { degraded, behind, quarantined } = app.status;
  const stopped = quarantined[0];
  pill(
    degraded || stopped ? "bad" : behind ? "warn" : "good",
    degraded ? "Log gone" : stopped ? "Quarantine" : behind ? "Behind" : "Live",
  );
  banner(
    degraded
      ? "The log cannot be written: decisions are made from memory and wait for it; rewards are refused until it is back."
      : stopped
        ? stopped.position === null
          ? `${stopped.name} is not served: ${stopped.reason}.`
          : `${stopped.name} is not served: the event at position ${stopped.position} of its log cannot be folded (${stopped.reason}). Run forage repair.`
        : behind
          ? "This process has not read the shared log for a while: figures and decisions are of an older state."
          : "",
  );
}

async function fail(refused) {
  failures += 1;
  if (refused.status === 401 || (refused.status === 403 && !app.status)) {
    pill("warn", "Key needed");
    if (!app.status) locked();
    if (refused.status === 403) banner(`${refused.message}.`);
    else banner(key.value ? "The service does not take this key." : "The service asks for a key with the scope admin.");
    await askKey();
    return;
  }
  if (refused.status === 404 && app.name !== null) {
    banner("There is no such experiment any more.");
    go(null);
    return;
  }
  pill("bad", refused.gone ? "No answer" : "Failing");
  const since = heard ? ` These are the figures of ${time(heard)}.` : "";
  const what = refused.gone ? "The service does not answer." : `${refused.title}: ${refused.message}`;
  banner(`${what}${since} Trying again by itself.`);
  if (!heard) $("content").replaceChildren(h("p", { class: "loading" }, "Waiting for the service."));
}

function locked() {
  $("content").replaceChildren(
    h(
      "section",
      { class: "card empty" },
      h("h1", {}, "A key is needed"),
      h("p", {}, "Ask whoever runs this service for a key with the scope admin. It stays in this tab."),
      h("button", { type: "button", class: "primary", onclick: askKey }, "Enter a key"),
    ),
  );
}

let open = false;
let refused = null;

/** Once by itself for each key that was refused; after that by the button. */
async function askKey(event) {
  if (open || (!event && refused === key.value)) return;
  refused = key.value;
  open = true;
  const input = h("input", {
    name: "key",
    type: "password",
    autocomplete: "off",
    spellcheck: "false",
    required: true,
    autofocus: true,
  });
  await form({
    title: "Key",
    text: "A key with the scope admin. It is kept in this tab until you close it, and sent in a header alone.",
    fields: [field("Key", input)],
    action: "Use it",
    submit: (given) => {
      key.value = given.get("key").trim();
      return true;
    },
  });
  open = false;
  setTimeout(tick, 0);
}

// -- the frame -------------------------------------------------------------------------------------

function pill(kind, text) {
  const node = $("state");
  node.dataset.kind = kind;
  say(node, text);
}

function banner(text) {
  const node = $("banner");
  node.hidden = !text;
  say(node, text);
}

function themed() {
  const other = isDark() ? "Light" : "Dark";
  say($("theme"), other);
  $("theme").setAttribute("aria-label", `${other} theme`);
  view?.redraw?.();
}

function picker() {
  const names = app.status.experiments.map((each) => each.name);
  const node = $("experiment");
  const wanted = ["", ...names].join("\n");
  if (node.dataset.names !== wanted) {
    node.dataset.names = wanted;
    node.replaceChildren(
      h("option", { value: "" }, "All experiments"),
      ...names.map((name) => h("option", { value: name }, name)),
    );
  }
  node.value = app.name ?? "";
  node.parentElement.hidden = false;
}

$("experiment").addEventListener("change", (event) => go(event.target.value || null));
$("key").addEventListener("click", askKey);
$("theme").addEventListener("click", () => {
  const chosen = isDark() ? "light" : "dark";
  document.documentElement.dataset.theme = chosen;
  localStorage.setItem("forage.theme", chosen);
  themed();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", themed);
document.addEventListener("visibilitychange", tick);
addEventListener("hashchange", () => {
  read();
  if (!app.status) return;
  picker();
  show();
  tick();
});
read();
themed();
tick();
