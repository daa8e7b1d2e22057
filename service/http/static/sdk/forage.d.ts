/** A value of a feature: number, boolean, category or name, vector. */
export type FeatureValue = number | boolean | string | number[];
export type Features = Record<string, FeatureValue>;

/** Values of an arm that rules read and no policy learns. */
export type Attributes = Record<string, number | boolean | string>;

/** An arm of the catalogue by its id, or one outside of it with its features and attributes. */
export type ArmChoice = string | { id: string; features?: Features; attributes?: Attributes };

export interface SelectRequest {
  /** Left out: the service's default experiment, or its only one. */
  experiment?: string;
  /** Left out: one is assigned by traffic share, sticky to `unit`. */
  policy?: string;
  /** Who the decision is for: your user's id, which the service keeps only as a keyed hash. */
  unit?: string;
  /** Features of the user and the moment, by name. */
  context?: Features;
  /** What to choose from. Left out: all active arms of the catalogue. */
  arms?: ArmChoice[];
  /** Ids of arms that are not to be shown, such as those in the basket. */
  exclude?: string[];
  /** Ids of arms: no other of `arms` is shown. It may name some that are not there. */
  only?: string[];
  /** How many arms to rank; 1. */
  topK?: number;
  /**
   * It may never be seen: nothing is learned of it before it is activated, which `track` does once
   * its element was seen, and `reward` and `cascade` do too. Of a decision whose answer came too
   * late for the budget nothing is learned either.
   */
  deferred?: boolean;
  /** What to show when there is no answer in time: an arm, or a ranking of them. */
  fallback?: string | string[] | null;
  /** Longest time until `select` resolves, in milliseconds; 200. Retries are within it. */
  budgetMs?: number;
  /** The same key gives the same decision. Left out: a fresh one a call, shared by its retries. */
  idempotencyKey?: string;
}

export interface Options extends Omit<SelectRequest, "idempotencyKey"> {
  /** Where the service is: "https://forage.shop.example", or a path on the page's own host. */
  url: string | URL;
  /** A public browser key; sent as `Authorization: Bearer`, and inside of a beacon. */
  key?: string | null;
  /** Keep unsent rewards in localStorage, so that they go out on a later visit; false. */
  persist?: boolean;
  /**
   * Told of every fault that a retry does not mend, in place of the console. Left out: refusals,
   * wrong arguments and ignored rewards go to console.warn, a network that is down goes unsaid.
   */
  onError?: ((fault: Fault) => void | Promise<void>) | null;
}

/** Problem details (RFC 9457), as the service answers them. */
export interface Problem {
  type: string;
  title: string;
  status: number;
  detail: string;
  errors: { path: string; message: string }[];
}

export interface Fault extends Error {
  /**
   * No answer within the budget; no connection, or no usable answer; a refusal; a wrong argument; a
   * reward that cannot count, or not of all its arms.
   */
  reason: "timeout" | "network" | "http" | "argument" | "ignored";
  /** Of an answer. */
  status?: number;
  problem: Problem | null;
}

export interface Ranked {
  arm: string;
  /** Chance of this arm in this slot, given the policy. */
  propensity: number;
}

/** What the service decided. */
export interface Decided {
  fallback: false;
  error: null;
  arm: string;
  /** The ranking's arms from the first slot down; of one where topK is 1. */
  arms: string[];
  /** Sealed token: what a reward is for. */
  decision: string;
  /** Short id, for URLs and logs. */
  id: string;
  /** Chance with which `arm` was chosen, given the policy. */
  propensity: number;
  ranking: Ranked[];
  /** Chance of the whole ranking; null where topK is 1, or where a double cannot hold it. */
  slate_propensity: number | null;
  /** Natural logarithm of the chance of the whole ranking. */
  slate_log_propensity: number;
  experiment: string;
  policy: string;
  /** policy/version@position: names exactly what decided. */
  modelVersion: string;
  /** false: the log was gone, the decision waits in the service's memory. */
  logged: boolean;
  deferred: boolean;
  /** Names of the rules that removed an arm or held a chance where it is. */
  rules: string[];
  /** Names of the rules that could not hold beside others, and yielded. */
  relaxed: string[];
  /** Until then a reward is waited for; after it the default reward is learned. ISO 8601. */
  reward_by: string;
  /** Until then a reward is accepted. ISO 8601. */
  accept_until: string;
}

/** What to show without the service. Rewards of it go nowhere. */
export interface FallenBack {
  fallback: true;
  /** Why: a timeout, no network, or the service's refusal. */
  error: Fault;
  /** The first of the fallback, or null where none was given. */
  arm: string | null;
  arms: string[];
  decision: null;
}

export type Decision = Decided | FallenBack;

/**
 * ignored: another reward was first, and the experiment counts no further one; null: a fallback's,
 * or refused. `onError` is told of both.
 */
export type RewardStatus = "accepted" | "duplicate" | "corrected" | "ignored" | null;
export type ActivationStatus = "activated" | "duplicate" | null;

export interface RewardOptions {
  /** Tells reports of one decision apart: give each its own, such as "click" and an order's number. */
  rewardId?: string;
}

export interface TrackOptions extends RewardOptions {
  /** Which of the decision's arms the element shows; the first. */
  arm?: string;
  /** Reward of the event; 1. */
  reward?: number;
  /** The event that earns it, "click"; null: impressions only. It counts once. */
  on?: string | null;
  /** The event says that the ranking was looked at from the top down to `arm`; false. */
  cascade?: boolean;
  /** Told once at least half of the element was seen for a second. */
  onSeen?: (decision: Decision) => void;
}

export interface Forage {
  /**
   * What to show. Never rejects, and resolves within the budget: with the fallback where the
   * service is slow, down, or refuses.
   */
  select(request?: SelectRequest): Promise<Decision>;
  /**
   * Say what came of a decision: a number for the only arm shown, or a reward by arm. Sent until
   * it was answered, across lost connections; it counts once however often it is sent. Never throws
   * or rejects: null, and `onError` is told.
   */
  reward(
    decision: Decision,
    value: number | Record<string, number>,
    options?: RewardOptions,
  ): Promise<RewardStatus>;
  /** The ranking was looked at from the top down to `clicked`; null: to its end, without a click. */
  cascade(
    decision: Decision,
    clicked?: string | null,
    options?: RewardOptions,
  ): Promise<RewardStatus>;
  /** Say that a deferred decision was shown. */
  activate(decision: Decision): Promise<ActivationStatus>;
  /**
   * Watch the element that shows a decision: once seen, the decision is activated; once clicked,
   * it is rewarded. Call what is returned when the element goes.
   */
  track(element: Element, decision: Decision, options?: TrackOptions): () => void;
  /** Hand to the browser what is unsent; done by itself when the page is hidden or left. */
  leave(): void;
  /** Stop listening to the page. What is queued is still sent. */
  close(): void;
  /** How many rewards and activations have no answer yet. */
  pending(): number;
}

/** Throws TypeError where `url` is none, or `key` cannot be sent. */
export function createForage(options: Options): Forage;
