// From samples of sums to what is drawn: means and shares over time, on one axis of times.
// The interval is the service's own (service/state/tallies.py): Agresti & Coull's four observations added.

const Z = 1.96;

/** Center and half of a 95 percent interval of a mean; scale: {low, high, aggregation}. */
export function interval(count, total, squares, scale) {
  if (!count) return null;
  const bounded = scale.aggregation !== "sum";
  const { low, high } = scale;
  const n = count + (bounded ? 4 : 0);
  const mean = (total + (bounded ? 2 * (low + high) : 0)) / n;
  const square = (squares + (bounded ? 2 * (low * low + high * high) : 0)) / n;
  const half = Z * Math.sqrt(Math.max(square - mean * mean, 0) / n);
  return bounded ? [Math.max(low, mean - half), Math.min(high, mean + half)] : [mean - half, mean + half];
}

/** Samples of one policy, in columns, kept and added to. */
export class Samples {
  constructor() {
    this.columns = {};
  }

  get length() {
    return this.columns.at?.length ?? 0;
  }

  get last() {
    return this.length ? this.columns.at[this.length - 1] : 0;
  }

  /** Add later ones; what is older than `from` goes. Sums that fell are those of a new policy. */
  add(columns, from) {
    const { name: _, ...news } = columns;
    const fell = news.count.length && this.length && news.count[0] < this.columns.count[this.length - 1];
    for (const [key, values] of Object.entries(news)) {
      const kept = fell ? [] : (this.columns[key] ?? []);
      this.columns[key] = kept.concat(values);
    }
    const start = this.columns.at.findIndex((at) => at >= from);
    if (start <= 0) return;
    for (const key of Object.keys(this.columns)) this.columns[key] = this.columns[key].slice(start);
  }
}

/** Sums between each sample and the one about `seconds` before it, or the first; all where 0. */
function differences(columns, key, seconds) {
  const values = columns[key];
  if (!seconds) return values;
  let back = 0;
  return values.map((value, place) => {
    while (columns.at[back + 1] <= columns.at[place] - seconds) back += 1;
    return place - back >= 2 ? value - values[back] : null;
  });
}

/** {at, mean, low, high}: of all rewards so far, or of the last `seconds` alone. */
export function means(columns, scale, seconds) {
  const counts = differences(columns, "count", seconds);
  const totals = differences(columns, "total", seconds);
  const squares = differences(columns, "squares", seconds);
  const found = { at: columns.at, mean: [], low: [], high: [] };
  counts.forEach((count, place) => {
    const bounds = interval(count, totals[place], squares[place], scale);
    found.mean.push(count ? totals[place] / count : null);
    found.low.push(bounds ? bounds[0] : null);
    found.high.push(bounds ? bounds[1] : null);
  });
  return found;
}

/** Each policy's part of the decisions of the last `seconds`, by policy: {at, values}. */
export function shares(all, seconds) {
  const counted = all.map((columns) => ({ at: columns.at, values: differences(columns, "decisions", seconds) }));
  const sums = new Map();
  for (const { at, values } of counted) {
    values.forEach((value, place) => sums.set(at[place], (sums.get(at[place]) ?? 0) + Math.max(value ?? 0, 0)));
  }
  return counted.map(({ at, values }) => ({
    at,
    values: values.map((value, place) =>
      value === null || !sums.get(at[place]) ? null : Math.max(value, 0) / sums.get(at[place]),
    ),
  }));
}

/** Lines of {at, ...columns of values} on one axis: [times, ...values], null where there is none. */
export function align(lines) {
  const times = [...new Set(lines.flatMap((line) => line.at))].sort((a, b) => a - b);
  const placeOf = new Map(times.map((at, place) => [at, place]));
  const columns = lines.flatMap((line) =>
    line.columns.map((values) => {
      const column = new Array(times.length).fill(null);
      line.at.forEach((at, place) => {
        column[placeOf.get(at)] = values[place];
      });
      return column;
    }),
  );
  return [times, ...columns];
}
