// What does each rule cost? Its price a day with the interval at any time, in a sentence and a table.

import { h, say } from "../dom.js";
import { count, measured, moment, within } from "../format.js";
import { looks } from "../looks.js";
import { scaleOf, whisker } from "../marks.js";
import { table } from "../table.js";

export function prices(app) {
  let scale = scaleOf([]);

  const date = h("p", { class: "told" });
  const rules = table({
    label: "Rules",
    keyOf: (row) => row.name,
    columns: [
      {
        key: "name",
        title: "Rule",
        sign: (row) => `${row.verb} ${row.holds}`,
        node: (row) =>
          h(
            "span",
            { class: "named" },
            h("span", {}, row.name, h("small", {}, row.holds ? row.verb : `${row.verb}, not now`)),
          ),
      },
      {
        key: "price",
        title: "Rewards a day",
        number: true,
        sign: (row) => JSON.stringify([row.price, scale]),
        node: (row) => row.price && cost(row.price),
        hint: "What it costs: above 0, decisions without it earn more. The interval holds at any time.",
      },
      {
        key: "decisions",
        title: "Decisions",
        number: true,
        text: (row) => count(row.price?.decisions),
      },
      { key: "sentence", title: "In words", wide: true, text: (row) => row.sentence },
    ],
  });
  const node = h("section", { class: "card", hidden: true }, h("h2", {}, "What do rules cost?"), date, rules.node);
  const log = looks(app, "rules", show, (message) => say(date, message));

  function cost(price) {
    return h(
      "span",
      { class: "stacked" },
      whisker({ mean: price.per_day, interval: price.per_day_interval }, scale, "var(--ink)"),
      h("span", {}, measured(price.per_day, price.per_day_interval)),
      h("small", {}, within(price.per_day_interval)),
    );
  }

  function show(found) {
    node.hidden = !found.rules.length;
    scale = scaleOf(found.rules.map((each) => each.price?.per_day_interval));
    say(date, `As of ${moment(Date.parse(found.as_of) / 1000)}.`);
    rules.update(found.rules);
  }

  return { node, ask: log.ask, destroy: log.stop };
}
