// What came of each arm, page by page: sorted and sought by the service, so that ten thousand are
// no more work here than ten.

import { add, retire } from "../actions.js";
import { get, of } from "../api.js";
import { h, say } from "../dom.js";
import { count, figure, measured, percent, within } from "../format.js";
import { bar, scaleOf, whisker } from "../marks.js";
import { table } from "../table.js";

const LIMIT = 50;
const TYPING_MS = 250;
const ORDERS = { impressions: "Most impressions", total: "Most clicks (rewards)", mean: "Best mean reward", arm: "Id" };
const MANY = 2_000;
const SLOW_S = 10;

/** What a definition says of the values of its arms. */
const declaredOf = ({ features, attributes }) => ({ features: features.arm ?? {}, attributes: attributes ?? {} });

export function arms(app) {
  const wanted = { policy: "", order: "impressions", descending: true, match: "", offset: 0 };
  let found = null;
  let declared = null;
  let typing = 0;
  let asked = "";
  let askedAt = 0;

  const policy = h("select", { "aria-label": "Policy", onchange: () => turn({ policy: policy.value, offset: 0 }) });
  const match = h("input", {
    type: "search",
    placeholder: "Filter by id",
    "aria-label": "Filter by id",
    maxlength: 256,
    oninput: typed,
  });
  // Where rows are cards there are no headings to sort by.
  const sort = h(
    "select",
    {
      class: "narrow",
      "aria-label": "Sort by",
      onchange: () => turn({ order: sort.value, descending: sort.value !== "arm", offset: 0 }),
    },
    Object.entries(ORDERS).map(([value, text]) => h("option", { value }, text)),
  );
  const more = h(
    "button",
    { type: "button", class: "primary", onclick: () => declared && add(app, declared) },
    "Add an arm",
  );
  const told = h("p", { class: "told", "aria-live": "polite" });
  const where = h("span", {});
  const back = h(
    "button",
    { type: "button", onclick: () => turn({ offset: Math.max(wanted.offset - LIMIT, 0) }) },
    "Previous",
  );
  const next = h("button", { type: "button", onclick: () => turn({ offset: wanted.offset + LIMIT }) }, "Next");
  const list = table({
    label: "Arms",
    keyOf: (row) => row.arm,
    order: { key: "impressions", descending: true },
    sorted: (order, descending) => turn({ order, descending, offset: 0 }),
    empty: "No arm matches.",
    columns: [
      {
        key: "arm",
        title: "Arm",
        sort: true,
        sign: (row) => `${row.active}`,
        node: (row) => h("span", { class: "arm" }, row.arm, row.active ? null : h("small", {}, "retired")),
      },
      {
        key: "impressions",
        title: "Impressions",
        sort: true,
        number: true,
        text: (row) => count(row.impressions),
        hint: "Settled: shown, and known what came of it.",
      },
      { key: "total", title: "Clicks (rewards)", sort: true, number: true, text: (row) => figure(row.total) },
      { key: "mean", title: "Mean reward", sort: true, number: true, text: (row) => measured(row.mean_reward, row.mean_reward_interval) },
      {
        key: "interval",
        title: "95 % interval",
        number: true,
        sign: (row) => `${row.mean_reward_interval} ${scale().low} ${scale().high}`,
        node: (row) =>
          row.mean_reward_interval
            ? h(
                "span",
                { class: "stacked" },
                whisker({ mean: row.mean_reward, interval: row.mean_reward_interval }, scale(), "var(--accent)"),
                h("small", {}, within(row.mean_reward_interval)),
              )
            : null,
      },
      {
        key: "share",
        title: "Share of choices",
        number: true,
        sign: (row) => `${row.share.toFixed(4)} ${most()}`,
        node: (row) => h("span", { class: "stacked" }, h("span", {}, percent(row.share)), bar(row.share / most())),
      },
      {
        key: "actions",
        title: "Change",
        sign: (row) => `${row.active}`,
        node: (row) =>
          row.active
            ? h(
                "button",
                {
                  type: "button",
                  class: "small",
                  "aria-label": `Retire ${row.arm}`,
                  onclick: () => retire(app, row.arm),
                },
                "Retire",
              )
            : "",
      },
    ],
  });
  const node = h(
    "div",
    { class: "view" },
    h(
      "section",
      { class: "card" },
      h("div", { class: "head" }, h("h2", {}, "Arms"), policy, sort, match, more),
      told,
      list.node,
      h("div", { class: "pager" }, back, where, next),
    ),
  );

  const most = () => Math.max(...found.arms.map((each) => each.share), 1e-9);
  const scale = () => scaleOf(found.arms.map((each) => each.mean_reward_interval));

  function typed() {
    clearTimeout(typing);
    typing = setTimeout(() => turn({ match: match.value.trim(), offset: 0 }), TYPING_MS);
  }

  function turn(what) {
    Object.assign(wanted, what);
    app.ask();
  }

  function choices() {
    const names = app.status.experiments.find((each) => each.name === app.name)?.policies ?? [];
    const key = names.join("\n");
    if (policy.dataset.names === key) return;
    policy.dataset.names = key;
    policy.replaceChildren(
      h("option", { value: "" }, "All policies"),
      ...names.map((name) => h("option", { value: name }, name)),
    );
    policy.value = wanted.policy = names.includes(wanted.policy) ? wanted.policy : "";
  }

  function show() {
    list.update(found.arms);
    const last = Math.min(wanted.offset + LIMIT, found.found);
    say(where, found.found ? `${count(wanted.offset + 1)} to ${count(last)} of ${count(found.found)}` : "");
    back.disabled = wanted.offset === 0;
    next.disabled = last >= found.found;
    const since = found.since > 1 ? `, counted since log position ${count(found.since)}` : "";
    say(told, `${count(found.impressions)} settled impressions${wanted.policy ? ` of ${wanted.policy}` : ""}${since}.`);
  }

  return {
    node,
    async refresh(current) {
      choices();
      declared ??= declaredOf((await get(of(app.name))).definition);
      const key = JSON.stringify(wanted);
      const fresh = app.status.now - askedAt < SLOW_S;
      const position = app.status.experiments.find((each) => each.name === app.name);
      if (key === asked && fresh && position.arms > MANY) return; // a large catalogue costs the service milliseconds
      const answer = await get(of(app.name, "arm-figures"), { ...wanted, limit: LIMIT });
      if (!current()) return;
      found = answer;
      asked = key;
      askedAt = app.status.now;
      if (wanted.offset >= found.found && wanted.offset > 0) turn({ offset: 0 });
      show();
    },
    destroy: () => clearTimeout(typing),
  };
}
