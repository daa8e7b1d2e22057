/**
 * Forage's SDK for a page that takes it from a service which may be down. Bring this file with the
 * page, from its own host or inside its script: then the fallback is there too. Types: loader.d.ts.
 */

const FIRST_PAUSE_MS = 1000, LONGEST_PAUSE_MS = 30_000, LONGEST_TIMER_MS = 2 ** 31 - 1;

const fetched = (url) => import(/* webpackIgnore: true */ /* @vite-ignore */ url);
const paused = (ms) => new Promise((done) => setTimeout(done, ms));

const faultOf = (reason, message) =>
  Object.assign(new Error(`sdk/forage.js: ${message}`), { reason, problem: null });

/** As `createForage`, at once: calls wait for the SDK, `select` no longer than its budget. */
export function loadForage(options, load = fetched) {
  const base = String(options.url).replace(/\/+$/, "");
  new Headers(options.key ? { Authorization: `Bearer ${options.key}` } : {}); // throws what cannot be sent
  const script = `${new URL(`${base}/sdk/forage.js`, globalThis.location?.href)}`;
  const unsent = new Set(), tracks = new Set(); // calls that wait for the SDK
  let sdk = null, loading = null, trying = null, tries = 0, closed = false;

  /** The SDK. Rejects where it cannot be had; the next call tries again. */
  function arrive() {
    loading ??= Promise.resolve(tries++ ? `${script}?${tries}` : script) // a browser may keep a failure
      .then(load)
      .then(({ createForage }) => {
        sdk = createForage(options);
        if (closed) sdk.close();
        for (const call of [...tracks, ...unsent]) call();
        unsent.clear();
        tracks.clear();
        return sdk;
      })
      .catch((error) => {
        loading = null;
        throw faultOf("network", error?.message);
      });
    return loading;
  }

  async function keepTrying() {
    for (let ms = FIRST_PAUSE_MS; !sdk; ms = Math.min(LONGEST_PAUSE_MS, 2 * ms)) {
      await arrive().catch(() => paused(ms));
    }
  }

  async function onError(fault) {
    try {
      await options.onError?.(fault);
    } catch (error) {
      console.error("forage: onError:", error);
    }
  }

  async function select(request) {
    if (sdk) return sdk.select(request);
    const { budgetMs: budget = options.budgetMs ?? 200, fallback = options.fallback } = request ?? {};
    const budgetMs = typeof budget === "number" ? budget : 0; // the SDK tells what is wrong with it
    const until = performance.now() + budgetMs;
    let timer;
    const late = new Promise((_, reject) => {
      const give = () => reject(faultOf("timeout", "not there in time"));
      timer = setTimeout(give, Math.min(budgetMs, LONGEST_TIMER_MS));
    });
    try {
      await Promise.race([arrive(), late]);
      return sdk.select({ ...request, budgetMs: until - performance.now() });
    } catch (fault) {
      onError(fault);
      const arms = [fallback ?? []].flat();
      return { arm: arms[0] ?? null, arms, decision: null, fallback: true, error: fault };
    } finally {
      clearTimeout(timer);
    }
  }

  /** What came of a decision, said once the SDK is there. Of a fallback nothing is said. */
  const said = (name) => (decision, ...more) => {
    if (decision?.fallback) return Promise.resolve(null);
    if (sdk) return sdk[name](decision, ...more);
    trying ??= keepTrying();
    return new Promise((done) => unsent.add(() => done(sdk[name](decision, ...more))));
  };

  function track(element, decision, how) {
    if (sdk) return sdk.track(element, decision, how);
    let stop = () => tracks.delete(begin);
    const begin = () => {
      stop = sdk.track(element, decision, how);
    };
    tracks.add(begin);
    return () => stop();
  }

  function close() {
    closed = true;
    sdk?.close();
  }

  arrive().catch(() => {}); // each `select` tells of it
  return {
    select,
    reward: said("reward"),
    cascade: said("cascade"),
    activate: said("activate"),
    track,
    leave: () => sdk?.leave(),
    close,
    pending: () => (sdk ? sdk.pending() : unsent.size),
  };
}
