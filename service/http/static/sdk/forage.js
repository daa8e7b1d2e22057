/**
 * Forage in the browser, and in Node from 18 on: decisions that never wait, rewards that arrive.
 * Types: forage.d.ts.
 */

const SEEN_MS = 1000, SEEN_SHARE = 0.5;
const SEND_MS = 10_000, FIRST_PAUSE_MS = 300, LONGEST_PAUSE_MS = 30_000;
const SERVER_FAULTS = 5, QUEUE_ITEMS = 500, BEACON_ITEMS = 50;
const LONGEST_TIMER_MS = 2 ** 31 - 1; // a longer one fires at once
const MOST_BYTES = 2 ** 20; // of an answer: more would hold the page up
const ROUNDING = 1e-9; // how far above 1 it may take a probability
const STATUSES = ["accepted", "duplicate", "corrected", "ignored", "activated"];

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

const isText = (value) => typeof value === "string" && value !== "";
const isChance = (value) => typeof value === "number" && value > 0 && value <= 1 + ROUNDING;

const faultOf = (reason, message, more) =>
  Object.assign(new Error(message), { reason, problem: null, ...more });

/** Whether an answer is a decision on what was asked. */
function isDecision(answer, { top_k: most = 1, arms, only, exclude = [] }) {
  const { ranking, rules = [], relaxed = [] } = answer;
  if (![ranking, rules, relaxed].every(Array.isArray)) return false;
  const shown = new Set(ranking.map((each) => each?.arm));
  const isWanted = (arm) =>
    !exclude.includes(arm) &&
    [arms, only].every((some) => !Array.isArray(some) || some.map((each) => each?.id ?? each).includes(arm));
  const { experiment, policy, model_version, slate_propensity, slate_log_propensity } = answer;
  return (
    ranking.every((each) => isText(each?.arm) && isChance(each.propensity)) &&
    (rules.includes("if_empty") || [...shown].every(isWanted)) &&
    shown.size > 0 && shown.size === ranking.length && shown.size <= most &&
    answer.arm === ranking[0].arm && answer.propensity === ranking[0].propensity &&
    [answer.id, answer.decision_id, experiment, policy, model_version, ...rules, ...relaxed].every(isText) &&
    (slate_propensity === null || isChance(slate_propensity)) &&
    Number.isFinite(slate_log_propensity) && slate_log_propensity <= ROUNDING &&
    typeof answer.logged === "boolean"
  );
}

/** The JSON of an answer; undefined where it is none. Throws where it is too long. */
async function jsonOf(response) {
  const reader = response.body?.getReader(), decoder = new TextDecoder();
  let text = "", bytes = 0;
  for (let part; reader && !(part = await reader.read()).done; ) {
    bytes += part.value.length;
    if (bytes > MOST_BYTES) throw new Error("the answer is too long");
    text += decoder.decode(part.value, { stream: true });
  }
  try {
    return JSON.parse(text + decoder.decode());
  } catch {} // a proxy's page
}

/** The service's problem in an answer; null where there is none. */
function problemIn(answer) {
  if (!isText(answer?.title)) return null;
  const errors = Array.isArray(answer.errors) ? answer.errors : [];
  const detail = isText(answer.detail) ? answer.detail : "";
  const isError = (each) => typeof each?.path === "string" && typeof each.message === "string";
  return { ...answer, detail, errors: errors.filter(isError) };
}

const inConsole = (fault) =>
  ["http", "argument", "ignored"].includes(fault.reason) && console.warn("forage:", fault.message);

export function createForage(options) {
  const { url, key, fallback = null, budgetMs = 200, persist = false, onError: tell, ...common } = options;
  const base = String(url).replace(/\/+$/, "");
  new URL(base, globalThis.location?.href);
  const headers = { "Content-Type": "application/json", ...(key && { Authorization: `Bearer ${key}` }) };
  new Headers(headers); // throws here, not at each call
  const queue = [], activations = new WeakMap();
  const shelf = `forage:${base}:`, own = shelf + random();
  let sending = false, wake = () => {};

  const onError = async (fault) => {
    try {
      await (tell ?? inConsole)(fault);
    } catch (error) {
      console.error("forage: onError:", error); // it must not keep the page from its fallback
    }
  };

  /** A call that throws nothing: `onError` is told of an argument that it cannot take. */
  const safely = (call, otherwise) => (...given) => {
    try {
      return call(...given);
    } catch (error) {
      onError(faultOf("argument", `${call.name}: ${error?.message}`));
      return otherwise();
    }
  };

  /** isAnswer: whether JSON is what the service says to this. Throws a Fault. */
  async function post(path, body, isAnswer, timeoutMs, more, keepalive) {
    const ending = new AbortController();
    // AbortSignal.timeout would want whole milliseconds, and is not in every browser.
    const timer = setTimeout(() => ending.abort(), Math.min(timeoutMs, LONGEST_TIMER_MS));
    let response, answer;
    try {
      response = await fetch(base + path, {
        method: "POST",
        headers: { ...headers, ...more },
        body,
        signal: ending.signal,
        credentials: "omit",
        keepalive,
      });
      answer = await jsonOf(response);
      if (response.ok && isAnswer(answer ?? {})) return answer;
      if (response.ok) throw new Error("no answer of Forage's");
    } catch (error) {
      const late = ending.signal.aborted;
      const message = `${path}: ${late ? "no answer in time" : error.message}`;
      throw faultOf(late ? "timeout" : "network", message, { again: true });
    } finally {
      clearTimeout(timer);
      ending.abort(); // what is left of an answer is not read
    }
    const { status } = response, problem = problemIn(answer);
    const where = problem?.errors.map((each) => ` ${each.path}: ${each.message}`).join(";") ?? "";
    throw faultOf("http", `${path}: ${status} ${problem?.detail ?? response.statusText}${where}`, {
      status,
      problem,
      again: status >= 500 || status === 429 || status === 408,
      afterMs: Math.min(1000 * response.headers.get("Retry-After") || 0, LONGEST_TIMER_MS),
    });
  }

  async function decide(asked) {
    const { experiment, policy, unit, context, arms, exclude, only, topK, deferred = false } = asked;
    const until = performance.now() + Number(asked.budgetMs);
    const left = () => until - performance.now();
    const body = JSON.stringify({ experiment, policy, unit, context, arms, exclude, only, top_k: topK, deferred });
    const sent = JSON.parse(body);
    const key = asked.idempotencyKey ?? random();
    if (!isText(key)) throw new TypeError("idempotencyKey is no string");
    const more = { "Idempotency-Key": key };
    new Headers(more); // throws what cannot be sent
    for (let tries = 0; ; tries++) {
      try {
        const answer = await post("/select", body, (each) => isDecision(each, sent), left(), more, false);
        return {
          rules: [],
          relaxed: [],
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
        if (!(fault.again && pause < left())) throw fault; // also without a number for a budget
        await new Promise((done) => setTimeout(done, pause));
      }
    }
  }

  async function select(request) {
    let shown = fallback;
    try {
      const asked = { budgetMs, fallback, ...common, ...given(request ?? {}) };
      shown = asked.fallback;
      return await decide(asked);
    } catch (error) {
      const fault = error?.reason ? error : faultOf("argument", `select: ${error?.message}`);
      onError(fault);
      const arms = [shown ?? []].flat();
      return { arm: arms[0] ?? null, arms, decision: null, fallback: true, error: fault };
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
          const isItem = (each) => isText(each?.reward?.decision_id) || isText(each?.id);
          queue.push(...JSON.parse(localStorage[name]).filter(isItem));
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
        const body = item.reward && JSON.stringify(item.reward);
        const isAnswer = (answer) => STATUSES.includes(answer.status);
        const answer = await post(path, body, isAnswer, SEND_MS, {}, true);
        status = answer.status;
        if (isText(answer.reason)) onError(faultOf("ignored", `${path}: ${answer.reason}`));
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

  /** Whether there is something to say of it. Throws where it is no decision. */
  function isShown(decision) {
    if (decision?.fallback === true) return false;
    if (isText(decision?.decision)) return true;
    throw new TypeError("no decision: give what `select` resolved to");
  }

  function activate(decision) {
    if (!isShown(decision) || !decision.deferred) return Promise.resolve(null);
    const { id, experiment } = decision;
    if (!activations.has(decision)) activations.set(decision, enqueue({ id, experiment }));
    return activations.get(decision);
  }

  function settle(decision, outcome, more) {
    if (!isShown(decision)) return Promise.resolve(null);
    const said = { decision_id: decision.decision, ...outcome, reward_id: more?.rewardId ?? "" };
    const item = { reward: JSON.parse(JSON.stringify(said)) }; // which the page cannot change any more
    activate(decision); // what is rewarded was shown
    return enqueue(item);
  }

  function reward(decision, value, more) {
    if (Number.isFinite(value)) return settle(decision, { reward: value }, more);
    if (value && typeof value === "object") return settle(decision, { rewards: value }, more);
    throw new TypeError("a reward is a number, or numbers by arm");
  }

  function cascade(decision, clicked = null, more) {
    if (clicked === null || isText(clicked)) return settle(decision, { feedback: "cascade", clicked }, more);
    throw new TypeError("`clicked` is the id of an arm, or null");
  }

  function track(element, decision, options) {
    isShown(decision);
    const how = options ?? {};
    const { arm = decision.arm, reward: value = 1, on = "click", rewardId, onSeen } = how;
    let timer;
    const watch = () => {
      timer = setTimeout(() => {
        if (document.hidden) return watch();
        observer.disconnect();
        told.activate(decision);
        onSeen?.(decision);
      }, SEEN_MS);
    };
    const observer = new IntersectionObserver((entries) => {
      clearTimeout(timer);
      if (entries.at(-1).intersectionRatio >= SEEN_SHARE) watch();
    }, { threshold: SEEN_SHARE });
    observer.observe(element);
    const clicked = () => {
      if (how.cascade) told.cascade(decision, arm, { rewardId });
      else told.reward(decision, decision.arms?.length > 1 ? { [arm]: value } : value, { rewardId });
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

  const nothing = () => Promise.resolve(null);
  const told = {
    reward: safely(reward, nothing),
    cascade: safely(cascade, nothing),
    activate: safely(activate, nothing),
    track: safely(track, () => () => {}),
  };
  return {
    select,
    reward: told.reward,
    cascade: told.cascade,
    activate: told.activate,
    track: told.track,
    leave,
    close,
    pending: () => queue.length,
  };
}
