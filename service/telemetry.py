"""Prometheus metrics of one service. Base units; every label has few and known values."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter, time
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

SECONDS = (0.00025, 0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 1.0)


class Family(NamedTuple):
    """A gauge read when scraped: values by the values of its labels."""

    name: str
    text: str
    labels: tuple[str, ...]
    values: list[tuple[tuple[str, ...], float]]


Reading = Callable[[], Iterable[Family]]


SMOOTHING = 0.01
"""Weight of the newest decision in the running means below: a memory of about 100."""


@dataclass(slots=True)
class Watch:
    """How one policy's decisions have been spread since the start of the process.

    propensity, entropy   running means, of the shown arm and of the choice in nats
    minimum               smallest propensity of a shown arm
    """

    count: int = 0
    propensity: float = 1.0
    entropy: float = 0.0
    minimum: float = 1.0


class _Readings(Collector):
    def __init__(self, read: Reading) -> None:
        self._read = read

    def describe(self) -> Iterable[GaugeMetricFamily]:
        return []

    def collect(self) -> Iterable[GaugeMetricFamily]:
        for name, text, labels, values in self._read():
            family = GaugeMetricFamily(name, text, labels=labels)
            for label_values, value in values:
                family.add_metric(label_values, value)
            yield family


class Telemetry:
    """Counters and histograms of the hot path, and readings of state taken when scraped."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Counter(
            "forage_http_requests_total",
            "Requests answered.",
            ["route", "method", "status"],
            registry=registry,
        )
        self.stages = Histogram(
            "forage_stage_seconds",
            "Time spent in a stage of answering.",
            ["stage"],
            buckets=SECONDS,
            registry=registry,
        )
        self.append_seconds = Histogram(
            "forage_log_append_seconds",
            "Time of one durable commit of the log, shared by all that waited for it.",
            buckets=SECONDS,
            registry=registry,
        )
        self.decisions = Counter(
            "forage_decisions_total",
            "Decisions made.",
            ["experiment", "policy"],
            registry=registry,
        )
        self.repeated = Counter(
            "forage_repeated_decisions_total",
            "Requests answered with the decision that their Idempotency-Key stood for already.",
            ["experiment"],
            registry=registry,
        )
        self.rewards = Counter(
            "forage_rewards_total",
            "Rewards answered, by outcome.",
            ["experiment", "policy", "outcome"],
            registry=registry,
        )
        self.unlogged = Counter(
            "forage_unlogged_decisions_total",
            "Decisions that were answered before, or without, being logged.",
            registry=registry,
        )
        self.overflowed = Counter(
            "forage_lost_decisions_total",
            "Unlogged decisions that the buffer had no room for.",
            registry=registry,
        )
        self.degraded = Gauge(
            "forage_degraded", "1 while the log cannot be written.", registry=registry
        )
        self.damaged = Counter(
            "forage_damaged_snapshots_total",
            "Snapshots passed over because they could not be read.",
            registry=registry,
        )
        self.trimmed = Counter(
            "forage_trimmed_total",
            "Rows, events and marks that were deleted because of their age.",
            ["experiment"],
            registry=registry,
        )
        self.erased = Counter(
            "forage_erased_decisions_total",
            "Decisions erased because a unit was.",
            ["experiment"],
            registry=registry,
        )
        self.snapshots: dict[str, float] = {}
        """Unix time of each experiment's last snapshot."""
        self.watched: dict[tuple[str, str], Watch] = {}

    def decided(self, experiment: str, policy: str, propensity: float, entropy: float) -> None:
        """Count one decision and keep how it was spread."""
        watch = self.watched.setdefault((experiment, policy), Watch())
        watch.count += 1
        weight = max(SMOOTHING, 1 / watch.count)
        watch.propensity += weight * (propensity - watch.propensity)
        watch.entropy += weight * (entropy - watch.entropy)
        watch.minimum = min(watch.minimum, propensity)
        self.decisions.labels(experiment, policy).inc()

    def read(self, reading: Reading) -> None:
        self.registry.register(_Readings(reading))

    def expose(self) -> bytes:
        return generate_latest(self.registry)

    def snapshot_age(self, experiment: str) -> float | None:
        taken = self.snapshots.get(experiment)
        return None if taken is None else time() - taken

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        start = perf_counter()
        try:
            yield
        finally:
            self.stages.labels(name).observe(perf_counter() - start)
