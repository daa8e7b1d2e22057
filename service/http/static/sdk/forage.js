/**
 * Forage in the browser, and in Node from 18 on: decisions that never wait, rewards that arrive.
 * Types: forage.d.ts.
 */

const SEEN_MS = 1000, SEEN_SHARE = 0.5;
const SEND_MS = 10_000, FIRST_PAUSE_MS = 300, LONGEST_PAUSE_MS = 30_000;
const SERVER_FAULTS = 5, QUEUE_ITEMS = 500, BEACON_ITEMS = 50;
const LONGEST_TIMER_MS = 2 ** 31 - 1; // a longer one fires at once

/** Unique, not secret: Node 18 has no global `crypto`. */
const random = () => {
  const drawn = new Uint32Array(4).map(() => Math.random() * 2 ** 32);
  return Array.from(globalThis.crypto?.getRandomValues(drawn) ?? drawn, (n) => n.toString(36)).join("");
};

/** Without what is left undefined: an option of before holds. */
const given = (request) =>
  Object.fromEntries(Object.entries(request).filter(([, value]) => value !== undefined));

/** Halved at random: pages that failed together do not come back together. */
const pauseMs = (tries, firstMs) =>
  Math.min(LONGEST_PAUSE_MS, firstMs * 2 ** tries) * (1 - Math.random() / 2);

export function createForage(options) {
  const {
    url, key = null, fallback = null, budgetMs = 200, persist = false,
    onError: tell = (fault) => fault.reason === "http" && console.warn("forage:", fault.message),
    ...common
  } = options;
  const base = String(url).replace(/\/+$/, "");
  new URL(base, globalThis.location?.href);
  const queue = [], activations = new WeakMap();
  const shelf = `forage:${base}:`, own = shelf + random();
  let sending = false, wake = () => {};

  const onError = (fault) => {
    try {
      tell(fault);
    } catch (error) {
      console.error("forage: onError:", error); // it must not keep the page from its fallback
    }
  };

  /** wanted: what every answer of the service to this has. */
  async function post(path, body, wanted, timeoutMs, headers, keepalive) {
    const fault = Object.assign(new Error(), { reason: "network", problem: null, again: true });
    const ending = new AbortController();
    // AbortSignal.timeout would want whole milliseconds, and is not in every browser.
    const timer = setTimeout(() => ending.abort(), Math.min(timeoutMs, LONGEST_TIMER_MS));
    let response, answer;
    try {
      response = await fetch(base + path, {
        method: "POST",
        headers: {
          "Content-Type": "application/json", ...(key && { Authorization: `Bearer ${key}` }), ...headers,
        },
        body: body && JSON.stringify(body),
        signal: ending.signal,
        credentials: "omit",
        keepalive,
      });
      answer = await response.json().catch((error) => {
        if (response.ok) throw error;
      });
      if (response.ok && answer?.[wanted] === undefined) throw new Error("no answer of Forage's");
      if (response.ok) return answer;
    } catch (error) {
      if (ending.signal.aborted) fault.reason = "timeout";
      fault.message = `${path}: ${ending.signal.aborted ? "no answer in time" : error.message}`;
      throw fault;
    } finally {
      clearTimeout(timer);
    }
    const { status } = response;
    const where = answer?.errors?.map?.((each) => ` ${each.path}: ${each.message}`).join(";") ?? "";
    throw Object.assign(fault, {
      reason: "http",
      status,
      problem: answer ?? null,
      message: `${path}: ${status} ${answer?.detail ?? response.statusText}${where}`,
      again: status >= 500 || status === 429 || status === 408,
      afterMs: 1000 * response.headers.get("Retry-After") || 0,
    });
  }

  async function select(request = {}) {
    const asked = { budgetMs, fallback, ...common, ...given(request) };
    const { topK, idempotencyKey = random(), deferred = false } = asked;
    const { experiment, policy, unit, context, arms } = asked;
    const until = performance.now() + asked.budgetMs;
    const left = () => until - performance.now();
    const body = { experiment, policy, unit, context, arms, top_k: topK, deferred };
    for (let tries = 0; ; tries++) {
      try {
        const headers = { "Idempotency-Key": idempotencyKey };
        const answer = await post("/select", body, "ranking", left(), headers, false);
        return {
          ...answer,
          arms: answer.ranking.map((each) => each.arm),
          decision: answer.decision_id,
          modelVersion: answer.model_version,
          deferred,
          fallback: false,
          error: null,
        };
      } catch (fault) {
        const pause = Math.max(fault.afterMs ?? 0, pauseMs(tries, 40));
        if (fault.again && pause < left()) {
          await new Promise((done) => setTimeout(done, pause));
          continue;
        }
        onError(fault);
        const shown = [asked.fallback ?? []].flat();
        return { arm: shown[0] ?? null, arms: shown, decision: null, fallback: true, error: fault };
      }
    }
  }

  function save() {
    if (!persist) return;
    try {
      if (queue.length) localStorage[own] = JSON.stringify(queue);
      else delete localStorage[own];
    } catch {} // full or forbidden: memory has it still
  }

  /** What an earlier page, or one in another tab, has left: sent twice it counts once. */
  function adopt() {
    try {
      for (const name of Object.keys(localStorage).filter((each) => each.startsWith(shelf))) {
        try {
          queue.push(...JSON.parse(localStorage[name]));
        } catch {} // broken: it must not keep the others
        delete localStorage[name];
      }
    } catch {}
    save();
    send();
  }

  const enqueue = (item) =>
    new Promise((done) => {
      Object.defineProperty(item, "done", { value: done }); // which JSON leaves out
      queue.push(item);
      if (queue.length > QUEUE_ITEMS) queue.splice(1, 1)[0].done?.(null);
      save();
      send();
    });

  /** In order, one at a time: a decision is activated before it is rewarded. */
  async function send() {
    if (sending) return;
    sending = true;
    for (let tries = 0; queue.length; ) {
      const item = queue[0];
      let status = null;
      try {
        const path = item.reward
          ? "/reward"
          : `/decisions/${item.id}/activate?experiment=${encodeURIComponent(item.experiment)}`;
        ({ status } = await post(path, item.reward, "status", SEND_MS, {}, true));
      } catch (fault) {
        if (fault.again && !(fault.status === 500 && tries >= SERVER_FAULTS)) {
          const pause = Math.max(fault.afterMs ?? 0, pauseMs(tries++, FIRST_PAUSE_MS));
          await new Promise((done) => setTimeout((wake = done), pause));
          continue;
        }
        onError(fault);
      }
      tries = 0;
      queue.shift();
      save();
      item.done?.(status);
    }
    sending = false;
  }

  /** All that has no answer yet: a beacon brings none, so it stays queued if the page returns. */
  function leave() {
    const unsaid = queue.filter((item) => !item.left);
    while (unsaid.length) {
      const part = unsaid.splice(0, BEACON_ITEMS);
      const content = {
        key: key ?? undefined,
        activate: part.filter((item) => !item.reward).map(({ id, experiment }) => ({ id, experiment })),
        rewards: part.flatMap((item) => item.reward ?? []),
      };
      if (!globalThis.navigator?.sendBeacon?.(`${base}/beacon`, JSON.stringify(content))) return;
      for (const item of part) item.left = true;
    }
  }
  const hidden = () => document.visibilityState === "hidden" && leave();
  const online = () => wake();

  function activate(decision) {
    if (!decision.deferred || decision.fallback) return Promise.resolve(null);
    const { id, experiment } = decision;
    if (!activations.has(decision)) activations.set(decision, enqueue({ id, experiment }));
    return activations.get(decision);
  }

  function settle(decision, outcome, { rewardId = "" } = {}) {
    if (decision.fallback) return Promise.resolve(null);
    activate(decision); // what is rewarded was shown
    return enqueue({ reward: { decision_id: decision.decision, ...outcome, reward_id: rewardId } });
  }

  const reward = (decision, value, more) =>
    settle(decision, typeof value === "number" ? { reward: value } : { rewards: value }, more);

  const cascade = (decision, clicked = null, more) =>
    settle(decision, { feedback: "cascade", clicked }, more);

  function track(element, decision, how = {}) {
    const { arm = decision.arm, reward: value = 1, on = "click", rewardId, onSeen } = how;
    let timer;
    const watch = () => {
      timer = setTimeout(() => {
        if (document.hidden) return watch();
        observer.disconnect();
        activate(decision);
        onSeen?.(decision);
      }, SEEN_MS);
    };
    const observer = new IntersectionObserver((entries) => {
      clearTimeout(timer);
      if (entries.at(-1).intersectionRatio >= SEEN_SHARE) watch();
    }, { threshold: SEEN_SHARE });
    observer.observe(element);
    const clicked = () => {
      if (how.cascade) cascade(decision, arm, { rewardId });
      else reward(decision, decision.arms.length > 1 ? { [arm]: value } : value, { rewardId });
    };
    if (on) element.addEventListener(on, clicked, { once: true });
    return () => {
      clearTimeout(timer);
      observer.disconnect();
      if (on) element.removeEventListener(on, clicked);
    };
  }

  globalThis.addEventListener?.("pagehide", leave);
  globalThis.addEventListener?.("online", online);
  globalThis.document?.addEventListener("visibilitychange", hidden);
  function close() {
    globalThis.removeEventListener?.("pagehide", leave);
    globalThis.removeEventListener?.("online", online);
    globalThis.document?.removeEventListener("visibilitychange", hidden);
  }
  if (persist) adopt();

  return { select, reward, cascade, activate, track, leave, close, pending: () => queue.length };
}
