// A table that is refreshed in place: rows keep their elements, so that focus, hover and selection
// survive. On a narrow screen each row becomes a card, whose cells name their column.

import { h, say } from "./dom.js";
import { NONE } from "./format.js";

/**
 * columns: {key, title, text(row) or node(row) with sign(row), number, sort, hint, wide}. A cell with
 * a node is built anew only when its sign differs.
 * keyOf(row): what tells rows apart. sorted: called with (key, descending). choose(row): rows can be
 * opened by a button in their first cell.
 */
export function table({ label, columns, keyOf, sorted = null, order = null, empty = "Nothing yet." }) {
  let current = order;
  const heads = new Map();
  const body = h("tbody", { role: "rowgroup" });
  const whole = h(
    "table",
    { role: "table", "aria-label": label },
    h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, columns.map(head))),
    body,
  );
  const nothing = h("p", { class: "nothing" }, "Loading.");
  const node = h("div", { class: "scroll" }, whole, nothing);
  const rows = new Map();
  mark();

  function head(column) {
    const classes = column.number ? "number" : null;
    const sortable = sorted && column.sort;
    const inside = sortable
      ? h("button", { type: "button", class: "sort", onclick: () => turn(column) }, column.title)
      : column.title;
    const cell = h("th", { role: "columnheader", scope: "col", class: classes, title: column.hint }, inside);
    heads.set(column.key, cell);
    return cell;
  }

  function turn(column) {
    const same = current?.key === column.key;
    current = { key: column.key, descending: same ? !current.descending : Boolean(column.number) };
    mark();
    sorted(current.key, current.descending);
  }

  function mark() {
    for (const [key, cell] of heads) {
      if (key === current?.key) cell.setAttribute("aria-sort", current.descending ? "descending" : "ascending");
      else cell.removeAttribute("aria-sort");
    }
  }

  function make(row) {
    const cells = columns.map((column) =>
      h("td", {
        role: "cell",
        class: column.number ? "number" : column.wide ? "wide" : null,
        data: { label: column.title },
      }),
    );
    return { node: h("tr", { role: "row" }, cells), cells, signs: [] };
  }

  function write(kept, row) {
    columns.forEach((column, place) => {
      const cell = kept.cells[place];
      if (column.text) {
        const text = column.text(row);
        cell.toggleAttribute("data-none", text === NONE);
        say(cell, text);
        return;
      }
      const sign = column.sign ? column.sign(row) : "";
      if (kept.signs[place] === sign) return;
      kept.signs[place] = sign;
      const inside = column.node(row) ?? NONE;
      cell.toggleAttribute("data-none", inside === NONE || inside === "");
      cell.replaceChildren(inside);
    });
  }

  function update(data) {
    const wanted = new Set();
    let before = null;
    for (const row of data) {
      const key = keyOf(row);
      wanted.add(key);
      if (!rows.has(key)) rows.set(key, make(row));
      const kept = rows.get(key);
      write(kept, row);
      const place = before ? before.nextSibling : body.firstChild;
      if (place !== kept.node) body.insertBefore(kept.node, place);
      before = kept.node;
    }
    for (const [key, kept] of rows) {
      if (wanted.has(key)) continue;
      kept.node.remove();
      rows.delete(key);
    }
    say(nothing, empty);
    nothing.hidden = data.length > 0;
    whole.hidden = !data.length;
  }

  /** Build every cell of nodes anew, after the theme or a scale changed. */
  function forget() {
    for (const kept of rows.values()) kept.signs = [];
  }

  return { node, update, forget, rowOf: (key) => rows.get(key)?.node ?? null };
}
