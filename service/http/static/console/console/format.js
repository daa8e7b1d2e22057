// Numbers and times as people read them.

const whole = new Intl.NumberFormat("en");
const clock = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const minutes = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit" });
const day = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });

export const NONE = "–";

const known = (value) => value !== null && value !== undefined && Number.isFinite(value);

export const count = (value) => (known(value) ? whole.format(Math.round(value)) : NONE);

/** A reward: four digits, as the reports print it. */
export const reward = (value) => (known(value) ? minus(value.toFixed(4)) : NONE);

export const signed = (value, digits = 4) =>
  known(value) ? (value >= 0 ? "+" : "") + minus(value.toFixed(digits)) : NONE;

export const percent = (value, digits = 1) => (known(value) ? `${(100 * value).toFixed(digits)} %` : NONE);

/** A share that somebody chose, with the digits it has: 12.5 %. */
export const chosen = (share) => (known(share) ? `${figure(100 * share)} %` : NONE);

/** Three digits that matter, whatever the size. */
export function figure(value) {
  if (!known(value)) return NONE;
  const size = Math.abs(value);
  if (size !== 0 && (size < 0.001 || size >= 1e6)) return minus(value.toExponential(1).replace("e+", "e"));
  if (size >= 1000) return count(value);
  return minus(Number(value.toPrecision(3)).toString());
}

export const chance = (value) =>
  known(value) ? (value < 0.001 && value > 0 ? figure(value) : value.toFixed(3)) : NONE;

/** Digits after the point, so that half of an interval has two that matter. */
function digitsOf(interval) {
  if (!interval) return 4;
  const half = (interval[1] - interval[0]) / 2;
  return half > 0 ? Math.min(Math.max(1 - Math.floor(Math.log10(half)), 0), 6) : 4;
}

/** A measured value, with as many digits as its interval knows. */
export const measured = (value, interval) => (known(value) ? minus(value.toFixed(digitsOf(interval))) : NONE);

export const within = (interval, digits = digitsOf(interval)) =>
  interval ? interval.map((end) => minus(end.toFixed(digits))).join(" to ") : NONE;

export function span(seconds) {
  if (!known(seconds)) return NONE;
  if (seconds < 1) return "under 1 s";
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  if (seconds < 129_600) return `${(seconds / 3600).toFixed(1)} h`;
  return `${Math.round(seconds / 86_400)} d`;
}

/** at: unix seconds. */
export const time = (at) => clock.format(at * 1000);
export const shortTime = (at) => minutes.format(at * 1000);
export const date = (at) => day.format(at * 1000);
export const moment = (at) => `${date(at)}, ${time(at)}`;

function minus(text) {
  return text.replace("-", "\u2212");
}
