// Load test of a Forage service with k6, for more load than one `forage-sim load` can send:
//
//   k6 run -e URL=http://forage:8000 -e EXPERIMENT=shop -e RATE=20000 deploy/k6/load.js
//
// URL, EXPERIMENT and KEY (an API key with scopes select, reward and admin) name the service;
// RATE (selects per second), DURATION, P99_MS and REWARDS (share of decisions with a reward) the
// test. The exit status is not 0 if a threshold is missed. docs/load-testing.md

import http from "k6/http";
import { check } from "k6";

const URL = __ENV.URL || "http://127.0.0.1:8000";
const EXPERIMENT = __ENV.EXPERIMENT || "";
const REWARDS = Number(__ENV.REWARDS || 0.2);
const HEADERS = { "Content-Type": "application/json" };
if (__ENV.KEY) HEADERS["Authorization"] = `Bearer ${__ENV.KEY}`;

export const options = {
  scenarios: {
    visitors: {
      executor: "constant-arrival-rate",
      rate: Number(__ENV.RATE || 1000),
      timeUnit: "1s",
      duration: __ENV.DURATION || "60s",
      preAllocatedVUs: 256,
      maxVUs: 4096,
    },
  },
  thresholds: {
    "http_req_duration{name:select}": [`p(99)<${__ENV.P99_MS || 50}`],
    http_req_failed: ["rate==0"],
    dropped_iterations: ["count==0"], // selects that were due but not sent
  },
  summaryTrendStats: ["med", "p(90)", "p(99)", "p(99.9)", "max"],
};

export function setup() {
  const answer = http.get(`${URL}/experiments/${EXPERIMENT}`, { headers: HEADERS });
  if (answer.status !== 200) throw new Error(`no experiment ${EXPERIMENT}: ${answer.status}`);
  const definition = answer.json("definition");
  return {
    features: definition.features.context || {},
    range: (definition.reward || {}).range || [0, 1],
  };
}

export default function ({ features, range }) {
  const context = {};
  for (const name in features) context[name] = draw(features[name]);
  const decision = post("select", { experiment: EXPERIMENT, context });
  if (decision && Math.random() < REWARDS) {
    const reward = range[Math.random() < 0.3 ? 1 : 0];
    post("reward", { decision_id: decision.decision_id, reward });
  }
}

function post(name, body) {
  const params = { headers: HEADERS, tags: { name } };
  const answer = http.post(`${URL}/${name}`, JSON.stringify(body), params);
  return check(answer, { "status is 200": (a) => a.status === 200 }) ? answer.json() : null;
}

// Any category, and numbers around their centre.
function draw(feature) {
  const around = () => (feature.center || 0) + (feature.scale || 1) * 3 * (Math.random() - 0.5);
  switch (feature.type) {
    case "numeric":
      return around();
    case "boolean":
      return Math.random() < 0.5;
    case "categorical":
      return feature.values[Math.floor(Math.random() * feature.values.length)];
    case "hashed":
      return `value-${Math.floor(Math.random() * 10 * feature.buckets)}`;
    default:
      return Array.from({ length: feature.size }, around);
  }
}
