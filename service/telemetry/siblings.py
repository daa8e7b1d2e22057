"""What the workers of one service have counted, together.

Each process counts in its own memory. Counts in memory that all workers map, as prometheus_client
keeps them for several processes, take 1.9 microseconds each in place of 0.16, and a decision makes
seven. A scrape asks all workers in their place; each is asked anew, so no count runs back.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from operator import add
from typing import Literal

import msgspec
from prometheus_client.core import Metric

Subject = Literal["metrics", "decisions"]
"""What workers are asked for."""

LARGEST_COUNTS = frozenset(
    {
        "forage_build", "forage_degraded", "forage_follow_lag_seconds", "forage_keys_stale",
        "forage_log_bytes", "forage_log_losses", "forage_log_rows", "forage_processes",
        "forage_quarantined", "forage_rollout_guardrail_breached", "forage_sample_ratio_mismatch",
        "forage_store_bytes", "forage_store_clock_skew_seconds", "forage_store_limit_bytes",
    }
)  # fmt: skip
"""Metrics of which a service has the largest of its workers."""

SMALLEST_COUNTS = frozenset(
    {
        "forage_buffer_seconds", "forage_propensity_minimum", "forage_snapshot_age_seconds",
        "process_max_fds", "process_start_time_seconds",
    }
)  # fmt: skip
"""Metrics of which a service has the smallest of its workers. All others are added up."""

Siblings = Callable[[Subject], Awaitable[list[bytes]]]
"""Asks all workers of a service, and what those that have ended had counted, as `Telemetry.answer`
writes it; nothing where one process is the service."""


async def no_siblings(about: Subject) -> list[bytes]:
    """Answer for a service of one process."""
    return []


SampleKey = tuple[str, str, tuple[tuple[str, str], ...]]
"""Name of a metric, name of one of its samples, and its labels."""


class Sampled(msgspec.Struct, array_like=True):
    """A metric as one worker has it. lasts: it outlasts the worker."""

    name: str
    lasts: bool
    samples: list[tuple[str, dict[str, str], float]]


def sampled(metrics: Iterable[Metric]) -> list[Sampled]:
    return [
        Sampled(
            each.name,
            each.type in ("counter", "histogram"),
            [(sample.name, sample.labels, sample.value) for sample in each.samples],
        )
        for each in metrics
    ]


def _rule(metric: str, sample: str) -> Callable[[float, float], float]:
    if metric in SMALLEST_COUNTS or sample.endswith("_created"):
        return min
    return max if metric in LARGEST_COUNTS else add


def together(several: Iterable[Sequence[Sampled]]) -> list[Sampled]:
    """Return the metrics of a service by those of its workers."""
    metrics, values = dict[str, Sampled](), dict[SampleKey, float]()
    for one in several:
        for each in one:
            metrics.setdefault(each.name, Sampled(each.name, each.lasts, []))
            for name, labels, value in each.samples:
                key = each.name, name, tuple(sorted(labels.items()))
                known = values.get(key)
                values[key] = value if known is None else _rule(each.name, name)(known, value)
    for (metric, name, pairs), value in values.items():
        metrics[metric].samples.append((name, dict(pairs), value))
    return list(metrics.values())
