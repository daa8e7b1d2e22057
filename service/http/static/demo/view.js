/** What the page shows: elements from values, no state. */
import { RECENT } from "./journal.js";

const at = (id) => document.getElementById(id);
const slug = (category) => category.toLowerCase().replace(/\W+/g, "-");
const percent = (share) =>
  share >= 0.1 ? `${Math.round(100 * share)} %` : `${(100 * share).toPrecision(2)} %`;

function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

function picture(name) {
  const space = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(space, "svg");
  svg.setAttribute("aria-hidden", "true");
  const use = document.createElementNS(space, "use");
  use.setAttribute("href", `#${name}`);
  svg.append(use);
  return svg;
}

/** Take the drawings into the page: they are there when the service is not. */
export function drawAll(source) {
  const drawings = new DOMParser().parseFromString(source, "image/svg+xml").documentElement;
  drawings.setAttribute("class", "drawings");
  drawings.setAttribute("aria-hidden", "true");
  document.body.prepend(document.importNode(drawings, true));
}

export const option = (name, selected) =>
  element("option", { value: name, textContent: name, selected });

export function persona(name, { title, about, picture: drawn }, checked) {
  const input = element("input", { type: "radio", name: "persona", value: name, checked });
  const text = element("span", {}, element("strong", { textContent: title }));
  text.append(element("span", { textContent: about }));
  return element("label", { className: "persona" }, input, picture(drawn), text);
}

/** A product's card; propensity: null where nobody decided. */
export function offerOf(arm, product, propensity) {
  const { name, category, price } = product ?? { name: `Product ${arm}`, category: "New" };
  const title = element("h3", { id: `product-${arm}`, textContent: name });
  const chance = propensity === null
    ? "a bestseller"
    : `shown with a chance of ${percent(propensity)}`;
  const buttons = element("div", { className: "buttons" });
  for (const [text, kind] of [["Add to basket", "main"], ["Not for me", ""]]) {
    const button = element("button", { type: "button", textContent: text, className: kind });
    button.setAttribute("aria-describedby", title.id);
    buttons.append(button);
  }
  const text = element(
    "div", { className: "text" },
    element("div", { className: "category", textContent: category }),
    title,
    element("div", { className: "price", textContent: price ? `€ ${price.toFixed(2)}` : "" }),
    element("div", { className: "chance", textContent: chance }),
    buttons,
  );
  const drawn = element("div", { className: "picture" }, picture(product ? slug(category) : "parcel"));
  const turn = (7 * Number(arm)) % 5 || 0; // so that two of a kind are not the same picture
  drawn.firstChild.style.transform = `rotate(${6 * turn - 12}deg)`;
  drawn.firstChild.style.filter = `hue-rotate(${9 * turn - 18}deg)`;
  const card = element("article", { className: `offer ${slug(category)}` }, drawn, text);
  card.setAttribute("aria-labelledby", title.id);
  Object.assign(card.dataset, { arm, category });
  return card;
}

/** The column beside the offers. */
export function show(decision, tookMs, visit, clicks) {
  const rows = decision.fallback
    ? [["Decided by", "nobody: the fallback"], ["Reason", decision.error.message]]
    : [
        ["Policy", decision.policy],
        ["Model version", decision.modelVersion],
        ["First place's chance", percent(decision.propensity)],
        ["This ranking's chance", Math.exp(decision.slate_log_propensity).toPrecision(2)],
        ["Decision", decision.id],
        ["Written to the log", decision.logged ? "yes" : "not yet: the log is gone"],
      ];
  rows.push(["Answer after", `${Math.round(tookMs)} ms`], ["Pages seen", visit.pages]);
  at("decision").replaceChildren(
    ...rows.flatMap(([name, value]) => [
      element("dt", { textContent: name }),
      element("dd", { textContent: value, title: value, className: name === "Decision" ? "id" : "" }),
    ]),
  );
  const recent = visit.firsts.slice(-RECENT);
  const shares = Object.keys(clicks).map((category) => {
    const share = recent.filter((each) => each === category).length / (recent.length || 1);
    return [category, share, visit.tallies.get(category) ?? { seen: 0, clicks: 0 }, clicks[category]];
  });
  at("strip").replaceChildren(...visit.firsts.map((each) => element("i", { className: slug(each), title: each })));
  const [most] = [...shares].sort((one, other) => other[1] - one[1]);
  at("strip").setAttribute(
    "aria-label",
    recent.length ? `Of the last ${recent.length} pages ${percent(most[1])} begin with ${most[0]}` : "No page yet",
  );
  at("shares").tBodies[0].replaceChildren(...shares.map(row));
}

function row([category, share, { seen, clicks }, truth]) {
  const bar = element("meter", { min: 0, max: 1, value: share, textContent: percent(share) });
  bar.setAttribute("aria-label", `${category}: share of first places`);
  const name = element("th", { scope: "row", textContent: category });
  const cell = element("td", {}, bar, `${Math.round(100 * share)} %`);
  const made = element("tr", { className: slug(category) }, name, cell);
  made.append(element("td", { textContent: seen ? `${clicks}/${seen}` : "–" }));
  made.append(element("td", { textContent: `${Math.round(100 * truth)} %` }));
  Object.assign(made.dataset, { category, share });
  return made;
}

/** In words what kept the service from deciding. */
export function fallenBack({ reason, status, problem }, budgetMs) {
  const shown = "These are our bestsellers instead.";
  if (status === 401 || status === 403) return `This service wants a key that may select. ${shown}`;
  if (reason === "timeout") return `Forage did not answer within ${budgetMs} ms. ${shown}`;
  if (reason === "network") return `Forage cannot be reached. ${shown}`;
  return `Forage refused to decide (${status}: ${problem?.detail ?? "no reason given"}). ${shown}`;
}

/** Above the offers; null takes it away. */
export function notice(text, { onKey = null, onAgain = null } = {}) {
  at("notice").hidden = text === null;
  if (text === null) return;
  const parts = [element("span", { textContent: text })];
  if (onKey) {
    const input = element("input", { type: "password", autocomplete: "off", required: true });
    input.setAttribute("aria-label", "Browser key");
    input.placeholder = "Browser key";
    const form = element("form", {}, input, element("button", { textContent: "Use it" }));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      onKey(input.value);
    });
    parts.push(form);
  } else {
    const again = element("button", { type: "button", textContent: "Try again" });
    again.addEventListener("click", onAgain);
    parts.push(again);
  }
  at("notice").replaceChildren(...parts);
}
