// Lines over time, by uPlot: one a policy; a band for the interval of the one that is chosen, by the
// pointer or in the legend; a legend of buttons that turn lines on and off, and values under the
// pointer. A flag stands where something changed: pointing near it tells what.

import { h } from "./dom.js";
import { date, shortTime, time } from "./format.js";
import { css } from "./palette.js";

const DAY = 86_400;
const APART_PX = 20; // flags that are closer would overlap: they are one
const NEAR_PX = 8;
const SAID = 3; // changes of a flag that are told in words

/**
 * names: of the lines. palette: of their colours. write(value): for axis and tooltip. banded: each
 * line comes with low and high. lead(): whose band is drawn while none is chosen. bounds: {low, high} that the values cannot pass; least: room
 * beyond what there is; zero: a line at 0. changes(): [{at, sentence}] to flag.
 */
export function chart({
  label,
  names,
  palette,
  write,
  banded = false,
  lead = () => null,
  height = 180,
  bounds = {},
  least = 1e-9,
  zero = false,
  hidden,
  changes = () => [],
}) {
  const flags = h("div", { "aria-hidden": "true" });
  const tip = h("div", { class: "tip", hidden: true });
  const place = h("div", { class: "plot", role: "img", "aria-label": label });
  const nothing = h("p", { class: "nothing" }, "Not enough samples yet: one is taken every few seconds.");
  const node = h("div", { class: "chart" }, place, nothing);
  const step = banded ? 3 : 1;
  let plot = null;
  let data = null;
  let range = null;
  let near = null; // whose line the pointer is near
  let listed = null; // whom the pointer or the focus is on in the legend
  let flagged = [];

  function options() {
    const axis = {
      stroke: css("--muted"),
      grid: { stroke: css("--line"), width: 1 },
      ticks: { show: false },
      font: css("--plot-font"),
    };
    return {
      width: Math.max(place.clientWidth, 120),
      height,
      legend: { show: false },
      padding: [10, 30, 0, 0],
      cursor: { points: { size: 7 }, focus: { prox: 24 }, drag: { x: false, y: false }, y: false },
      scales: { x: { time: true, range: () => range }, y: { range: limits } },
      axes: [
        { ...axis, space: 84, size: 28, gap: 6, values: (_, ticks) => ticks.map(tick) },
        { ...axis, space: 34, size: 58, gap: 6, values: (_, values) => values.map(write) },
      ],
      series: [{}, ...names.flatMap(lines)],
      bands: banded
        ? names.map((name, index) => ({ series: [index * 3 + 3, index * 3 + 2], fill: () => fill(name) }))
        : [],
      focus: { alpha: 1 },
      hooks: { setCursor: [point], setSeries: [approach], drawAxes: zero ? [drawZero] : [], draw: [flag] },
    };
  }

  function fill(name) {
    return name === (near ?? listed ?? lead()) ? `${palette.ink(name)}2e` : "transparent";
  }

  function approach(plotted, place) {
    const found = place ? names[Math.floor((place - 1) / step)] : null;
    if (found === near) return;
    near = found;
    plotted.redraw(false);
  }

  function choose(name) {
    listed = name;
    plot?.redraw(false);
  }

  function drawZero({ ctx, bbox, valToPos }) {
    const y = valToPos(0, "y", true);
    ctx.save();
    ctx.strokeStyle = css("--muted");
    ctx.lineWidth = devicePixelRatio;
    ctx.beginPath();
    ctx.moveTo(bbox.left, y);
    ctx.lineTo(bbox.left + bbox.width, y);
    ctx.stroke();
    ctx.restore();
  }

  function flag(plotted) {
    const shown = changes().filter(({ at }) => at >= range[0] && at <= range[1]);
    flagged = clusters(shown, (at) => plotted.valToPos(at, "x"));
    flags.replaceChildren(
      ...flagged.map(({ x, all }) =>
        h("div", { class: "flag", "--x": `${x}px` }, h("span", { class: "pin" }, all.length > 1 ? `${all.length}` : "")),
      ),
    );
  }

  function lines(name) {
    const show = !hidden.has(name);
    const line = {
      label: name,
      show,
      stroke: palette.ink(name),
      width: 2,
      dash: palette.dash(name),
      points: { show: false },
      spanGaps: true,
    };
    const edge = { show, stroke: "transparent", width: 0, points: { show: false }, spanGaps: true };
    return banded ? [line, edge, edge] : [line];
  }

  function tick(at) {
    const wide = range[1] - range[0];
    if (wide > 1.5 * DAY) return `${date(at)} ${shortTime(at)}`;
    return wide < 600 ? time(at) : shortTime(at);
  }

  /** All of the lines, and the bands as they are lately: wide at first, they would flatten all. */
  function limits() {
    let [low, high] = [Infinity, -Infinity];
    const take = (value) => {
      if (value === null || value === undefined) return;
      low = Math.min(low, value);
      high = Math.max(high, value);
    };
    const late = Math.floor(data[0].length * 0.6);
    names.forEach((name, index) => {
      if (hidden.has(name)) return;
      const [line, ...edges] = data.slice(1 + index * step, 1 + (index + 1) * step);
      line.slice(Math.floor(data[0].length * 0.1)).forEach(take);
      for (const edge of edges) edge.slice(late).forEach(take);
    });
    if (zero) take(0);
    if (low > high) return [bounds.low ?? 0, bounds.high ?? 1];
    const room = Math.max((high - low) * 0.08, Math.abs(high) * 0.02, least);
    return [Math.max(low - room, bounds.low ?? -Infinity), Math.min(high + room, bounds.high ?? Infinity)];
  }

  function point(plotted) {
    const { idx, left } = plotted.cursor;
    tip.hidden = idx === null || idx === undefined || left < 0;
    if (tip.hidden) return;
    const rows = names
      .map((name, index) => ({
        name,
        values: data.slice(1 + index * step, 1 + (index + 1) * step).map((column) => column[idx]),
      }))
      .filter(({ name, values }) => !hidden.has(name) && values[0] !== null && values[0] !== undefined)
      .sort((a, b) => b.values[0] - a.values[0]);
    const at = data[0][idx];
    tip.replaceChildren(
      h("strong", {}, when(at)),
      ...rows.map(({ name, values }) =>
        h(
          "div",
          {},
          palette.swatch(name),
          h("span", {}, name),
          h("b", {}, write(values[0])),
          banded ? h("small", {}, `${write(values[1])} to ${write(values[2])}`) : null,
        ),
      ),
      ...said(nearest(left)),
    );
    const right = left > plotted.over.clientWidth / 2;
    tip.classList.toggle("left", right);
    tip.style.setProperty("--x", `${right ? plotted.over.clientWidth - left : left}px`);
  }

  const when = (at) => (range[1] - range[0] > DAY ? `${date(at)}, ${shortTime(at)}` : time(at));

  /** The flag that a place is near, if any. */
  function nearest(left) {
    const far = ({ x }) => Math.abs(x - left);
    const near = flagged.filter((each) => far(each) <= NEAR_PX);
    return near.reduce((a, b) => (a && far(a) <= far(b) ? a : b), null);
  }

  function said(near) {
    if (!near) return [];
    const { all } = near;
    const lines = all.slice(-SAID).map((each) => h("p", {}, h("small", {}, when(each.at)), ` ${each.sentence}`));
    if (all.length > SAID) lines.unshift(h("p", {}, h("small", {}, `and ${all.length - SAID} earlier:`)));
    return [h("strong", { class: "changed" }, all.length > 1 ? `${all.length} changes` : "Changed"), ...lines];
  }

  function update(columns, from, to) {
    data = columns;
    range = [from, to];
    const drawn = columns.slice(1).some((column) => column.filter((value) => value !== null).length > 1);
    nothing.hidden = drawn;
    place.hidden = !drawn;
    if (!drawn) return;
    if (!plot) {
      plot = new globalThis.uPlot(options(), data, place);
      plot.over.append(flags, tip);
      return;
    }
    plot.setData(data);
  }

  function redraw() {
    plot?.destroy();
    plot = near = null;
    if (data) update(data, ...range);
  }

  const watch = new ResizeObserver(() => plot?.setSize({ width: Math.max(place.clientWidth, 120), height }));
  watch.observe(place);
  return {
    node,
    update,
    redraw,
    choose,
    destroy() {
      watch.disconnect();
      plot?.destroy();
    },
  };
}

/** Changes by the place where their flag stands: [{x, all}], oldest first. xOf: pixels of a time. */
export function clusters(changes, xOf) {
  const found = [];
  for (const change of [...changes].sort((a, b) => a.at - b.at)) {
    const x = xOf(change.at);
    const last = found.at(-1);
    if (last && x - last.x < APART_PX) last.all.push(change);
    else found.push({ x, all: [change] });
  }
  return found;
}

/**
 * Buttons that turn lines on and off, in all charts that share `hidden`. choose(name): the pointer or
 * the focus is on a button; null: no longer.
 */
export function legend(names, palette, hidden, { changed, choose }) {
  return h(
    "div",
    { class: "legend", role: "group", "aria-label": "Policies shown in the charts" },
    names.map((name) => {
      const button = h(
        "button",
        {
          type: "button",
          "aria-pressed": String(!hidden.has(name)),
          onclick: () => {
            if (!hidden.delete(name)) hidden.add(name);
            button.setAttribute("aria-pressed", String(!hidden.has(name)));
            changed();
          },
          onpointerenter: () => choose(name),
          onpointerleave: () => choose(null),
          onfocus: () => choose(name),
          onblur: () => choose(null),
        },
        palette.swatch(name),
        name,
      );
      return button;
    }),
  );
}

/** Choices of which one holds, as radio buttons that look like one control. */
export function choice(label, options, chosen, changed) {
  const name = `choice-${label.replace(/\W/g, "")}`;
  return h(
    "fieldset",
    { class: "choice" },
    h("legend", { class: "hidden" }, label),
    options.map(([value, text]) =>
      h(
        "label",
        {},
        h("input", { type: "radio", name, value, checked: value === chosen, onchange: () => changed(value) }),
        h("span", {}, text),
      ),
    ),
  );
}
