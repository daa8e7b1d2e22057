// One decision: what it was chosen from, by what chance, and what moved it.

import { fact, h } from "../dom.js";
import { chance, count, figure, moment, reward, signed } from "../format.js";
import { bar } from "../marks.js";
import { table } from "../table.js";

const FIRST = 12;
const LEAST = 5e-4; // of a contribution: it moves the third digit of a mean

/** of: the answer of GET /decisions/{id}. */
export function explained(of) {
  const shown = new Map(of.ranking.map((each) => [each.arm, each.propensity]));
  const ranked = [...of.candidates].sort(
    (a, b) =>
      shown.has(b.arm) - shown.has(a.arm) ||
      (b.probability ?? -1) - (a.probability ?? -1) ||
      (b.mean ?? 0) - (a.mean ?? 0),
  );
  const [first] = of.ranking;
  const list = candidates(ranked, shown);
  const all = h(
    "button",
    {
      type: "button",
      hidden: ranked.length <= FIRST,
      onclick: () => {
        list.update(ranked);
        all.hidden = true;
      },
    },
    `Show all ${count(ranked.length)} candidates`,
  );
  list.update(ranked.slice(0, FIRST));
  return h(
    "div",
    { class: "why" },
    h("h2", {}, "Why ", h("span", { class: "arm" }, first.arm)),
    h(
      "p",
      {},
      `${of.policy} showed `,
      h("b", { class: "arm" }, first.arm),
      ` with propensity ${chance(first.propensity)}, out of ${count(of.candidates.length)} candidates.`,
    ),
    h(
      "dl",
      { class: "facts tight" },
      fact("Time", moment(Date.parse(of.at) / 1000)),
      fact("Version", of.model_version),
      fact("Policy assigned with", chance(of.assignment), "Chance with which this policy decided."),
      fact(
        "Learned",
        of.learned.length
          ? of.learned
              .map((each) => `${each.arm}: ${reward(each.reward)}${each.default ? " by default" : ""}`)
              .join(", ")
          : "nothing yet",
      ),
      of.ranking.length > 1 ? fact("Shown", of.ranking.map((each) => each.arm).join(", ")) : null,
      h("div", { class: "fact wide" }, h("dt", {}, "Id"), h("dd", {}, h("code", {}, of.id))),
    ),
    context(of.context),
    rules(of),
    notes(of),
    h("h3", {}, "Candidates"),
    list.node,
    all,
  );
}

function context(values) {
  const entries = Object.entries(values);
  return [
    h("h3", {}, "Context"),
    entries.length
      ? h(
          "ul",
          { class: "chips" },
          entries.map(([name, value]) => h("li", {}, `${name} `, h("b", {}, brief(value)))),
        )
      : h("p", { class: "nothing" }, "None was sent."),
  ];
}

function brief(value) {
  if (Array.isArray(value)) return value.length <= 4 ? `[${value.map(figure).join(", ")}]` : `${value.length} numbers`;
  return typeof value === "number" ? figure(value) : String(value);
}

/** What rules did, in sentences, after the names of those that held. */
function rules(of) {
  if (!of.said.length) return null;
  return [
    h("h3", {}, "Rules"),
    h(
      "ul",
      { class: "chips" },
      of.rules.map((name) => h("li", {}, h("b", {}, name))),
      of.relaxed.map((name) => h("li", {}, h("b", {}, name), " yielded")),
    ),
    sentences(of.said),
  ];
}

function sentences(texts) {
  return h(
    "ul",
    { class: "notes" },
    texts.map((each) => h("li", {}, each)),
  );
}

function notes(of) {
  const said = [];
  said.push(
    of.choice_follows
      ? "The choice follows from the logged chances and seed."
      : "The choice cannot be derived again from the log.",
  );
  if (!of.same_head)
    said.push(
      "The head has learned since: means, widths and shares of draws are those of now; propensities are those of then.",
    );
  if (of.activated === false) said.push("Deferred: it has not been shown yet.");
  return sentences(said);
}

function candidates(ranked, shown) {
  const most = Math.max(...ranked.map((each) => each.probability ?? 0), 1e-9);
  const drawn = ranked.some((each) => each.draw_share !== null);
  const known = ranked.some((each) => each.mean !== null);
  const columns = [
    {
      key: "arm",
      title: "Arm",
      node: (row) =>
        h(
          "span",
          { class: "arm" },
          row.arm,
          shown.has(row.arm) ? h("small", { data: { told: "ahead" } }, "shown") : null,
        ),
    },
    {
      key: "p",
      title: "Propensity",
      number: true,
      node: (row) =>
        h("span", { class: "stacked" }, h("span", {}, chance(row.probability)), bar((row.probability ?? 0) / most)),
    },
  ];
  if (known) {
    columns.push(
      { key: "mean", title: "Mean", number: true, text: (row) => reward(row.mean) },
      {
        key: "width",
        title: "Width",
        number: true,
        text: (row) => figure(row.width),
        hint: "Posterior standard deviation.",
      },
      drawn
        ? {
            key: "draws",
            title: "Draws won",
            number: true,
            text: (row) => chance(row.draw_share),
            hint: "Share of the posterior draws in which it scores best.",
          }
        : {
            key: "bonus",
            title: "Bonus",
            number: true,
            text: (row) => (row.bonus === null ? "–" : signed(row.bonus)),
            hint: "What exploring adds to the mean.",
          },
      { key: "moved", title: "Moved by", wide: true, node: (row) => moved(row.moved) },
    );
  }
  return table({ label: "Candidates", keyOf: (row) => row.arm, columns });
}

function moved(parts) {
  if (!parts) return null;
  const largest = Math.max(...parts.map((each) => Math.abs(each.contribution)));
  const told = parts.filter((each) => Math.abs(each.contribution) >= Math.max(LEAST, largest / 20));
  if (!told.length) return h("span", { class: "muted" }, "no feature: all near 0");
  return h(
    "ul",
    { class: "chips" },
    told.map((each) =>
      h(
        "li",
        { data: { sign: each.contribution < 0 ? "less" : "more" } },
        `${(each.feature ?? "all others").replaceAll(" x ", " × ")} `,
        h("b", {}, signed(each.contribution, 3)),
      ),
    ),
  );
}
