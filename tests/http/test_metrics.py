"""GET /metrics: what is promised is there, in base units, with labels that have few values."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from service import __version__
from tests.support.metrics import documented, families, used
from tests.support.service import Wire, serving

ROOT = Path(__file__).parents[2]
SAID = [ROOT / "README.md", *(ROOT / "deploy").rglob("*.*"), *(ROOT / "docs").rglob("*.md")]

METRICS = documented()


@pytest.fixture
def wire() -> Iterator[Wire]:
    """After some traffic, and a snapshot."""
    with serving(snapshot_every_events=2, retention_days=1e-9) as wire:
        for policy in ("linucb", "lints", "named_only"):
            wire.reward(wire.select(policy=policy), 1.0)
        wire.until(lambda: any("snapshot_age" in name for name in wire.metrics()))
        yield wire


def test_what_is_exposed_is_what_the_page_of_metrics_says() -> None:
    with used() as wire:
        found = {name: (kind, labels) for name, (kind, labels, _) in families(wire).items()}
    assert found == {name: (each.kind, each.labels) for name, each in METRICS.items()}
    assert all(each.meaning.endswith(".") for each in METRICS.values())
    seconds = {name for name, each in METRICS.items() if each.unit == "seconds"}
    assert seconds == {name for name in METRICS if name.endswith("_seconds")}


def test_each_says_what_it_is_in_base_units(wire: Wire) -> None:
    """Latencies are told apart from a quarter of a millisecond on."""
    for name, (_, _, each) in families(wire).items():
        assert each.documentation.endswith(".")
        assert not re.search(r"_(ms|millis|milliseconds|minutes|hours|percent|kb|mb)(_|$)", name)
        if each.type == "histogram":
            assert name.endswith("_seconds")
            labels = [sample.labels for sample in each.samples if "le" in sample.labels]
            bounds = sorted({float(each["le"]) for each in labels})
            assert bounds[0] == 0.00025
            assert bounds[-2] >= 1


def test_what_the_dashboard_and_the_documents_name_is_there(wire: Wire) -> None:
    text = wire.get("/metrics").text
    exposed = set(re.findall(r"^(?:# TYPE )?(forage_\w+)", text, flags=re.MULTILINE))
    for path in SAID:
        named = set(re.findall(r"\bforage_[a-z_]+\b", path.read_text(encoding="utf-8")))
        named.discard("forage_client")  # a package
        assert named <= exposed, f"{path.relative_to(ROOT)}: {sorted(named - exposed)}"


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
    wire.reward(decision, 0.5, reward_id="order")
    wire.redefine(reward={"wait_seconds": 60})
    wire.select(policy="lints")
    wire.pass_by(60)
    metrics = wire.metrics()
    expired = 'experiment="shop",outcome="expired",policy="lints"'
    assert metrics[f"forage_rewards_total{{{expired}}}"] == 1
    policy = 'experiment="shop",{}policy="linucb"}}'
    assert metrics["forage_decisions_total{" + policy.format("")] == 2
    assert metrics["forage_rewards_total{" + policy.format('outcome="accepted",')] == 2
    assert metrics["forage_rewards_total{" + policy.format('outcome="duplicate",')] == 1
    assert metrics["forage_rewards_total{" + policy.format('outcome="ignored",')] == 1
    assert metrics["forage_reward_mean{" + policy.format("")] == 0.75


def test_gauges_follow_the_state(wire: Wire) -> None:
    before = wire.metrics()
    wire.reward(wire.select(policy="linucb"), 1.0)
    after = wire.metrics()
    position = 'forage_log_position{experiment="shop"}'
    assert (before[position], after[position]) == (4, 5)
    of = '{experiment="shop",policy="linucb"}'
    smallest = after["forage_head_smallest_eigenvalue" + of]
    assert smallest == 1, "ridge: one reward leaves directions without any"
    largest = after["forage_head_condition_number" + of]
    assert largest >= 2, "ridge 1, and one reward's |phi|^2"
    rank = after["forage_head_effective_rank" + of]
    assert 1 <= rank <= 2, "of two rewards"
    health = wire.policy("linucb")["head"]
    names = "smallest_eigenvalue", "condition_number", "effective_rank"
    assert [health[name] for name in names] == pytest.approx([smallest, largest, rank])
    assert 0 <= after["forage_selection_entropy_nats" + of] <= 1.1  # ln 3 at most
    assert 0 < after["forage_propensity_minimum" + of] <= 1
    assert 0 <= after['forage_snapshot_age_seconds{experiment="shop"}'] < 60
    wire.delete("/experiments/shop")
    gauges = [name for name in wire.metrics() if name.startswith(("forage_head", "forage_log_pos"))]
    assert gauges == []


def test_a_reward_far_beyond_the_usual_ones_shows_in_metric_and_status(wire: Wire) -> None:
    definition = {
        "arms": {"heads": {}, "tails": {}},
        "policies": {"toss": {"kind": "random"}},
        "reward": {"range": [0, 1000]},
    }
    wire.put("/experiments/coins", definition)

    def reward(value: float) -> None:
        wire.reward(wire.select(experiment="coins", context={}), value)

    for _ in range(20):
        reward(2.0)
    of = '{experiment="coins",policy="toss"}'
    assert wire.metrics()["forage_reward_extreme_ratio" + of] == 1
    [status] = wire.get("/experiments/coins/status").json()["figures"]
    assert status["reward_warning"] is None
    reward(1000.0)
    assert wire.metrics()["forage_reward_extreme_ratio" + of] == 500
    [status] = wire.get("/experiments/coins/status").json()["figures"]
    assert "counts as 500 of the usual size 2" in status["reward_warning"]


def test_a_deleted_experiment_leaves_no_series() -> None:
    """Not even where a request that was under way counts after the deletion, nor in memory."""
    with used() as wire:
        services, definition = wire.services, wire.definition()
        services.history.sample(services.clock.time(), services.telemetry.decision_statistics)
        assert any('experiment="shop"' in name for name in wire.metrics())
        wire.delete("/experiments/shop")
        assert services.telemetry.decision_statistics == services.telemetry.snapshots == {}
        services.history.sample(services.clock.time(), services.telemetry.decision_statistics)
        assert services.history.samples("shop", "lints", 5, 0.0).size == 0
        services.telemetry.decisions.labels("shop", "lints").inc()
        assert [name for name in wire.metrics() if "shop" in name] == []
        wire.put("/experiments/shop", definition)
        assert wire.get("/experiments/shop/decisions").json() == {"decisions": []}
        assert wire.policy("lints")["propensity_mean"] is None
        wire.select(policy="lints")
        decisions = 'forage_decisions_total{experiment="shop",policy="lints"}'
        assert wire.metrics()[decisions] == 1


def test_a_removed_policy_leaves_no_series() -> None:
    """Nor does a reward of one of its decisions bring one back. Those of the others stay."""
    with used() as wire:
        services, definition = wire.services, wire.definition()
        late = wire.select(policy="lints")
        before = wire.metrics()
        policies = {name: one for name, one in definition["policies"].items() if name != "lints"}
        wire.redefine(policies=policies)
        assert not any(policy == "lints" for _, policy in services.telemetry.decision_statistics)
        wire.post("/reward", {"decision_id": late["decision_id"], "reward": 1.0})
        services.telemetry.decisions.labels("shop", "lints").inc()
        after = wire.metrics()
        assert [name for name in after if 'policy="lints"' in name] == []
        decisions = 'forage_decisions_total{experiment="shop",policy="linucb"}'
        assert after[decisions] == before[decisions] > 0
        wire.redefine(policies=definition["policies"])
        wire.select(policy="lints")
        assert wire.metrics()[decisions.replace("linucb", "lints")] == 1


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


@pytest.mark.parametrize(
    ("accepted", "encoding"),
    [
        ("gzip", "gzip"),
        ("deflate, GZIP;q=0.5", "gzip"),
        ("gzip;q=1.0,identity", "gzip"),
        ("gzip;q=0", None),
        ("gzip; q=0.000, identity", None),
        ("xgzip", None),
        ("identity", None),
        ("", None),
    ],
)
def test_a_scrape_is_compressed_where_that_is_accepted(
    wire: Wire, accepted: str, encoding: str | None
) -> None:
    answer = wire.get("/metrics", headers={"Accept-Encoding": accepted})
    assert answer.headers.get("content-encoding") == encoding
    assert answer.headers["vary"] == "Accept-Encoding"
    assert "forage_decisions_total" in answer.text
    if encoding:
        assert int(answer.headers["content-length"]) * 4 < len(answer.content)


def test_the_version_is_exposed(wire: Wire) -> None:
    [(name, value)] = [each for each in wire.metrics().items() if "forage_build_info" in each[0]]
    assert f'version="{__version__}"' in name
    assert value == 1
