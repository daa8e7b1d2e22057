// Colours of policies, which base.css holds for either theme.

import { swatch } from "./dom.js";

const COLORS = 7;

export const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** By a policy's name. The control is grey and dashed; policies beyond seven are dotted. */
export function palette(names, control) {
  const variable = (name) => (name === control ? "--control" : `--series-${names.indexOf(name) % COLORS}`);
  const color = (name) => `var(${variable(name)})`;
  return {
    color,
    /** The same as a canvas wants it. */
    ink: (name) => css(variable(name)),
    dash(name) {
      if (name === control) return [7, 5];
      return names.indexOf(name) < COLORS ? undefined : [2, 3];
    },
    swatch: (name) => swatch(color(name), name === control),
  };
}

/** That of the experiment of the page. others: policies that never ran. */
export function paletteOf(app, others = []) {
  const own = app.status.experiments.find((each) => each.name === app.name);
  return palette([...(own?.policies ?? []), ...others], own?.control);
}

export const isDark = () => {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
};
