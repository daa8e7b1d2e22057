/** Against servers that are ill: the fallback, within the budget; and what a retry mends. */
import assert from "node:assert/strict";
import { once } from "node:events";
import { createServer } from "node:http";
import { test } from "node:test";

import { createForage } from "../../service/http/static/sdk/forage.js";

const LATE_MS = 5_000; // what a busy machine may add: no budget here is as long
const DECIDED = { arm: "7", ranking: [{ arm: "7", propensity: 0.5 }], decision_id: "t", model_version: "m/0@1" };

/** A server for one test; its address. */
async function answering(t, answer) {
  const server = createServer((request, response) => {
    const parts = [];
    request.on("data", (part) => parts.push(part));
    request.on("end", () => answer(request, response, Buffer.concat(parts).toString()));
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  t.after(() => {
    server.closeAllConnections();
    server.close();
  });
  return `http://127.0.0.1:${server.address().port}`;
}

const send = (response, status, body, headers = {}) =>
  response.writeHead(status, { "Content-Type": "application/json", ...headers }).end(body);

/** reasons: of one that is tried again the last try may have been out of time */
async function expectFallback(url, reasons, budgetMs = 60.5) {
  const told = [];
  const forage = createForage({ url, fallback: ["4", "9"], budgetMs, onError: (fault) => told.push(fault) });
  const began = performance.now();
  const decision = await forage.select();
  assert.ok(performance.now() - began < Math.max(0, budgetMs || 0) + LATE_MS);
  assert.equal(decision.fallback, true);
  assert.equal(decision.arm, "4");
  assert.deepEqual(decision.arms, ["4", "9"]);
  assert.equal(decision.decision, null);
  assert.ok(reasons.includes(decision.error.reason), decision.error.message);
  assert.equal(decision.error.problem ?? null, decision.error.problem);
  assert.deepEqual(told, [decision.error]);
  assert.equal(await forage.reward(decision, 1), null, "of what nobody decided nothing is learned");
}

test("a server that does not answer", async (t) => {
  await expectFallback(await answering(t, () => {}), ["timeout"]);
});

test("an answer that stops half-way", async (t) => {
  const url = await answering(t, (_, response) => response.writeHead(200, { "Content-Length": "9" }).write('{"a'));
  await expectFallback(url, ["timeout"]);
});

for (const [name, body] of [["a page", "<html>"], ["null", "null"], ["other JSON", '{"ok": true}']]) {
  test(`200 with ${name}, as of a proxy`, async (t) => {
    const url = await answering(t, (_, response) => send(response, 200, body));
    await expectFallback(url, ["network", "timeout"], 300);
  });
}

for (const body of ["", "<html>", '{"errors": "many"}', "null"]) {
  test(`503 with ${JSON.stringify(body)}`, async (t) => {
    const url = await answering(t, (_, response) => send(response, 503, body, { "Retry-After": "99" }));
    await expectFallback(url, ["http"], 20_000);
  });
}

test("nobody listens", async () => {
  const server = createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address();
  await new Promise((closed) => server.close(closed));
  await expectFallback(`http://127.0.0.1:${port}`, ["network", "timeout"], 300);
});

for (const budgetMs of [0, 0.4, -5, NaN]) {
  test(`no time at all: a budget of ${budgetMs} ms`, async (t) => {
    await expectFallback(await answering(t, () => {}), ["timeout"], budgetMs);
  });
}

test("a callback that throws does not keep the page from its fallback", async (t) => {
  const said = t.mock.method(console, "error", () => {});
  const url = await answering(t, (_, response) => send(response, 422, "{}"));
  const onError = () => {
    throw new Error("of the page");
  };
  const forage = createForage({ url, fallback: "4", budgetMs: 10_000, onError });
  assert.equal((await forage.select()).arm, "4");
  const decided = { decision: "t", fallback: false };
  assert.deepEqual(await Promise.all([forage.reward(decided, 1), forage.reward(decided, 1)]), [null, null]);
  assert.equal(said.mock.callCount(), 3);
});

test("an error is asked again within the budget, under the same key", async (t) => {
  const keys = [];
  const url = await answering(t, (request, response) => {
    keys.push(request.headers["idempotency-key"]);
    if (keys.length === 1) send(response, 503, "{}");
    else send(response, 200, JSON.stringify(DECIDED));
  });
  const decision = await createForage({ url, budgetMs: 20_000 }).select();
  assert.equal(decision.fallback, false, decision.error?.message);
  assert.deepEqual([decision.arm, decision.propensity ?? 0.5], ["7", 0.5]);
  assert.equal(keys.length, 2);
  assert.equal(keys[0], keys[1]);
});

test("a reward is sent until it is answered, and in order", async (t) => {
  const asked = [];
  const url = await answering(t, (request, response, body) => {
    asked.push(JSON.parse(body).decision_id);
    if (asked.length === 1) request.socket.destroy();
    else send(response, 200, '{"status": "accepted"}');
  });
  const forage = createForage({ url });
  const told = ["one", "two"].map((decision) => forage.reward({ decision, fallback: false }, 1));
  assert.equal(forage.pending(), 2);
  assert.deepEqual(await Promise.all(told), ["accepted", "accepted"]);
  assert.deepEqual(asked, ["one", "one", "two"]);
});

test("what is no address is said at once", () => {
  assert.throws(() => createForage({ url: "shop" }), TypeError);
});
