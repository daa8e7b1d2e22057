// Who changed what: a list, newest first, and what the charts over time flag.

import { Refusal, get, of } from "../api.js";
import { choice } from "../chart.js";
import { h, say } from "../dom.js";
import { NONE, moment } from "../format.js";
import { table } from "../table.js";

const SHOWN = 10;
const EVERY_MS = 10_000; // of all changes: nothing tells that there is a new one

/** Pages of changes, newest first. query: that of the route. */
class Pages {
  constructor(app, query) {
    Object.assign(this, { app, query, changes: [], next: null, dropped: false });
  }

  /** Read the newest page, and keep the older ones where it continues them. */
  async read() {
    const page = await this.ask();
    const last = page.changes.at(-1)?.position ?? 0;
    const continues = this.changes.some((each) => each.position >= last);
    const older = continues ? this.changes.filter((each) => each.position < last) : [];
    this.changes = [...page.changes, ...older];
    if (!older.length) this.next = page.next;
  }

  async more() {
    const before = this.next;
    const page = await this.ask({ before });
    if (this.next !== before) return; // read anew meanwhile
    this.changes = [...this.changes, ...page.changes];
    this.next = page.next;
  }

  async ask(more = {}) {
    const page = await get(of(this.app.name, "changes"), { ...this.query, ...more });
    this.dropped = Object.keys(page.complete_after).length > 0;
    return page;
  }
}

export function changes(app) {
  const pages = {
    notable: new Pages(app, { notable: true, limit: 100 }),
    all: new Pages(app, { limit: 50 }),
  };
  let which = "notable";
  let shown = SHOWN;
  let known; // position of the newest notable change that was read
  let asked = -Infinity;
  let gone = false;

  const list = table({
    label: "Changes",
    keyOf: (row) => row.position,
    empty: "No change is listed.",
    columns: [
      { key: "at", title: "Time", text: (row) => moment(row.at) },
      { key: "by", title: "By", text: (row) => row.by || NONE },
      { key: "sentence", title: "Change", wide: true, text: deed },
    ],
  });
  const told = h("p", { class: "told" });
  const more = h("button", { type: "button", hidden: true, onclick: show }, "More");
  const node = h(
    "section",
    { class: "card changes" },
    h(
      "div",
      { class: "head" },
      h("h2", {}, "Changes"),
      choice(
        "Which changes",
        [
          ["notable", "What is served"],
          ["all", "All"],
        ],
        which,
        (value) => {
          which = value;
          shown = SHOWN;
          draw();
          attempt(() => pages[which].read());
        },
      ),
    ),
    told,
    list.node,
    more,
  );

  function show() {
    shown += 2 * SHOWN;
    const own = pages[which];
    draw();
    if (own.changes.length < shown && own.next !== null) attempt(() => own.more());
  }

  function draw() {
    const own = pages[which];
    list.update(own.changes.slice(0, shown));
    more.hidden = own.changes.length <= shown && own.next === null;
    const end = more.hidden && own.dropped ? " Older ones are no longer listed." : "";
    say(told, `The charts flag changes of what visitors are served.${end}`);
  }

  /** Read pages, and draw; the list stays where the service refuses. */
  async function attempt(read) {
    try {
      await read();
      if (!gone) draw();
    } catch (fault) {
      if (!(fault instanceof Refusal)) throw fault;
      if (!gone) say(told, `${fault.message.replace(/\.+$/, "")}.`);
      known = undefined;
    }
  }

  return {
    node,
    /** Changes that charts flag. */
    notable: () => pages.notable.changes,
    /** Read what is new. last: position of the newest notable change. */
    ask(last) {
      if (last !== known) {
        known = last;
        attempt(() => pages.notable.read());
      }
      if (which === "all" && performance.now() > asked + EVERY_MS) {
        asked = performance.now();
        attempt(() => pages.all.read());
      }
    },
    destroy() {
      gone = true;
    },
  };
}

/** What was done; who did it has a column. */
export function deed({ by, sentence }) {
  const who = by ? `'${by}' ` : "somebody ";
  const text = sentence.startsWith(who) ? sentence.slice(who.length) : sentence;
  return text.charAt(0).toUpperCase() + text.slice(1);
}
