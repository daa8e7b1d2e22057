"""PUT /experiments/{name}: definitions that are refused, each with the path of its fault."""

from typing import Any

import pytest

from tests.support.service import Json, Wire, expect_problem, paths

RANDOM = {"toss": {"kind": "random"}}
MARKER = "SECRETVALUE"
WIDE = {
    "context": {"a": {"type": "hashed", "buckets": 60_000}},
    "arm": {"b": {"type": "hashed", "buckets": 60_000}},
    "crosses": ["a x b"],
}


def faulty(**parts: Any) -> Json:
    return {"policies": RANDOM, **parts}


def feature(**settings: Any) -> Json:
    return {"features": {"context": {"f": settings}}}


@pytest.mark.parametrize(
    ("definition", "path"),
    [
        pytest.param({}, "policies", id="no policies"),
        pytest.param({"policies": {}}, "policies", id="not one policy"),
        pytest.param(faulty(colour=MARKER), "colour", id="unknown key"),
        pytest.param(faulty(policies={"p": {"kind": MARKER}}), "policies.p", id="unknown kind"),
        pytest.param(faulty(policies={"p": {}}), "policies.p", id="no kind"),
        pytest.param(
            faulty(policies={"p": {"kind": "linucb", "alfa": 1}}), "policies.p.alfa", id="setting"
        ),
        pytest.param(
            faulty(policies={"p": {"kind": "linucb", "alpha": MARKER}}),
            "policies.p.alpha",
            id="type of a setting",
        ),
        pytest.param(
            faulty(policies={"p": {"kind": "random", "epsilon": 1.5}}),
            "policies.p.epsilon",
            id="range of a setting",
        ),
        pytest.param(
            faulty(policies={"p": {"kind": "random", "share": -1}}), "policies.p.share", id="share"
        ),
        pytest.param(
            faulty(policies={"p": {"kind": "random", "share": 0}}), "", id="nobody has a share"
        ),
        pytest.param(faulty(policies={"p/q": {"kind": "random"}}), "policies.p/q", id="name"),
        pytest.param(faulty(policies={"p": {"kind": "neural_ucb"}}), "", id="nothing to see"),
        pytest.param(feature(type=MARKER), "features.context.f", id="unknown type"),
        pytest.param(feature(type="vector"), "features.context.f.size", id="no size"),
        pytest.param(
            feature(type="categorical", values=["a", "a"]), "features.context.f", id="values"
        ),
        pytest.param(
            feature(type="numeric", scale=0), "features.context.f.scale", id="scale of nothing"
        ),
        pytest.param(
            faulty(features={"crosses": ["a x b"]}), "features", id="cross of unknown features"
        ),
        pytest.param(faulty(arms={"a": {"category": "x"}}), "arms.a.category", id="arm"),
        pytest.param(faulty(arms={"": {}}), "arms.", id="arm without an id"),
        pytest.param(faulty(reward={"range": [1, 0]}), "reward", id="range upside down"),
        pytest.param(faulty(reward={"range": [0]}), "reward.range.1", id="half a range"),
        pytest.param(faulty(reward={"default": 2}), "reward", id="default out of range"),
        pytest.param(
            faulty(reward={"aggregation": MARKER}), "reward.aggregation", id="aggregation"
        ),
        pytest.param(
            faulty(reward={"wait_seconds": 0}), "reward.wait_seconds", id="no time to wait"
        ),
        pytest.param(
            faulty(reward={"wait_seconds": 1e300}), "reward.wait_seconds", id="beyond any calendar"
        ),
        pytest.param(
            faulty(reward={"accept_seconds": 1e12}), "reward.accept_seconds", id="ages to accept"
        ),
    ],
)
def test_a_fault_is_named_by_its_path(wire: Wire, definition: Json, path: str) -> None:
    answer = wire.put("/experiments/new", {**faulty(), **definition} if definition else {})
    assert path in paths(expect_problem(answer, 422))
    assert MARKER not in answer.text
    expect_problem(wire.get("/experiments/new"), 404)


@pytest.mark.parametrize("kind", ["linucb", "lints", "neural_ucb"])
def test_more_columns_than_max_vector_are_refused_before_they_are_made(
    wire: Wire, kind: str
) -> None:
    """3.6e9 columns; a head of them would be 10^20 bytes."""
    policy = {"kind": kind, "features": ["a x b"]}
    answer = wire.put("/experiments/wide", {"features": WIDE, "policies": {"p": policy}})
    assert paths(expect_problem(answer, 422)) == ["policies.p.features"]


@pytest.mark.parametrize("layers", [{"hidden": [10**12]}, {"embedding": 10**9}])
def test_a_net_wider_than_max_vector_is_refused_before_it_is_made(wire: Wire, layers: Json) -> None:
    features = {"context": {"on": {"type": "boolean"}}}
    policy = {"kind": "neural_linear_ts", **layers}
    answer = wire.put("/experiments/wide", {"features": features, "policies": {"p": policy}})
    assert paths(expect_problem(answer, 422)) == [f"policies.p.{next(iter(layers))}"]


@pytest.mark.parametrize("name", ["a b", "é", "-a", ".a", "a" * 65, "a:b"])
def test_a_name_is_short_and_plain(wire: Wire, name: str) -> None:
    answer = wire.put(f"/experiments/{name}", {"policies": RANDOM})
    assert paths(expect_problem(answer, 422)) == ["experiment"]


def test_of_many_faults_the_first_are_told(wire: Wire) -> None:
    arms = dict.fromkeys(map(str, range(50_000)), 0)
    answer = wire.put("/experiments/new", {"policies": RANDOM, "arms": arms})
    assert 1 < len(expect_problem(answer, 422)["errors"]) <= 20
    assert len(answer.content) < 10_000


def test_a_long_name_is_not_sent_back_whole(wire: Wire) -> None:
    crosses = {"crosses": [f"{'a' * 100_000} x b"]}
    answer = wire.put("/experiments/new", {"policies": RANDOM, "features": crosses})
    expect_problem(answer, 422)
    assert len(answer.content) < 2_000
