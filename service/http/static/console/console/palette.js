// Colours of policies, which base.css holds for either theme. Beyond eight, lines are dashed.

const COLORS = 8;

export const colorOf = (index) => `var(--series-${index % COLORS})`;

export const dashOf = (index) => (index < COLORS ? undefined : [6, 4]);

export const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** The same colours as a canvas wants them. */
export const inkOf = (index) => css(`--series-${index % COLORS}`);

export const isDark = () => {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
};
