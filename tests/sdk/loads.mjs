/** The loader, with imports that fail, hang, or come late. */
import assert from "node:assert/strict";
import { test } from "node:test";

import { loadForage } from "../../service/http/static/sdk/loader.js";

const LATE_MS = 5_000;
const url = "http://127.0.0.1:8000/";
const DECIDED = { arm: "7", fallback: false, decision: "t" };

/** What the SDK would be; `calls` of it. */
function fake() {
  const calls = [];
  const note = (name, result) => (...given) => {
    calls.push([name, ...given]);
    return result;
  };
  const made = {
    select: note("select", Promise.resolve(DECIDED)),
    reward: note("reward", Promise.resolve("accepted")),
    cascade: note("cascade", Promise.resolve("accepted")),
    activate: note("activate", Promise.resolve("activated")),
    track: note("track", () => calls.push(["stopped"])),
    leave: note("leave"),
    close: note("close"),
    pending: () => 0,
  };
  return { calls, module: { createForage: (options) => (calls.push(["created", options]), made) } };
}

const failing = async () => {
  throw new TypeError("Failed to fetch dynamically imported module");
};

function expectFallback(decision, reason) {
  assert.equal(decision.fallback, true);
  assert.deepEqual([decision.arm, decision.arms, decision.decision], ["4", ["4", "9"], null]);
  assert.equal(decision.error.reason, reason);
  assert.equal(decision.error.problem, null);
}

test("where the import fails select falls back at once, and is told", async () => {
  const told = [];
  const options = { url, fallback: ["4", "9"], budgetMs: 60_000, onError: (fault) => told.push(fault) };
  const forage = loadForage(options, failing);
  const decision = await forage.select();
  expectFallback(decision, "network");
  assert.deepEqual(told, [decision.error]);
  for (const call of [forage.reward(decision, 1), forage.cascade(decision), forage.activate(decision)]) {
    assert.equal(await call, null);
  }
  assert.equal(forage.pending(), 0);
});

test("a page without a key has no key that cannot be sent", async () => {
  for (const key of [undefined, null, ""]) {
    const { module } = fake();
    assert.equal(await loadForage({ url, key }, async () => module).select(), DECIDED);
  }
  assert.throws(() => loadForage({ url, key: "fk_\u{1f511}" }, failing), TypeError);
});

test("where it hangs select falls back within its budget", async () => {
  const forage = loadForage({ url, fallback: ["4", "9"], budgetMs: 60.5 }, () => new Promise(() => {}));
  const began = performance.now();
  expectFallback(await forage.select(), "timeout");
  expectFallback(await forage.select({ budgetMs: 5.25 }), "timeout");
  assert.ok(performance.now() - began < LATE_MS);
});

test("where it is there select is the SDK's, with what is left of the budget", async () => {
  const { calls, module } = fake();
  const options = { url, budgetMs: 60_000 };
  const forage = loadForage(options, async () => module);
  assert.equal(await forage.select({ topK: 2 }), DECIDED);
  const [[, given], [name, asked]] = calls;
  assert.equal(given, options);
  assert.equal(name, "select");
  assert.equal(asked.topK, 2);
  assert.ok(asked.budgetMs > 0 && asked.budgetMs <= 60_000);
  assert.equal(await forage.reward(DECIDED, 1, { rewardId: "r" }), "accepted");
  assert.deepEqual(calls.at(-1), ["reward", DECIDED, 1, { rewardId: "r" }]);
});

test("where it comes late the page has its fallback, and decisions from then on", async () => {
  const { calls, module } = fake();
  let come;
  const forage = loadForage({ url, fallback: ["4", "9"], budgetMs: 1 }, () => new Promise((done) => (come = done)));
  expectFallback(await forage.select(), "timeout");
  const kept = forage.reward(DECIDED, 1); // of an earlier page
  const stop = forage.track("element", DECIDED, { on: null });
  const gone = forage.track("gone", DECIDED);
  gone();
  assert.equal(forage.pending(), 1);
  come(module);
  assert.equal(await kept, "accepted");
  assert.deepEqual(calls.slice(1), [["track", "element", DECIDED, { on: null }], ["reward", DECIDED, 1]]);
  stop();
  assert.deepEqual(calls.at(-1), ["stopped"]);
  assert.equal(await forage.select(), DECIDED);
  assert.equal(forage.pending(), 0);
});

test("after a failure the next call asks under another address", async () => {
  const { module } = fake();
  const asked = [];
  const load = (address) => (asked.push(address), asked.length === 1 ? failing() : Promise.resolve(module));
  const forage = loadForage({ url, fallback: ["4", "9"], budgetMs: 60_000 }, load);
  expectFallback(await forage.select(), "network");
  assert.equal(await forage.select(), DECIDED);
  assert.deepEqual(asked, [`${url}sdk/forage.js`, `${url}sdk/forage.js?2`]);
});

test("a reward of an earlier page waits until the service is back", async () => {
  const { module } = fake();
  let tries = 0;
  const load = () => (++tries < 2 ? failing() : Promise.resolve(module));
  const forage = loadForage({ url }, load);
  assert.equal(await forage.activate(DECIDED), "activated");
  assert.equal(tries, 2);
});

test("one that is closed closes what comes late", async () => {
  const { calls, module } = fake();
  const forage = loadForage({ url, fallback: "4", budgetMs: 60_000 }, async () => module);
  forage.close();
  await forage.select();
  assert.deepEqual(calls[1], ["close"]);
});

test("a script that is not the SDK, and a callback that throws, leave the fallback", async (t) => {
  t.mock.method(console, "error", () => {});
  const onError = () => {
    throw new Error("of the page");
  };
  const forage = loadForage({ url, fallback: ["4", "9"], onError, budgetMs: 60_000 }, async () => ({}));
  expectFallback(await forage.select(), "network");
});

test("what a caller gives wrongly throws nothing", async () => {
  const { module } = fake();
  let come;
  const forage = loadForage({ url, fallback: ["4", "9"], budgetMs: 1 }, () => new Promise((done) => (come = done)));
  expectFallback(await forage.select(null), "timeout");
  expectFallback(await forage.select({ budgetMs: Symbol("ms") }), "timeout");
  const kept = forage.reward(undefined, 1);
  come(module);
  assert.equal(await kept, "accepted", "the SDK says what it is");
});

test("a load that throws leaves the fallback", async () => {
  const load = () => {
    throw null;
  };
  expectFallback(await loadForage({ url, fallback: ["4", "9"], budgetMs: 60_000 }, load).select(), "network");
});

test("what is no address, and a key that no header takes, are said at once", () => {
  assert.throws(() => loadForage({ url: "shop" }, failing), TypeError);
  assert.throws(() => loadForage({ url, key: "k\u0000" }, failing), TypeError);
});
