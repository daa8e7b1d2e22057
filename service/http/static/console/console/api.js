// Requests to the service that served this page. A key stays in this tab's storage and goes out in
// a header alone.

const TIMEOUT_MS = 10_000;
const STORED = "forage.key";

/** What the service refused, or `gone`: it did not answer. faults: [{path, message}]. */
export class Refusal extends Error {
  constructor(status, title, detail, faults = []) {
    super(detail || title);
    this.status = status;
    this.title = title;
    this.faults = faults;
  }

  get gone() {
    return this.status === 0;
  }
}

export const key = {
  get value() {
    return sessionStorage.getItem(STORED) ?? "";
  },
  set value(text) {
    if (text) sessionStorage.setItem(STORED, text);
    else sessionStorage.removeItem(STORED);
  },
};

export const get = (path, query = {}, timeout = TIMEOUT_MS) =>
  ask("GET", withQuery(path, query), undefined, {}, timeout);
export const post = (path, body, headers = {}, timeout = TIMEOUT_MS) => ask("POST", path, body, headers, timeout);
export const put = (path, body, headers = {}) => ask("PUT", path, body, headers);
export const remove = (path) => ask("DELETE", path);

/** A path below an experiment, its parts encoded. */
export const of = (experiment, ...parts) => ["experiments", experiment, ...parts].map(encodeURIComponent).join("/");

function withQuery(path, query) {
  const given = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "");
  return given.length ? `${path}?${new URLSearchParams(given)}` : path;
}

/** The answer's JSON, null where it has none. Throws Refusal. */
async function ask(method, path, body = undefined, headers = {}, timeout = TIMEOUT_MS) {
  const sent = { ...headers, Accept: "application/json" };
  if (key.value) sent.Authorization = `Bearer ${key.value}`;
  if (body !== undefined) sent["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(new URL(path, document.baseURI), {
      method,
      headers: sent,
      body: body === undefined ? undefined : JSON.stringify(body),
      credentials: "omit",
      cache: "no-store",
      signal: AbortSignal.timeout(timeout),
    });
  } catch {
    throw new Refusal(0, "No answer", "The service did not answer.");
  }
  const content = await read(response);
  if (response.ok) return content;
  throw new Refusal(
    response.status,
    content?.title ?? response.statusText,
    content?.detail ?? `The service answered ${response.status}.`,
    content?.errors ?? [],
  );
}

async function read(response) {
  if (!/json/.test(response.headers.get("content-type") ?? "")) return null;
  try {
    return await response.json();
  } catch {
    return null;
  }
}
