/* The shop's window. Everything that it asks of Forage goes through the SDK. */
import { loadForage } from "../sdk/loader.js";
import { Journal } from "./journal.js";
import { drawAll, fallenBack, notice, offerOf, option, persona as personaOf, show } from "./view.js";

const SLOTS = 4;
const BUDGET_MS = 1000;
const AGAIN_MS = 4000;
const LOOK_MS = 220;
const NEXT_MS = 160;

const at = (id) => document.getElementById(id);
const pause = (ms) => new Promise((done) => setTimeout(done, ms));

const file = (name) => fetch(new URL(name, import.meta.url));
const [shop, pictures] = await Promise.all([
  file("catalogue.json").then((found) => found.json()),
  file("pictures.svg").then((found) => found.text()),
]);
drawAll(pictures);
const journal = new Journal();
let forage = connect();
let page = { decision: null, left: new Map(), stops: [], number: 0 };
let shopper = null; // whoever clicks for you

function connect() {
  return loadForage({
    url: new URL("..", import.meta.url),
    key: sessionStorage.getItem("forage-key"),
    experiment: shop.experiment,
    topK: SLOTS,
    deferred: true, // whatever was not seen, nothing is learned of
    budgetMs: BUDGET_MS,
    fallback: shop.bestsellers,
    onError: () => {}, // the page says it
  });
}

const who = () => document.querySelector("#personas input:checked").value;

/** A page of recommendations; the latest that was asked for is shown. */
async function turn(said = "") {
  const number = ++page.number;
  const asked = who();
  at("offers").setAttribute("aria-busy", "true");
  const began = performance.now();
  const decision = await forage.select({ policy: at("policy").value, context: { persona: asked } });
  if (number !== page.number) return;
  page.stops.forEach((stop) => stop());
  const tookMs = performance.now() - began;
  page = { decision, left: new Map(), stops: [], number, persona: asked };
  const focused = at("offers").contains(document.activeElement);
  at("offers").replaceChildren(...decision.arms.map(place));
  at("offers").setAttribute("aria-busy", "false");
  at("offers").dataset.page = number;
  if (focused) at("offers").querySelector("button").focus();
  if (!decision.fallback) journal.shown(asked, categoryOf(decision.arm));
  show(decision, tookMs, journal.of(asked), shop.personas[asked].clicks);
  at("said").textContent = said;
  tell(decision);
}

const categoryOf = (arm) => shop.products[arm]?.category ?? "New";

function place(arm, slot) {
  const { decision } = page;
  const ranked = decision.ranking?.[slot];
  const offer = offerOf(arm, shop.products[arm], ranked?.propensity ?? null);
  const [take, pass] = offer.querySelectorAll("button");
  take.addEventListener("click", () => taken(arm));
  pass.addEventListener("click", () => passed(arm));
  page.left.set(arm, offer);
  const onSeen = () => offer.classList.add("seen");
  page.stops.push(forage.track(offer, decision, { arm, on: null, onSeen }));
  return offer;
}

/** A click: what stood above it was looked at and left. */
async function taken(arm) {
  const { decision, left, persona } = page;
  if (!left.has(arm)) return;
  left.get(arm).classList.add("taken");
  for (const [each] of left) {
    if (each === arm) break;
    journal.judged(persona, categoryOf(each), 0);
  }
  journal.judged(persona, categoryOf(arm), 1);
  left.clear();
  at("basket").value = Number(at("basket").value) + 1;
  await answered(forage.cascade(decision, arm));
  await turn(`${shop.products[arm]?.name ?? "It"} is in the basket. Here are the next four.`);
}

async function passed(arm) {
  const { decision, left, persona } = page;
  const offer = left.get(arm);
  if (!offer) return;
  left.delete(arm);
  journal.judged(persona, categoryOf(arm), 0);
  const others = [...left.values()];
  if (offer.contains(document.activeElement)) others[0]?.querySelectorAll("button")[1].focus();
  offer.classList.add("passed");
  for (const button of offer.querySelectorAll("button")) button.disabled = true;
  const sent = forage.reward(decision, { [arm]: 0 });
  if (others.length) return;
  await answered(sent);
  await turn("None of the four. Here are others.");
}

/** The next page should know of this one; where the service is gone it is not waited for. */
const answered = (sent) => Promise.race([sent, pause(BUDGET_MS)]);

/** Say what is amiss, and go on by itself once it is over. */
function tell(decision) {
  if (!decision.fallback) return notice(null);
  const { status } = decision.error;
  notice(fallenBack(decision.error, BUDGET_MS), {
    onKey: status === 401 || status === 403 ? enter : null,
    onAgain: () => turn(),
  });
  if (status !== undefined && status < 500) return stopShopper();
  const { number } = page;
  setTimeout(() => number === page.number && turn(), AGAIN_MS);
}

function enter(key) {
  sessionStorage.setItem("forage-key", key);
  forage.close();
  forage = connect();
  turn();
}

/** Clicks as the persona does on average, from the first product down. */
async function clickFor(token) {
  while (shopper === token) {
    await pause(LOOK_MS);
    if (page.decision.fallback) continue; // nobody learns from it: until the service is back
    const { clicks } = shop.personas[who()];
    for (const arm of [...page.left.keys()]) {
      if (shopper !== token || !page.left.has(arm)) break;
      if (Math.random() < (clicks[categoryOf(arm)] ?? 0)) {
        await taken(arm);
        break;
      }
      await passed(arm);
      await pause(NEXT_MS);
    }
  }
}

function stopShopper() {
  shopper = null;
  at("autoplay").setAttribute("aria-pressed", "false");
  at("autoplay").querySelector("span").textContent = "Let a shopper click for me";
  at("autoplay").querySelector("use").setAttribute("href", "#play");
}

function startShopper() {
  at("autoplay").setAttribute("aria-pressed", "true");
  at("autoplay").querySelector("span").textContent = "Stop the shopper";
  at("autoplay").querySelector("use").setAttribute("href", "#pause");
  shopper = {};
  clickFor(shopper);
}

at("policy").append(...shop.policies.map((name) => option(name, name === "auto")));
document.querySelector(".personas").append(
  ...Object.entries(shop.personas).map(([name, each], place) => personaOf(name, each, !place)),
);
at("personas").addEventListener("change", () => turn());
at("policy").addEventListener("change", () => turn());
at("autoplay").addEventListener("click", () => (shopper ? stopShopper() : startShopper()));
await turn();
