/** Against a running service (URL, of the Zooplus example; ARMS: its catalogue): real decisions. */
import assert from "node:assert/strict";
import { test } from "node:test";

import { createForage } from "../../service/http/static/sdk/forage.js";

const { URL: url, ARMS } = process.env;
const arms = JSON.parse(ARMS);
const context = { persona: "cat_connoisseur" };
const faults = [];
const connect = (more) =>
  createForage({ url, policy: "lints", context, budgetMs: 20_000, onError: (fault) => faults.push(fault), ...more });

function expectDecided(decision) {
  assert.equal(decision.fallback, false, decision.error?.message);
  assert.equal(decision.error, null);
  assert.ok(arms.includes(decision.arm), decision.arm);
  assert.ok(decision.propensity > 0 && decision.propensity <= 1);
  assert.equal(decision.arms[0], decision.arm);
  assert.equal(decision.ranking[0].propensity, decision.propensity);
  assert.match(decision.modelVersion, /^lints\/0@\d+$/);
  assert.equal(decision.policy, "lints");
  assert.equal(decision.logged, true);
  assert.ok(decision.decision.length > 100, "a sealed token");
  assert.ok(Date.parse(decision.reward_by) > Date.now());
}

test("it decides, and a reward of that counts once", async () => {
  const forage = connect();
  const decision = await forage.select();
  expectDecided(decision);
  assert.equal(await forage.reward(decision, 1), "accepted");
  assert.equal(await forage.reward(decision, 1), "duplicate");
  assert.equal(forage.pending(), 0);
  assert.deepEqual(faults, []);
});

for (const budgetMs of [20_000.73, 12_345, 2 ** 40, Infinity, undefined]) {
  test(`it decides within a budget of ${budgetMs} ms`, async () => {
    expectDecided(await connect().select({ budgetMs }));
  });
}

test("it decides where nothing draws but Math.random", async () => {
  const crypto = Object.getOwnPropertyDescriptor(globalThis, "crypto"); // Node 18 has none
  delete globalThis.crypto;
  try {
    const forage = connect();
    const [first, second] = [await forage.select(), await forage.select()];
    expectDecided(first);
    assert.notEqual(first.id, second.id);
  } finally {
    if (crypto) Object.defineProperty(globalThis, "crypto", crypto);
  }
});

test("the same key gives the same decision, another one another", async () => {
  const forage = connect();
  const [first, again, other] = [
    await forage.select({ idempotencyKey: "once" }),
    await forage.select({ idempotencyKey: "once" }),
    await forage.select(),
  ];
  assert.equal(first.id, again.id);
  assert.notEqual(first.id, other.id);
});

test("a ranking is rewarded by arm and by cascade", async () => {
  const forage = connect({ topK: 4 });
  const decision = await forage.select();
  expectDecided(decision);
  assert.equal(new Set(decision.arms).size, 4);
  assert.ok(decision.slate_propensity > 0);
  assert.equal(await forage.reward(decision, { [decision.arms[1]]: 0 }), "accepted");
  assert.equal(await forage.cascade(decision, decision.arms[2]), "accepted");
});

test("a decision that was kept as text is rewarded on a later page", async () => {
  const kept = JSON.stringify(await connect().select({ unit: "visitor-1" }));
  const later = connect();
  assert.equal(await later.reward(JSON.parse(kept), 1, { rewardId: "order-1" }), "accepted");
  assert.equal(await later.reward(JSON.parse(kept), 1, { rewardId: "order-1" }), "duplicate");
});

test("a deferred decision is activated once, or by its reward", async () => {
  const forage = connect({ deferred: true });
  const decision = await forage.select();
  expectDecided(decision);
  assert.equal(await forage.activate(decision), "activated");
  assert.equal(await forage.activate({ ...decision }), "duplicate");
  const other = await forage.select();
  assert.equal(await forage.reward(other, 0), "accepted");
  assert.equal(await forage.activate({ ...other }), "duplicate");
});

test("what a request excludes or does not want is not shown", async () => {
  const forage = connect({ topK: 2 });
  const decision = await forage.select({ only: [arms[0], arms[1], "unheard of"], exclude: [arms[1]] });
  expectDecided(decision);
  assert.deepEqual([decision.arms, decision.rules, decision.relaxed], [[arms[0]], ["exclude", "only"], []]);
});

test("twenty at once are twenty decisions", async () => {
  const forage = connect();
  const decisions = await Promise.all(Array.from({ length: 20 }, () => forage.select()));
  decisions.forEach(expectDecided);
  assert.equal(new Set(decisions.map((each) => each.id)).size, 20);
});

test("what browsers alone have is not missed", async () => {
  const forage = connect({ persist: true });
  const decision = await forage.select();
  const told = forage.reward(decision, 1);
  forage.leave();
  forage.close();
  assert.equal(await told, "accepted");
});

test("an option that is left undefined holds as it was given before", async () => {
  expectDecided(await connect().select({ context: undefined, policy: undefined, topK: undefined }));
});

test("a refusal falls back and says where the fault is", async () => {
  const decision = await connect({ fallback: "4" }).select({ context: {} });
  assert.equal(decision.fallback, true);
  assert.equal(decision.arm, "4");
  assert.equal(decision.error.reason, "http");
  assert.equal(decision.error.status, 422);
  assert.equal(decision.error.problem.errors[0].path, "context.persona");
  assert.equal(faults.pop(), decision.error);
});

test("a refused reward is let go and the next is sent", async () => {
  const forage = connect();
  const decision = await forage.select();
  const told = [forage.reward(decision, 7), forage.reward(decision, 1)];
  assert.deepEqual(await Promise.all(told), [null, "accepted"]);
});
