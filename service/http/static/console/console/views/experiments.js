// All experiments and their health; what to do where there is none.

import { h, section } from "../dom.js";
import { count, reward, span } from "../format.js";
import { curl } from "../examples.js";
import { table } from "../table.js";

export function experiments(app) {
  const list = table({
    label: "Experiments",
    keyOf: (row) => row.name,
    columns: [
      {
        key: "name",
        title: "Experiment",
        sign: (row) => row.name,
        node: (row) => h("a", { href: `#/${encodeURIComponent(row.name)}/overview` }, row.name),
      },
      {
        key: "health",
        title: "Health",
        sign: healthOf,
        node: (row) =>
          h("span", { class: "pill", data: { kind: healthOf(row) === "ok" ? "good" : "warn" } }, healthOf(row)),
      },
      { key: "policies", title: "Policies", number: true, text: (row) => count(row.policies.length) },
      { key: "arms", title: "Arms", number: true, text: (row) => count(row.arms) },
      { key: "settled", title: "Rewards", number: true, text: (row) => count(row.settled) },
      { key: "mean", title: "Mean reward", number: true, text: (row) => reward(row.mean_reward) },
      { key: "position", title: "Log position", number: true, text: (row) => count(row.position) },
      {
        key: "snapshot",
        title: "Snapshot",
        number: true,
        text: (row) => (row.snapshot_age_seconds === null ? "none yet" : `${span(row.snapshot_age_seconds)} ago`),
      },
      { key: "training", title: "Training due", text: (row) => row.training_due.join(", ") || "no" },
    ],
  });
  const some = section("Experiments", list.node);
  const none = h(
    "section",
    { class: "card empty" },
    h("h1", {}, "No experiment yet"),
    h("p", {}, "Define one, then ask it for a decision. This page shows it by itself."),
    curl("Define", "PUT", "experiments/shop", {
      features: { context: { visitor: { type: "categorical", values: ["new", "regular"] } } },
      policies: { linucb: { kind: "linucb", disjoint: true } },
      arms: { red: {}, blue: {} },
    }),
    curl("Ask", "POST", "select", { experiment: "shop", context: { visitor: "new" } }),
  );
  const node = h("div", { class: "view" });

  function healthOf(row) {
    if (!row.recovered) return "recovering";
    if (app.status.degraded) return "log gone";
    if (app.status.behind) return "behind";
    return "ok";
  }

  return {
    node,
    async refresh() {
      const found = app.status.experiments;
      const wanted = found.length ? some : none;
      if (node.firstChild !== wanted) node.replaceChildren(wanted);
      list.update(found);
    },
  };
}
