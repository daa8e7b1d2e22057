// Small pictures in cells: an interval on a scale that all rows share, a bar of a share.

import { h, svg } from "./dom.js";

const WIDTH = 120;
const HEIGHT = 16;

/** mean and its interval between low and high of the column's scale. */
export function whisker({ mean, interval }, scale, color) {
  if (mean === null || !interval) return null;
  const wide = scale.high - scale.low || 1;
  const at = (value) => 4 + ((WIDTH - 8) * (Math.min(Math.max(value, scale.low), scale.high) - scale.low)) / wide;
  const [low, high] = interval.map(at);
  return svg(
    "svg",
    {
      class: "whisker",
      viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
      width: WIDTH,
      height: HEIGHT,
      "aria-hidden": "true",
      "--color": color,
    },
    svg("line", { class: "axis", x1: 0, x2: WIDTH, y1: HEIGHT / 2, y2: HEIGHT / 2 }),
    svg("line", { class: "range", x1: low, x2: high, y1: HEIGHT / 2, y2: HEIGHT / 2 }),
    svg("circle", { cx: at(mean), cy: HEIGHT / 2, r: 3.5 }),
  );
}

/** The scale of all intervals, with room at its ends. */
export function scaleOf(intervals) {
  const known = intervals.filter(Boolean);
  if (!known.length) return { low: 0, high: 1 };
  return { low: Math.min(...known.map((each) => each[0])), high: Math.max(...known.map((each) => each[1])) };
}

export function bar(share, color = "var(--accent)") {
  const width = `${(100 * Math.min(Math.max(share ?? 0, 0), 1)).toFixed(1)}%`;
  return h("span", { class: "meter", "aria-hidden": "true", "--color": color, "--width": width });
}
