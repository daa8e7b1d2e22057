"""Prometheus metrics of one service. Base units; every label has few and known values."""

from bisect import bisect_left
from collections import deque
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from operator import itemgetter
from platform import python_version
from time import time
from typing import Generic, TypeVar

import msgspec
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Info,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from service import __version__
from service.clock import SYSTEM, Clock
from service.errors import StoreUnavailable
from service.telemetry.drift import Drift
from service.telemetry.rollout_samples import RolloutSamples
from service.telemetry.siblings import (
    Sampled,
    Siblings,
    Subject,
    no_siblings,
    sampled,
    together,
)

BUCKET_SECONDS = (
    0.00025,
    0.0005,
    0.001,
    0.002,
    0.004,
    0.008,
    0.016,
    0.032,
    0.064,
    0.128,
    0.256,
    1.0,
)

RECENT_DECISIONS = 50
"""Decisions of each policy that are kept to be looked at."""

Recent = tuple[str, float, str, str, int, int, float]
"""Recent decision: id, unix seconds, first arm, model_version, arms shown, candidates,
propensity."""

SMOOTHING = 0.01
"""Weight of the newest decision in the running means below: a memory of about 100."""


@dataclass(slots=True)
class DecisionStatistics:
    """Spread of one policy's decisions since the start of the process, or of its service.

    propensity, entropy   running means, of the shown arm and of the choice in nats
    minimum               smallest propensity of a shown arm
    recent                the last decisions, oldest first
    """

    count: int = 0
    propensity: float = 1.0
    entropy: float = 0.0
    minimum: float = 1.0
    recent: "deque[Recent]" = field(default_factory=lambda: deque(maxlen=RECENT_DECISIONS))

    def plus(self, other: "DecisionStatistics") -> "DecisionStatistics":
        """Return the statistics of two workers together."""
        count = self.count + other.count
        weight = other.count / max(count, 1)
        return DecisionStatistics(
            count,
            self.propensity + weight * (other.propensity - self.propensity),
            self.entropy + weight * (other.entropy - self.entropy),
            min(self.minimum, other.minimum),
            deque(sorted([*self.recent, *other.recent], key=itemgetter(1)), RECENT_DECISIONS),
        )


Statistics = dict[tuple[str, str], DecisionStatistics]
"""Statistics of decisions by experiment and policy."""

_Spread = tuple[tuple[str, str], int, float, float, float, list[Recent]]
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Sampled]).decode
_decode_spreads = msgspec.msgpack.Decoder(list[_Spread]).decode


def _encode_statistics(statistics: Statistics) -> bytes:
    return _encode(
        [
            (key, one.count, one.propensity, one.entropy, one.minimum, list(one.recent))
            for key, one in statistics.items()
        ]
    )


def add_up(workers: Iterable[bytes]) -> Statistics:
    """Return the statistics of several workers together, by their answers."""
    found: Statistics = {}
    for worker in workers:
        for key, decisions, propensity, entropy, minimum, recent in _decode_spreads(worker):
            last = deque(recent, RECENT_DECISIONS)
            own = DecisionStatistics(decisions, propensity, entropy, minimum, last)
            found[key] = found[key].plus(own) if key in found else own
    return found


def left_of(about: Subject, several: Iterable[bytes]) -> bytes:
    """Return what workers that have ended leave to their service, by their last answers."""
    if about == "decisions":
        return _encode_statistics(add_up(several))
    return _encode([each for each in together(map(_decode, several)) if each.lasts])


class Count:
    """A count that only the event loop's thread raises. prometheus_client takes a lock: the two
    counts and five timings of a decision would cost 4 microseconds more, and 9 where their labels
    are looked up."""

    __slots__ = ("count", "created")

    def __init__(self) -> None:
        self.count = 0
        self.created = time()

    def inc(self, by: int = 1) -> None:
        self.count += by


class Timing:
    """Durations that only the event loop's thread observes: counts by bucket of SECONDS."""

    __slots__ = ("counts", "created", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKET_SECONDS) + 1)
        self.total = 0.0
        self.created = time()

    def observe(self, seconds: float, times: int = 1) -> None:
        self.counts[bisect_left(BUCKET_SECONDS, seconds)] += times
        self.total += times * seconds


@dataclass(frozen=True, slots=True)
class LogSizes:
    """What the logs take in their store.

    used, limit   bytes of the whole store, and those that it may take (None: unknown)
    bytes, rows   by experiment
    """

    used: int
    limit: int | None
    bytes: Mapping[str, int]
    rows: Mapping[str, int]


Served = Mapping[str, Container[str]]
"""Policies of each experiment."""

Series = TypeVar("Series", Count, Timing)


class Labelled(Collector, Generic[Series]):
    """A metric by labels; each series begins with its first use."""

    def __init__(
        self,
        kind: type[Series],
        name: str,
        text: str,
        labels: Sequence[str] = (),
        *,
        registry: CollectorRegistry,
    ) -> None:
        self._kind: type[Series] = kind
        self._name, self._text, self._labels = name, text, tuple(labels)
        self._series: dict[tuple[str, ...], Series] = {}
        registry.register(self)

    def labels(self, *values: str) -> Series:
        series = self._series.get(values)
        if series is None:
            series = self._series[values] = self._kind()
        return series

    def forget_others(self, served: Served) -> None:
        """Forget the series of all other experiments, the first label, and of their other
        policies."""
        by_policy = "policy" in self._labels
        self._series = {
            labels: one
            for labels, one in self._series.items()
            if labels[0] in served and (not by_policy or labels[1] in served[labels[0]])
        }

    def describe(self) -> Iterable[Metric]:
        kind = CounterMetricFamily if self._kind is Count else HistogramMetricFamily
        return [kind(self._name, self._text, labels=self._labels)]

    def collect(self) -> Iterable[Metric]:
        counts = CounterMetricFamily(self._name, self._text, labels=self._labels)
        timings = HistogramMetricFamily(self._name, self._text, labels=self._labels)
        bounds = [*map(str, BUCKET_SECONDS), "+Inf"]
        for values, one in self._series.items():
            if isinstance(one, Count):
                counts.add_metric(values, one.count, created=one.created)
                continue
            buckets = list(zip(bounds, accumulate(one.counts), strict=True))
            timings.add_metric(values, buckets, one.total)
            named = dict(zip(self._labels, values, strict=True))
            timings.add_sample(f"{self._name}_created", named, one.created)
        yield counts if self._kind is Count else timings


class Telemetry:
    """Counters and histograms of requests, and readings of state taken when scraped.

    registry   what each worker of a service has of its own
    states     what is the same in each worker
    siblings   asks all workers of the service, this one among them
    """

    def __init__(self, clock: Clock = SYSTEM) -> None:
        self.clock = clock
        self.registry = registry = CollectorRegistry()
        self.states = CollectorRegistry()
        self.siblings: Siblings = no_siblings
        ProcessCollector(registry=registry)
        Info("forage_build", "1, with the version of this process.", registry=registry).info(
            {"version": __version__, "python": python_version()}
        )
        counts = partial(Labelled[Count], Count, registry=registry)
        timings = partial(Labelled[Timing], Timing, registry=registry)
        counter = partial(Counter, registry=registry)
        gauge = partial(Gauge, registry=registry)
        self.requests = counts(
            "forage_http_requests_total", "Requests answered.", ["route", "method", "status"]
        )
        self.shed = counts(
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
        ).labels()
        self.decisions = counts(
            "forage_decisions_total", "Decisions made.", ["experiment", "policy"]
        )
        self.fallback_decisions = counts(
            "forage_fallback_decisions_total",
            "Decisions that the fallback made because the policy could not.",
            ["experiment", "policy", "reason"],
        )
        self.repeated = counts(
            "forage_repeated_decisions_total",
            "Requests answered with the decision that their Idempotency-Key stood for already.",
            ["experiment"],
        )
        self.rule_decisions = counts(
            "forage_rule_decisions_total",
            "Decisions that a rule moved, and those in which it yielded to others.",
            ["experiment", "rule", "outcome"],
        )
        self.rule_unknown_arms = counts(
            "forage_rule_unknown_arms_total",
            "Arms that were not eligible because a value that a rule reads is missing.",
            ["experiment", "rule"],
        )
        self.rewards = counts(
            "forage_rewards_total",
            "Rewards answered, by outcome.",
            ["experiment", "policy", "outcome"],
        )
        self.unlogged = counter(
            "forage_unlogged_decisions_total",
            "Decisions that were answered before, or without, being logged.",
        )
        self.lost = counter(
            "forage_lost_decisions_total",
            "Unlogged decisions lost because the buffer was full or the process ended.",
        )
        self.degraded = gauge("forage_degraded", "1 while the log cannot be written.")
        self.durability_changes = counter(
            "forage_durability_changes_total",
            "Changes of a shared store's durability settings while it was in use.",
        )
        self.refused = counts(
            "forage_refused_total",
            "Requests refused because of their key, or without one.",
            ["reason"],
        )
        self.connections = gauge("forage_connections", "Open connections.")
        self.max_connections = gauge(
            "forage_connections_bound", "Most connections that this process keeps open."
        )
        self.refused_connections = counter(
            "forage_refused_connections_total",
            "Connections refused at the limit of open ones.",
        )
        self.keys_stale = gauge(
            "forage_keys_stale",
            "1 while the file of keys cannot be read and the previous keys stay valid.",
        )
        self.damaged = counter(
            "forage_damaged_snapshots_total",
            "Snapshots skipped because they could not be read.",
        )
        self.trimmed = counts(
            "forage_trimmed_total",
            "Rows, events and marks that were deleted because of their age.",
            ["experiment"],
        )
        self.erased = counts(
            "forage_erased_decisions_total", "Decisions erased with their unit.", ["experiment"]
        )
        self.webhook_attempts = counts(
            "forage_webhook_attempts_total",
            "Attempts to send a change to the webhook.",
            ["experiment", "outcome"],
        )
        self.snapshots: dict[str, float] = {}
        """Unix time of each experiment's last snapshot."""
        self.log_sizes: LogSizes | None = None
        """Sizes of logs as last measured; None where another process measures, or the store did not
        answer."""
        self.mismatched: dict[str, bool] = {}
        """Experiments whose last verdict found a sample ratio mismatch."""
        self.decision_statistics: dict[tuple[str, str], DecisionStatistics] = {}
        self.drift = Drift(clock=clock)
        self.rollout_samples = RolloutSamples()
        self.breached: dict[tuple[str, str], tuple[int, dict[str, bool]]] = {}
        """Rollouts as this process last found them, by experiment and challenger: the position of
        their start, and whether each guardrail is breached."""

    def decided(
        self, experiment: str, policy: str, propensity: float, entropy: float, recent: Recent
    ) -> None:
        """Count one decision and keep how it was spread."""
        watch = self.decision_statistics.get((experiment, policy))
        if watch is None:
            watch = self.decision_statistics[experiment, policy] = DecisionStatistics()
        watch.count += 1
        weight = SMOOTHING if watch.count > 1 / SMOOTHING else 1 / watch.count
        watch.propensity += weight * (propensity - watch.propensity)
        watch.entropy += weight * (entropy - watch.entropy)
        if propensity < watch.minimum:
            watch.minimum = propensity
        watch.recent.append(recent)
        self.decisions.labels(experiment, policy).inc()

    def ruled(
        self,
        experiment: str,
        held: Sequence[str],
        relaxed: Sequence[str],
        unknown: Sequence[tuple[str, int]],
    ) -> None:
        """Count what rules did to a decision. unknown: rules that could not tell, of how many
        arms."""
        for rule in held:
            self.rule_decisions.labels(experiment, rule, "held").inc()
        for rule in relaxed:
            self.rule_decisions.labels(experiment, rule, "relaxed").inc()
        for rule, arms in unknown:
            self.rule_unknown_arms.labels(experiment, rule).inc(arms)

    def forget_others(self, served: Served) -> None:
        """Forget what was measured of all other experiments and policies."""
        for counts in (
            self.decisions, self.fallback_decisions, self.repeated, self.rewards, self.trimmed,
            self.erased, self.rule_decisions, self.rule_unknown_arms, self.webhook_attempts,
        ):  # fmt: skip
            counts.forget_others(served)
        self.snapshots = {name: at for name, at in self.snapshots.items() if name in served}
        self.mismatched = {name: one for name, one in self.mismatched.items() if name in served}
        self.decision_statistics = {
            (name, policy): one
            for (name, policy), one in self.decision_statistics.items()
            if policy in served.get(name, ())
        }
        self.breached = {
            (name, policy): one
            for (name, policy), one in self.breached.items()
            if policy in served.get(name, ())
        }
        self.drift.forget_others(served)
        self.rollout_samples.forget_others(served)

    async def expose(self, served: Served) -> bytes:
        """Return all metrics of the service as text. Requests that were under way at a deletion
        have counted since: forget all but these experiments and policies first."""
        self.forget_others(served)
        try:
            workers = [_served(_decode(each), served) for each in await self.siblings("metrics")]
        except TimeoutError:
            raise StoreUnavailable("the workers do not say what they have counted") from None
        own = _Together(self.registry, workers) if workers else self.registry
        return generate_latest(own) + generate_latest(self.states)

    def answer(self, about: Subject, served: Served) -> bytes:
        """Return what this worker has counted, for a sibling."""
        self.forget_others(served)
        if about == "decisions":
            return _encode_statistics(self.decision_statistics)
        return _encode(sampled(self.registry.collect()))

    async def statistics(self) -> Statistics:
        """Return the statistics of the decisions of all workers."""
        try:
            workers = await self.siblings("decisions")
        except TimeoutError:
            workers = []
        return add_up(workers) if workers else self.decision_statistics

    def snapshot_age(self, experiment: str) -> float | None:
        taken = self.snapshots.get(experiment)
        return None if taken is None else self.clock.time() - taken


class _Together(Collector):
    """Metrics of a service by those of its workers. own: of one of them, for what they say."""

    def __init__(self, own: Collector, workers: list[list[Sampled]]) -> None:
        self._own, self._workers = own, workers

    def collect(self) -> Iterable[Metric]:
        found = {each.name: each for each in together(self._workers)}
        for metric in self._own.collect():
            whole = Metric(metric.name, metric.documentation, metric.type)
            for name, labels, value in found[metric.name].samples:
                whole.add_sample(name, labels, value)
            yield whole


def _served(metrics: Sequence[Sampled], served: Served) -> list[Sampled]:
    """Leave out the samples of experiments and policies that are gone."""

    def is_served(labels: Mapping[str, str]) -> bool:
        name, policy = labels.get("experiment"), labels.get("policy")
        return name is None or (name in served and (policy is None or policy in served[name]))

    return [
        Sampled(each.name, each.lasts, [one for one in each.samples if is_served(one[1])])
        for each in metrics
    ]
