import type { createForage, Forage, Options } from "./forage.js";

/**
 * The SDK of a service that may be down: `{options.url}/sdk/forage.js` is loaded beside the page.
 *
 * `select` resolves within its budget: with the fallback where the SDK does not come, or not in
 * time; the next call tries again. Rewards wait for the SDK, elements are watched once it is there.
 * Throws TypeError where `url` is none, or `key` cannot be sent.
 *
 * @param load How a module is had; `import(url)` where it is left out.
 */
export function loadForage(
  options: Options,
  load?: (url: string) => Promise<{ createForage: typeof createForage }>,
): Forage;
