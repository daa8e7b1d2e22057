"""What /metrics exposes once every part of a service was used, and what the page says of it."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from service.state.events import Outcome, Rewarded
from service.telemetry.drift import Drift
from tests.support.broken import break_head
from tests.support.service import Wire, serving

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "metrics.md"
ROW = re.compile(
    r"^\| `((?:forage|process)_\w+)` \|([^|]*)\|([^|]*)\|([^|]*)\|([^|]*)\|$", re.MULTILINE
)


class Documented(NamedTuple):
    kind: str
    unit: str
    labels: set[str]
    meaning: str


def documented() -> dict[str, Documented]:
    """The page of metrics, by name of the family (a counter's goes without `_total`)."""
    found = {}
    for name, *cells in ROW.findall(PAGE.read_text(encoding="utf-8")):
        kind, unit, labels, meaning = (cell.strip() for cell in cells)
        names = {label.strip() for label in labels.split(",")} - {""}
        found[name.removesuffix("_total")] = Documented(kind, unit, names, meaning)
    return found


def families(wire: Wire) -> dict[str, tuple[str, set[str], Metric]]:
    """Kind, labels and samples of each family."""
    text = wire.get("/metrics").text
    found = [each for each in text_string_to_metric_families(text) if "_created" not in each.name]
    return {each.name: (each.type, labels_of(each), each) for each in found}


def labels_of(family: Metric) -> set[str]:
    return set().union(*(sample.labels for sample in family.samples)) - {"le"}


def _settle_more(wire: Wire, policy: str, count: int) -> None:
    """As many rewards as a shift is told after, past the log."""
    state, drift = wire.services.log.replicas.states["shop"], wire.services.telemetry.drift
    settled = [Outcome("ball", 1.0, state.schema.layout.pack(np.zeros(state.schema.width)))]
    version = state.schema_version
    for number in range(count):
        drift.learned(
            state,
            Rewarded(
                at=0.0,
                decision=str(number),
                policy=policy,
                schema_version=version,
                settled=settled,
            ),
        )


@contextmanager
def used(**settings: Any) -> Iterator[Wire]:
    """A service that has done all that it counts: every family has a sample."""
    with serving(snapshot_every_events=2, retention_days=1e-9, **settings) as wire:
        wire.services.telemetry.drift = Drift(samples=10)
        net = {"kind": "neural_linear_ts", "hidden": [4], "embedding": 2}
        wire.redefine(
            policies={**wire.definition()["policies"], "net": net},
            attributes={"stock": "number"},
            rules={"in_stock": {"arm": "mouse", "eligible_if": "stock > 0"}},
            never_below={"policy": "net", "by": 0.1},
        )
        plan = {"policy": "named_only", "baseline": "linucb"}
        assert wire.post("/experiments/shop/rollouts", plan).status_code == 201
        for _ in range(2):
            wire.post("/select", {"context": {"persona": "cat"}}, headers={"Idempotency-Key": "k"})
        for policy in ("linucb", "lints", "net"):
            for _ in range(30):  # from so many rows on their usual size is known
                wire.reward(wire.select(policy=policy), 1.0)
        _settle_more(wire, "lints", 1_000)
        wire.select(unit="ann")
        wire.delete("/units/ann")
        for _ in range(3):
            wire.reward(wire.select(), 1.0)
            wire.run(wire.services.log.snapshots.save(wire.services.log.replicas.by_name["shop"]))
        wire.run(wire.services.retention.trim_all())
        wire.run(wire.services.sizes.measure())
        break_head(wire.services.log.replicas.states["shop"].learners["linucb"])
        wire.select(policy="linucb")
        telemetry = wire.services.telemetry
        assert telemetry.log_sizes is not None
        telemetry.log_sizes = replace(telemetry.log_sizes, limit=2**30)
        wire.services.telemetry.refused.labels("missing").inc()
        wire.services.telemetry.webhook_attempts.labels("shop", "failed").inc()
        wire.services.telemetry.mismatched["shop"] = False
        wire.run(wire.services.rollouts.guard(wire.services.log.replicas.states["shop"]))
        yield wire
