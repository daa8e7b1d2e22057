/** Against servers that are ill: the fallback, within the budget; and what a retry mends. */
import assert from "node:assert/strict";
import { once } from "node:events";
import { createServer } from "node:http";
import { test } from "node:test";

import { createForage } from "../../service/http/static/sdk/forage.js";

const LATE_MS = 5_000; // what a busy machine may add: no budget here is as long
const DECIDED = {
  id: "d", decision_id: "t", arm: "7", propensity: 0.5, ranking: [{ arm: "7", propensity: 0.5 }],
  slate_propensity: null, slate_log_propensity: Math.log(0.5), experiment: "shop", policy: "m",
  model_version: "m/0@1", logged: true,
};

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

for (const body of [
  "", "<html>", '{"errors": "many"}', "null", '{"title": "busy", "errors": [null, 5], "detail": [1]}',
  '{"title": "busy", "errors": [{"path": {"toString": 5}, "message": {}}], "detail": {"toString": 5}}',
]) {
  test(`503 with ${JSON.stringify(body)}`, async (t) => {
    const url = await answering(t, (_, response) => send(response, 503, body, { "Retry-After": "99" }));
    await expectFallback(url, ["http"], 20_000);
  });
}

/** Members of an answer that are wrong, and so the whole answer. */
const WRONG = {
  "no ranking": { ranking: undefined },
  "a ranking that is none": { ranking: 5 },
  "an empty ranking": { ranking: [] },
  "a slot that is none": { ranking: [null] },
  "more slots than were asked for": { ranking: [{ arm: "7", propensity: 0.5 }, { arm: "8", propensity: 0.5 }] },
  "an arm that was not asked for": { arm: "9", ranking: [{ arm: "9", propensity: 0.5 }] },
  "another arm than the ranking's": { arm: "8" },
  "another propensity than the ranking's": { propensity: 0.25 },
  "a propensity of 0": { propensity: 0, ranking: [{ arm: "7", propensity: 0 }] },
  "a negative propensity": { propensity: -0.5, ranking: [{ arm: "7", propensity: -0.5 }] },
  "a propensity above 1": { propensity: 1.5, ranking: [{ arm: "7", propensity: 1.5 }] },
  "no propensity": { propensity: null, ranking: [{ arm: "7", propensity: null }] },
  "no token": { decision_id: undefined },
  "no policy": { policy: 5 },
  "an endless logarithm": { slate_log_propensity: null },
  "a slate of more than 1": { slate_propensity: 2 },
  "logged that is no boolean": { logged: "yes" },
  "rules that are no list": { rules: "in_stock" },
  "a rule without a name": { relaxed: [null] },
};

for (const [name, wrong] of Object.entries(WRONG)) {
  test(`200 with ${name}`, async (t) => {
    let asked = 0;
    const url = await answering(t, (_, response) => {
      if (++asked === 1) send(response, 200, JSON.stringify({ ...DECIDED, ...wrong }));
      else send(response, 422, '{"title": "refused"}');
    });
    const forage = createForage({ url, fallback: "4", budgetMs: 20_000, onError: () => {} });
    const decision = await forage.select({ arms: ["7", { id: "8" }] });
    assert.equal(decision.arm, "4", "as of a proxy: it was asked again");
    assert.equal(decision.error.status, 422);
  });
}

for (const wish of [{ exclude: ["7"] }, { only: ["8"] }, { arms: ["8"] }]) {
  test(`an arm against ${JSON.stringify(wish)} is taken only in place of arms that are not eligible`, async (t) => {
    const answers = [DECIDED, { ...DECIDED, rules: ["if_empty"] }];
    const url = await answering(t, (_, response) => send(response, 200, JSON.stringify(answers.shift())));
    const decision = await createForage({ url, fallback: "4", budgetMs: 20_000 }).select(wish);
    assert.deepEqual([decision.arm, decision.rules, decision.relaxed], ["7", ["if_empty"], []]);
    assert.equal(answers.length, 0, "the first one was not taken");
  });
}

test("an answer without end is not read to its end", async (t) => {
  const url = await answering(t, (_, response) => {
    response.writeHead(200, { "Content-Type": "application/json" });
    const more = () => {
      while (!response.destroyed && response.write(" ".repeat(65_536)));
    };
    response.on("drain", more);
    more();
  });
  await expectFallback(url, ["network", "timeout"], 300);
});

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

/** Calls of `console`, which print nothing. */
function consoleOf(t) {
  const said = [];
  for (const name of ["log", "info", "warn", "error"]) {
    t.mock.method(console, name, (...words) => said.push([name, ...words]));
  }
  return said;
}

/** Calls with what they cannot take, and what is said of each. */
const circular = {};
circular.self = circular;
const DECISION = { id: "d", decision: "t", experiment: "shop", fallback: false, deferred: true, arms: ["7"] };
const MISUSES = [
  ["reward: no decision", (forage) => forage.reward(undefined, 1)],
  ["reward: no decision", (forage) => forage.reward(null, 1)],
  ["reward: no decision", (forage) => forage.reward("token", 1)],
  ["reward: no decision", (forage) => forage.reward(5, 1)],
  ["reward: no decision", (forage) => forage.reward({}, 1)],
  ["reward: no decision", (forage) => forage.reward(forage.select(), 1)],
  ["reward: a reward is", (forage) => forage.reward(DECISION)],
  ["reward: a reward is", (forage) => forage.reward(DECISION, NaN)],
  ["reward: a reward is", (forage) => forage.reward(DECISION, "1")],
  ["reward: Do not know how to serialize a BigInt", (forage) => forage.reward(DECISION, { 7: 1n })],
  ["reward: Converting circular", (forage) => forage.reward(DECISION, circular)],
  ["cascade: no decision", (forage) => forage.cascade()],
  ["cascade: `clicked` is", (forage) => forage.cascade(DECISION, 7)],
  ["activate: no decision", (forage) => forage.activate()],
  ["activate: no decision", (forage) => forage.activate(Symbol("decision"))],
];

for (const [message, call] of MISUSES) {
  test(`${call.toString().slice(12)} is told and throws nothing`, async (t) => {
    const url = await answering(t, (_, response) => send(response, 200, JSON.stringify(DECIDED)));
    const told = [], said = consoleOf(t);
    const forage = createForage({ url, onError: (fault) => told.push(fault) });
    assert.equal(await call(forage), null);
    assert.equal(forage.pending(), 0);
    assert.deepEqual(told.map((fault) => fault.reason), ["argument"]);
    assert.ok(told[0].message.startsWith(message), told[0].message);
    assert.deepEqual(said, [], "with onError nothing goes to the console");
    assert.equal(await call(createForage({ url })), null);
    assert.deepEqual(said.map(([name]) => name), ["warn"], "without it the console is told");
  });
}

const ASKED = {
  "a context that goes round": { context: circular },
  "a context with a BigInt": { context: { age: 3n } },
  "a symbol for a budget": { budgetMs: Symbol("ms") },
  "a key that no header takes": { idempotencyKey: "a\u0000b" },
  "a key that is no string": { idempotencyKey: 7 },
  "a getter that throws": { get context() { throw new Error("of the page"); } },
};

for (const [name, asked] of Object.entries(ASKED)) {
  test(`select of ${name} falls back and asks nobody`, async (t) => {
    let requests = 0;
    const url = await answering(t, () => requests++);
    const told = [];
    const forage = createForage({ url, fallback: "4", budgetMs: 20_000, onError: (fault) => told.push(fault) });
    const decision = await forage.select(asked);
    assert.equal(decision.arm, "4");
    assert.equal(decision.error.reason, "argument");
    assert.deepEqual(told, [decision.error]);
    assert.equal(requests, 0);
  });
}

for (const asked of [null, 5, "shop", undefined]) {
  test(`select(${asked}) asks for what the options say`, async (t) => {
    const url = await answering(t, (_, response) => send(response, 200, JSON.stringify(DECIDED)));
    assert.equal((await createForage({ url, budgetMs: 20_000 }).select(asked)).fallback, false);
  });
}

test("track of what it cannot watch is told, and can be stopped", () => {
  const told = [];
  const forage = createForage({ url: "http://127.0.0.1:1", onError: (fault) => told.push(fault.reason) });
  forage.track(undefined, undefined)();
  forage.track(null, DECISION, null)();
  assert.deepEqual(told, ["argument", "argument"]);
});

test("a callback whose promise is rejected ends no process", async (t) => {
  const said = consoleOf(t);
  const onError = async () => {
    throw new Error("of the page");
  };
  const forage = createForage({ url: "http://127.0.0.1:1", onError });
  assert.equal(await forage.reward(undefined, 1), null);
  await new Promise((done) => setImmediate(done));
  assert.deepEqual(said.map(([name]) => name), ["error"]);
});

test("with onError a refusal is not in the console, without it it is", async (t) => {
  const said = consoleOf(t), told = [];
  const refusal = '{"title": "The request is not valid", "errors": [{"path": "context.age", "message": "is missing"}]}';
  const url = await answering(t, (_, response) => send(response, 422, refusal));
  await createForage({ url, budgetMs: 20_000, onError: (fault) => told.push(fault.message) }).select();
  assert.equal(told.length, 1);
  assert.deepEqual(said, []);
  await createForage({ url, budgetMs: 20_000, onError: null }).select();
  assert.deepEqual(said, [["warn", "forage:", told[0]]]);
  assert.match(told[0], /context\.age: is missing/);
});

for (const answer of ["{}", "null", "ok", "", '{"status": "ok"}', '{"status": 5}']) {
  test(`a reward that is answered 200 with ${JSON.stringify(answer)} is sent again`, async (t) => {
    let asked = 0;
    const url = await answering(t, (_, response) =>
      send(response, 200, ++asked === 1 ? answer : '{"status": "accepted"}'));
    assert.equal(await createForage({ url }).reward({ decision: "t", fallback: false }, 1), "accepted");
    assert.equal(asked, 2);
  });
}

test("a reward that cannot count is ignored, and the page is told why", async (t) => {
  const told = [], said = consoleOf(t);
  const url = await answering(t, (_, response) =>
    send(response, 200, '{"status": "ignored", "reason": "the first reward counts"}'));
  const forage = createForage({ url, onError: (fault) => told.push([fault.reason, fault.message]) });
  assert.equal(await forage.reward({ decision: "t", fallback: false }, 1), "ignored");
  assert.deepEqual(told, [["ignored", "/reward: the first reward counts"]]);
  assert.equal(await createForage({ url }).reward({ decision: "t", fallback: false }, 1), "ignored");
  assert.deepEqual(said, [["warn", "forage:", "/reward: the first reward counts"]]);
});

test("a reward that an ill 503 refuses is sent again", async (t) => {
  let asked = 0;
  const url = await answering(t, (_, response) =>
    ++asked === 1
      ? send(response, 503, '{"title": "busy", "errors": [null]}')
      : send(response, 200, '{"status": "accepted"}'));
  assert.equal(await createForage({ url }).reward({ decision: "t", fallback: false }, 1), "accepted");
});

test("a pause that a server asks for is never longer than a timer", async (t) => {
  const pauses = [];
  const real = globalThis.setTimeout;
  t.mock.method(globalThis, "setTimeout", (done, ms, ...more) => {
    pauses.push(ms);
    return real(done, ms > 60_000 ? 0 : ms, ...more);
  });
  let asked = 0;
  const url = await answering(t, (_, response) =>
    ++asked === 1
      ? send(response, 503, "{}", { "Retry-After": "99999999999" })
      : send(response, 200, '{"status": "accepted"}'));
  assert.equal(await createForage({ url }).reward({ decision: "t", fallback: false }, 1), "accepted");
  assert.ok(Math.max(...pauses) < 2 ** 31, `${pauses}`);
});

test("a reward is as it was when it was given", async (t) => {
  const bodies = [];
  const url = await answering(t, (_, response, body) => {
    bodies.push(JSON.parse(body).rewards);
    send(response, 200, '{"status": "accepted"}');
  });
  const forage = createForage({ url }), rewards = { 7: 1 };
  const both = [1, 2].map(() => forage.reward({ decision: "t", fallback: false }, rewards));
  rewards[7] = 0;
  await Promise.all(both);
  assert.deepEqual(bodies, [{ 7: 1 }, { 7: 1 }]);
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

test("what is no address, and a key that no header takes, are said at once", () => {
  assert.throws(() => createForage({ url: "shop" }), TypeError);
  assert.throws(() => createForage({ url: "http://127.0.0.1:1", key: "k\u0000" }), TypeError);
});
