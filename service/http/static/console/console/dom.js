// Elements from data. Whatever comes from the service is text here, never markup.

const SVG = "http://www.w3.org/2000/svg";

/**
 * An element. Properties: on... listeners, class, data (an object), --custom properties, else
 * attributes; null, undefined and false leave an attribute out. Children: nodes, strings, lists.
 */
export function h(tag, props = {}, ...children) {
  return fill(document.createElement(tag), props, children);
}

export function svg(tag, props = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), props, children);
}

function fill(node, props, children) {
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "data") Object.assign(node.dataset, value);
    else if (name.startsWith("--")) node.style.setProperty(name, value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/** Set an element's text where it differs: what is selected stays selected. */
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Text with names in backticks, as code: a name is text. */
export function coded(text) {
  return text.split("`").map((part, index) => (index % 2 ? h("code", {}, part) : part));
}

export function swatch(color, dashed = false) {
  return h("span", { class: dashed ? "swatch dashed" : "swatch", "--color": color, "aria-hidden": "true" });
}

/** A name and its value, for lists of facts. */
export function fact(name, value, hint = null) {
  const long = typeof value === "string" && value.length > 11;
  return h("div", { class: "fact", title: hint }, h("dt", {}, name), h("dd", { class: long ? "text" : null }, value));
}

export function section(title, ...children) {
  return h("section", { class: "card" }, h("h2", {}, title), ...children);
}
