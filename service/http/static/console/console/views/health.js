// Heads, versions, the log and the process: what an operator asks first.

import { get, of } from "../api.js";
import { fact, h, section } from "../dom.js";
import { NONE, count, figure, moment, span } from "../format.js";
import { paletteOf } from "../palette.js";
import { table } from "../table.js";

const HEADS_S = 10; // of each head the service takes the spectrum: not every two seconds

export function health(app) {
  let askedAt = 0;
  const facts = h("dl", { class: "facts" });
  const heads = table({
    label: "Heads",
    keyOf: (row) => row.name,
    columns: [
      {
        key: "name",
        title: "Policy",
        sign: (row) => row.kind,
        node: (row) =>
          h("span", { class: "named" }, paletteOf(app).swatch(row.name), h("span", {}, row.name, h("small", {}, row.kind))),
      },
      {
        key: "version",
        title: "Version",
        number: true,
        text: (row) => (row.staged === null ? count(row.version) : `${row.version}, ${row.staged} staged`),
      },
      { key: "rewards", title: "Learned from", number: true, text: (row) => count(row.rewards), hint: "Rewards." },
      {
        key: "training",
        title: "Next training",
        sign: (row) => `${row.training_due_at} ${row.training_due} ${row.rewards}`,
        node: training,
      },
      {
        key: "trained",
        title: "Trained to",
        number: true,
        text: (row) => count(row.trained_to),
        hint: "Log position.",
      },
      {
        key: "eigenvalue",
        title: "Smallest eigenvalue",
        number: true,
        text: (row) => figure(row.head?.smallest_eigenvalue),
        hint: "Of A, over all directions: lambda while there is one that no reward came from.",
      },
      {
        key: "rank",
        title: "Effective rank",
        number: true,
        text: (row) => figure(row.head?.effective_rank),
        hint: "Directions that rewards came from, in effect.",
      },
      { key: "condition", title: "Condition", number: true, text: (row) => figure(row.head?.condition_number) },
      {
        key: "noise",
        title: "Noise",
        number: true,
        text: (row) => figure(row.head?.noise),
        hint: "Standard deviation of a reward.",
      },
      {
        key: "held",
        title: "Settlements held",
        number: true,
        text: (row) => figure(row.head?.effective_count),
        hint: "Fewer than learned from where old ones are forgotten.",
      },
      {
        key: "digest",
        title: "Digest",
        node: (row) => (row.head ? h("code", { title: row.head.digest }, row.head.digest.slice(0, 8)) : "–"),
        sign: (row) => row.head?.digest ?? "",
        hint: "Replicas at one log position have the same.",
      },
    ],
  });
  const versions = table({
    label: "Versions and changes",
    keyOf: (row) => `${row.policy} ${row.position}`,
    empty: "No version was published, and no change of the world was met.",
    columns: [
      { key: "at", title: "Published", text: (row) => moment(row.at) },
      { key: "policy", title: "Policy", text: (row) => row.policy },
      {
        key: "what",
        title: "What",
        text: (row) => (row.version === null ? `change in ${row.change}` : `version ${row.version}`),
      },
      { key: "position", title: "Log position", number: true, text: (row) => count(row.position) },
      { key: "watermark", title: "Trained to", number: true, text: (row) => count(row.watermark) },
    ],
  });
  const node = h(
    "div",
    { class: "view" },
    section("Process and log", facts),
    section("Heads", heads.node),
    section("Versions", versions.node),
  );

  function training(row) {
    if (row.training_due_at === null) return NONE;
    if (row.training_due) return h("span", { class: "pill", data: { kind: "warn" } }, "due");
    return `at ${count(row.training_due_at)} rewards`;
  }

  function tell() {
    const { status } = app;
    const own = status.experiments.find((each) => each.name === app.name);
    facts.replaceChildren(
      fact("Log", status.degraded ? "cannot be written" : "written"),
      fact("Log position", count(own?.position)),
      fact(
        "Lag",
        status.lag_seconds === null ? "none" : span(status.lag_seconds),
        "Since a log that other processes write as well was read to its end.",
      ),
      fact(
        "Waiting for the log",
        count(status.waiting_decisions),
        "Decisions that were answered and are not in the log yet.",
      ),
      fact("Snapshot", own?.snapshot_age_seconds === null ? "none yet" : `${span(own?.snapshot_age_seconds)} ago`),
      fact("Recovered", own?.recovered ? "yes" : "not yet"),
      fact("Revision", count(own?.revision)),
      fact("Processes", count(status.processes), "That share this log and live."),
      fact("Running for", span(status.now - status.started)),
      fact("Forage", status.version),
      h(
        "div",
        { class: "fact wide" },
        h("dt", {}, `Store: ${status.store}`),
        h("dd", { class: "text" }, status.durability),
      ),
    );
  }

  return {
    node,
    async refresh(current) {
      tell();
      if (app.status.now - askedAt < HEADS_S) return;
      const { policies } = await get(of(app.name, "policies"));
      if (!current()) return;
      askedAt = app.status.now;
      heads.update(policies);
      const news = policies.flatMap((each) => each.versions.map((entry) => ({ ...entry, policy: each.name })));
      versions.update(news.sort((a, b) => b.at - a.at).slice(0, 100));
    },
  };
}
