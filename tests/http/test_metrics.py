"""GET /metrics: what is promised is there, in base units, with labels that have few values."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from tests.support.service import Wire, serving

ROOT = Path(__file__).parents[2]
SAID = [ROOT / "README.md", *(ROOT / "deploy").rglob("*.*"), *(ROOT / "docs").rglob("*.md")]

METRICS = {
    "forage_http_requests": ("counter", {"route", "method", "status"}),
    "forage_stage_seconds": ("histogram", {"stage"}),
    "forage_log_append_seconds": ("histogram", set()),
    "forage_decisions": ("counter", {"experiment", "policy"}),
    "forage_rewards": ("counter", {"experiment", "policy", "outcome"}),
    "forage_repeated_decisions": ("counter", {"experiment"}),
    "forage_unlogged_decisions": ("counter", set()),
    "forage_lost_decisions": ("counter", set()),
    "forage_degraded": ("gauge", set()),
    "forage_damaged_snapshots": ("counter", set()),
    "forage_trimmed": ("counter", {"experiment"}),
    "forage_erased_decisions": ("counter", {"experiment"}),
    "forage_processes": ("gauge", set()),
    "forage_log_position": ("gauge", {"experiment"}),
    "forage_snapshot_age_seconds": ("gauge", {"experiment"}),
    "forage_reward_mean": ("gauge", {"experiment", "policy"}),
    "forage_selection_entropy_nats": ("gauge", {"experiment", "policy"}),
    "forage_propensity_minimum": ("gauge", {"experiment", "policy"}),
    "forage_head_smallest_eigenvalue": ("gauge", {"experiment", "policy"}),
    "forage_model_version": ("gauge", {"experiment", "policy"}),
    "forage_trained_to_position": ("gauge", {"experiment", "policy"}),
}
"""Kind and labels of each."""


@pytest.fixture
def wire() -> Iterator[Wire]:
    """After some traffic, and a snapshot."""
    with serving(snapshot_every_events=2, retention_days=1e-9) as wire:
        for policy in ("linucb", "lints", "named_only"):
            wire.reward(wire.select(policy=policy), 1.0)
        wire.until(lambda: any("snapshot_age" in name for name in wire.metrics()))
        yield wire


def families(wire: Wire) -> dict[str, Metric]:
    text = wire.get("/metrics").text
    found = {each.name: each for each in text_string_to_metric_families(text)}
    return {name: each for name, each in found.items() if not name.endswith("_created")}


def test_the_metrics_are_these(wire: Wire) -> None:
    for _ in range(2):
        wire.post("/select", {"context": {"persona": "cat"}}, headers={"Idempotency-Key": "k"})
    wire.select(unit="ann")
    wire.delete("/units/ann")
    for _ in range(3):
        wire.reward(wire.select(), 1.0)
        wire.run(wire.services.journal.snapshot(wire.services.journal.live["shop"]))
    wire.run(wire.services.retention.trim_all())
    found = {
        name: (each.type, set().union(*(sample.labels for sample in each.samples)) - {"le"})
        for name, each in families(wire).items()
    }
    assert found == METRICS


def test_each_says_what_it_is_in_base_units(wire: Wire) -> None:
    for name, each in families(wire).items():
        assert each.documentation.endswith(".")
        assert not re.search(r"_(ms|millis|milliseconds|minutes|hours|percent|kb|mb)(_|$)", name)
        if each.type == "histogram":
            assert name.endswith("_seconds")


def test_latencies_are_told_apart_from_a_quarter_of_a_millisecond(wire: Wire) -> None:
    for name in ("forage_stage_seconds", "forage_log_append_seconds"):
        samples = families(wire)[name].samples
        bounds = [float(sample.labels["le"]) for sample in samples if "le" in sample.labels]
        assert min(bounds) == 0.00025
        assert sorted(set(bounds))[-2] >= 1


def test_what_the_dashboard_and_the_documents_name_is_there(wire: Wire) -> None:
    text = wire.get("/metrics").text
    exposed = set(re.findall(r"^(?:# TYPE )?(forage_\w+)", text, flags=re.MULTILINE))
    for path in SAID:
        named = set(re.findall(r"\bforage_[a-z_]+\b", path.read_text(encoding="utf-8")))
        assert named <= exposed, f"{path.relative_to(ROOT)}: {sorted(named - exposed)}"


def test_labels_that_the_dashboard_groups_by_are_there(wire: Wire) -> None:
    known = {label for _, labels in METRICS.values() for label in labels} | {
        "le",
        "instance",
        "job",
    }
    for path in (ROOT / "deploy").rglob("*.json"):
        for group in re.findall(r"by \(([^)]*)\)", path.read_text(encoding="utf-8")):
            assert {label.strip() for label in group.split(",")} <= known, path.name


def test_requests_are_counted_by_route_method_and_status(wire: Wire) -> None:
    wire.post("/select", {"context": {}})
    wire.get("/arms/kibble")
    metrics = wire.metrics()
    route = 'forage_http_requests_total{{method="{}",route="{}",status="{}"}}'
    assert metrics[route.format("POST", "/select", 200)] == 3
    assert metrics[route.format("POST", "/select", 422)] == 1
    assert metrics[route.format("POST", "/reward", 200)] == 3
    assert metrics[route.format("GET", "/arms/{arm}", 200)] == 1


def test_decisions_and_rewards_are_counted_by_policy_and_outcome(wire: Wire) -> None:
    decision = wire.select(policy="linucb")
    for _ in range(2):
        wire.reward(decision, 0.5)
    metrics = wire.metrics()
    policy = 'experiment="shop",{}policy="linucb"}}'
    assert metrics["forage_decisions_total{" + policy.format("")] == 2
    assert metrics["forage_rewards_total{" + policy.format('outcome="accepted",')] == 2
    assert metrics["forage_rewards_total{" + policy.format('outcome="duplicate",')] == 1
    assert metrics["forage_reward_mean{" + policy.format("")] == 0.75


def test_gauges_follow_the_state(wire: Wire) -> None:
    before = wire.metrics()
    wire.reward(wire.select(policy="linucb"), 1.0)
    after = wire.metrics()
    position = 'forage_log_position{experiment="shop"}'
    assert (before[position], after[position]) == (4, 5)
    of = '{experiment="shop",policy="linucb"}'
    smallest = after["forage_head_smallest_eigenvalue" + of]  # ridge 1, and one reward's |phi|^2
    assert smallest == pytest.approx(wire.policy("linucb")["head"]["smallest_eigenvalue"])
    assert smallest >= 2
    assert 0 <= after["forage_selection_entropy_nats" + of] <= 1.1  # ln 3 at most
    assert 0 < after["forage_propensity_minimum" + of] <= 1
    assert 0 <= after['forage_snapshot_age_seconds{experiment="shop"}'] < 60


def test_expired_decisions_are_counted() -> None:
    with serving(expiry_seconds=0.01) as wire:
        wire.redefine(reward={"wait_seconds": 0.02})
        wire.select(policy="linucb")
        of = 'experiment="shop",outcome="expired",policy="linucb"'
        wire.until(lambda: wire.metrics().get(f"forage_rewards_total{{{of}}}") == 1)


def test_what_callers_invent_makes_no_series(wire: Wire) -> None:
    def invent(number: int) -> None:
        name = f"invented{number}"
        wire.get(f"/{name}")
        wire.get(f"/{name}/{name}")
        wire.request(f"BREW{number}", "/select")
        wire.get(f"/experiments/{name}")
        wire.get(f"/arms/{name}")
        wire.get(f"/decisions/{name}")
        wire.post("/select", {"context": {}, "experiment": name})
        wire.post("/select", {"context": {}, "policy": name})
        wire.post("/reward", {"decision_id": name, "reward": 1.0})
        wire.select(unit=name, arms=[{"id": name, "features": {"category": "toy"}}])

    for number in range(10):  # both policies of the split have been asked by now
        invent(number)
    wire.metrics()
    before = wire.metrics().keys()
    for number in range(10, 20):
        invent(number)
    assert wire.metrics().keys() == before
    assert not any("invented" in name for name in before)


def test_an_experiment_that_is_gone_leaves_the_gauges(wire: Wire) -> None:
    wire.delete("/experiments/shop")
    gauges = [name for name in wire.metrics() if name.startswith(("forage_head", "forage_log_pos"))]
    assert gauges == []
