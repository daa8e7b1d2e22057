"""Prometheus metrics of one service. Base units; every label has few and known values."""

from collections import deque
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from service.clock import SYSTEM, Clock
from service.observability.drift import Drift

SECONDS = (0.00025, 0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 1.0)

RECENT = 50
"""Decisions of each policy that are kept to be looked at."""

Recent = tuple[str, float, str, str, int, int, float]
"""id, unix seconds, first arm, model_version, arms shown, candidates, propensity."""

SMOOTHING = 0.01
"""Weight of the newest decision in the running means below: a memory of about 100."""


@dataclass(slots=True)
class Watch:
    """How one policy's decisions have been spread since the start of the process.

    decisions             the counter of these decisions
    propensity, entropy   running means, of the shown arm and of the choice in nats
    minimum               smallest propensity of a shown arm
    recent                the last decisions, oldest first
    """

    decisions: Counter
    count: int = 0
    propensity: float = 1.0
    entropy: float = 0.0
    minimum: float = 1.0
    recent: "deque[Recent]" = field(default_factory=lambda: deque(maxlen=RECENT))


Served = Mapping[str, Container[str]]
"""The policies of each experiment."""


class Telemetry:
    """Counters and histograms of requests, and readings of state taken when scraped."""

    def __init__(self, clock: Clock = SYSTEM) -> None:
        self.clock = clock
        self.registry = registry = CollectorRegistry()
        counter = partial(Counter, registry=registry)
        timings = partial(Histogram, buckets=SECONDS, registry=registry)
        gauge = partial(Gauge, registry=registry)
        self.requests = counter(
            "forage_http_requests_total", "Requests answered.", ["route", "method", "status"]
        )
        self.shed = counter(
            "forage_shed_requests_total",
            "Requests refused with 503 because too many were under way.",
            ["route"],
        )
        self.stages = timings(
            "forage_stage_seconds", "Time spent in a stage of answering.", ["stage"]
        )
        self.append_seconds = timings(
            "forage_log_append_seconds",
            "Time of one durable commit of the log, shared by all that waited for it.",
        )
        self.decisions = counter(
            "forage_decisions_total", "Decisions made.", ["experiment", "policy"]
        )
        self.repeated = counter(
            "forage_repeated_decisions_total",
            "Requests answered with the decision that their Idempotency-Key stood for already.",
            ["experiment"],
        )
        self.rewards = counter(
            "forage_rewards_total",
            "Rewards answered, by outcome.",
            ["experiment", "policy", "outcome"],
        )
        self.unlogged = counter(
            "forage_unlogged_decisions_total",
            "Decisions that were answered before, or without, being logged.",
        )
        self.overflowed = counter(
            "forage_lost_decisions_total", "Unlogged decisions that the buffer had no room for."
        )
        self.degraded = gauge("forage_degraded", "1 while the log cannot be written.")
        self.durability_changes = counter(
            "forage_durability_changes_total",
            "Times that a shared store was set to keep writes otherwise while it was used.",
        )
        self.refused = counter(
            "forage_refused_total",
            "Requests refused for their key, or for want of one.",
            ["reason"],
        )
        self.connections = gauge("forage_connections", "Open connections.")
        self.max_connections = gauge(
            "forage_connections_bound", "Connections that this process keeps open at most."
        )
        self.refused_connections = counter(
            "forage_refused_connections_total",
            "Connections refused because as many were open as may be.",
        )
        self.keys_stale = gauge(
            "forage_keys_stale",
            "1 while the file of keys cannot be read and the keys of before hold.",
        )
        self.damaged = counter(
            "forage_damaged_snapshots_total",
            "Snapshots passed over because they could not be read.",
        )
        self.trimmed = counter(
            "forage_trimmed_total",
            "Rows, events and marks that were deleted because of their age.",
            ["experiment"],
        )
        self.erased = counter(
            "forage_erased_decisions_total", "Decisions erased because a unit was.", ["experiment"]
        )
        self.snapshots: dict[str, float] = {}
        """Unix time of each experiment's last snapshot."""
        self.mismatched: dict[str, bool] = {}
        """Experiments whose last verdict found that the log does not hold what was drawn."""
        self.watched: dict[tuple[str, str], Watch] = {}
        self.drift = Drift(clock=clock)

    def decided(
        self, experiment: str, policy: str, propensity: float, entropy: float, recent: Recent
    ) -> None:
        """Count one decision and keep how it was spread."""
        watch = self.watched.get((experiment, policy))
        if watch is None:
            decisions = self.decisions.labels(experiment, policy)
            watch = self.watched[experiment, policy] = Watch(decisions)
        watch.count += 1
        weight = SMOOTHING if watch.count > 1 / SMOOTHING else 1 / watch.count
        watch.propensity += weight * (propensity - watch.propensity)
        watch.entropy += weight * (entropy - watch.entropy)
        if propensity < watch.minimum:
            watch.minimum = propensity
        watch.recent.append(recent)
        watch.decisions.inc()

    def forget_others(self, served: Served) -> None:
        """Forget what was measured of all other experiments and policies."""
        for counter in (self.decisions, self.repeated, self.rewards, self.trimmed, self.erased):
            _forget_others(counter, served)
        self.snapshots = {name: at for name, at in self.snapshots.items() if name in served}
        self.watched = {
            (name, policy): one
            for (name, policy), one in self.watched.items()
            if policy in served.get(name, ())
        }
        self.drift.forget_others(served)

    def expose(self, served: Served) -> bytes:
        """Return all metrics as text. Requests that were under way at a deletion have counted
        since: forget all but these experiments and policies first."""
        self.forget_others(served)
        return generate_latest(self.registry)

    def snapshot_age(self, experiment: str) -> float | None:
        taken = self.snapshots.get(experiment)
        return None if taken is None else self.clock.time() - taken


def _forget_others(counter: Counter, served: Served) -> None:
    """Remove the series of all other experiments, and of their other policies."""
    samples = [sample for metric in counter.collect() for sample in metric.samples]
    for labels in [sample.labels for sample in samples if sample.name.endswith("_total")]:
        policies = served.get(labels["experiment"])
        if policies is None or ("policy" in labels and labels["policy"] not in policies):
            counter.remove(*labels.values())
