"""PUT /experiments/{name}: refused definitions, bounds of numbers, limits of memory."""

import logging
from typing import Any

import pytest

from service.features.declaration import CLIP
from service.log.stores.memory import MemoryStore
from tests.support.service import Json, Wire, expect_problem, paths, serving

RANDOM = {"toss": {"kind": "random"}}
MARKER = "SECRETVALUE"
WIDE = {
    "context": {"a": {"type": "hashed", "buckets": 60_000}},
    "arm": {"b": {"type": "hashed", "buckets": 60_000}},
    "crosses": ["a x b"],
}


KINDS = ("linucb", "lints", "neural_ucb")
ON = {"context": {"on": {"type": "boolean"}}}


def faulty(**parts: Any) -> Json:
    return {"policies": RANDOM, **parts}


def feature(**settings: Any) -> Json:
    return {"features": {"context": {"f": settings}}}


def policy(**settings: Any) -> Json:
    return faulty(policies={"p": settings})


def reward(**rules: Any) -> Json:
    return faulty(reward=rules)


FAULTS = [
    ({}, "policies"),
    ({"policies": {}}, "policies"),
    (faulty(colour=MARKER), "colour"),
    (policy(kind=MARKER), "policies.p.kind"),
    (policy(), "policies.p.kind"),
    (policy(kind="linucb", alfa=1), "policies.p.alfa"),
    (policy(kind="linucb", alpha=MARKER), "policies.p.alpha"),
    (policy(kind="random", epsilon=1.5), "policies.p.epsilon"),
    (policy(kind="random", share=-1), "policies.p.share"),
    (policy(kind="random", share=0), ""),  # no policy has a share
    (policy(kind="neural_ucb"), ""),  # without features
    (faulty(policies={"p/q": {"kind": "random"}}), "policies.p/q"),
    (feature(type=MARKER), "features.context.f.type"),
    (feature(type="vector"), "features.context.f.size"),
    (feature(type="categorical", values=["a", "a"]), "features.context.f"),
    (feature(type="numeric", scale=0), "features.context.f.scale"),
    (faulty(features={"crosses": ["a x b"]}), "features"),
    (faulty(arms={"a": {"category": "x"}}), "arms.a.category"),
    (faulty(arms={"": {}}), "arms."),
    (reward(range=[1, 0]), "reward.range"),
    (reward(range=[0]), "reward.range.1"),
    (reward(range=[0, 1e-300]), "reward.range"),
    (reward(default=2), "reward.default"),
    (reward(aggregation=MARKER), "reward.aggregation"),
    (reward(wait_seconds=0), "reward.wait_seconds"),
    (reward(wait_seconds=1e300), "reward.wait_seconds"),
    (reward(accept_seconds=1e12), "reward.accept_seconds"),
]


@pytest.mark.parametrize(("definition", "path"), FAULTS)
def test_a_fault_is_named_by_its_path(wire: Wire, definition: Json, path: str) -> None:
    answer = wire.put("/experiments/new", {**faulty(), **definition} if definition else {})
    assert path in paths(expect_problem(answer, 422))
    assert MARKER not in answer.text
    expect_problem(wire.get("/experiments/new"), 404)


@pytest.mark.parametrize(
    ("features", "policy", "fault"),
    [
        *((WIDE, {"kind": k, "features": ["a x b"]}, "features") for k in KINDS),
        (ON, {"kind": "neural_linear_ts", "hidden": [10**12]}, "hidden"),
        (ON, {"kind": "neural_linear_ts", "embedding": 10**9}, "embedding"),
    ],
)
def test_more_columns_than_max_vector_are_refused_before_they_are_made(
    wire: Wire, features: Json, policy: Json, fault: str
) -> None:
    """3.6e9 columns; a head of them would be 10^20 bytes."""
    answer = wire.put("/experiments/wide", {"features": features, "policies": {"p": policy}})
    assert paths(expect_problem(answer, 422)) == [f"policies.p.{fault}"]


@pytest.mark.parametrize("name", ["a b", "é", "-a", ".a", "a" * 65, "a:b"])
def test_a_name_is_short_and_plain(wire: Wire, name: str) -> None:
    answer = wire.put(f"/experiments/{name}", {"policies": RANDOM})
    assert paths(expect_problem(answer, 422)) == ["experiment"]


def test_few_faults_are_told_and_long_names_are_not_sent_back_whole(wire: Wire) -> None:
    arms = dict.fromkeys(map(str, range(50_000)), 0)
    answer = wire.put("/experiments/new", {"policies": RANDOM, "arms": arms})
    assert 1 < len(expect_problem(answer, 422)["errors"]) <= 20
    assert len(answer.content) < 10_000
    crosses = {"crosses": [f"{'a' * 100_000} x b"]}
    answer = wire.put("/experiments/new", {"policies": RANDOM, "features": crosses})
    expect_problem(answer, 422)
    assert len(answer.content) < 2_000


# -- bounds of numbers -----------------------------------------------------------------------------

AGE: Json = {"type": "numeric", "center": 40.0, "scale": 10.0}


def define_ages(wire: Wire, **age: object) -> Json:
    definition = {
        "features": {"context": {"age": AGE | age}, "arm": {"price": {"type": "numeric"}}},
        "arms": {"a": {"price": 1.0}, "b": {"price": 2.0}},
        "policies": {"p": {"kind": "linucb", "features": ["intercept", "age", "price"]}},
    }
    answer = wire.put("/experiments/ages", definition)
    assert answer.status_code in (200, 201), answer.text
    return definition


def ask(wire: Wire, age: float) -> Json:
    return wire.select(experiment="ages", context={"age": age})


def expect_refused(wire: Wire, age: float) -> None:
    answer = wire.post("/select", {"experiment": "ages", "context": {"age": age}})
    assert paths(expect_problem(answer, 422)) == ["context.age"]


def test_a_number_is_held_to_its_bounds(wire: Wire) -> None:
    """Refused outside of min and max, otherwise clipped and counted."""
    definition = define_ages(wire)
    served = wire.definition("ages")["features"]["context"]["age"]
    assert served == AGE | {"min": None, "max": None, "clip": None, "default": None}
    wire.reward(ask(wire, 9.9e9), 1.0)
    state = wire.services.log.replicas.states["ages"]
    head = state.learners["p"].active.head.arrays()  # type: ignore[union-attr]
    assert head["A"][1, 1] <= 1 + CLIP**2
    assert wire.metrics()['forage_clipped_values_total{experiment="ages",feature="age"}'] == 1
    digest = wire.policy("p", "ages")["head"]["digest"]
    for again in (wire.definition("ages"), definition):  # neither changes the head
        assert wire.put("/experiments/ages", again).json()["schema_version"] == 1
        assert wire.policy("p", "ages")["head"]["digest"] == digest
    define_ages(wire, min=0.0, max=120.0)
    expect_refused(wire, 121.0)
    ask(wire, 120.0)
    define_ages(wire, center=None, scale=None)  # taken up to 1e15
    wire.reward(ask(wire, 1e12), 1.0)
    expect_refused(wire, 1e16)
    definition["features"]["arm"]["price"] = {"type": "numeric", "max": 10.0}
    definition["arms"]["c"] = {"price": 11.0}
    answer = wire.put("/experiments/ages", definition)
    assert paths(expect_problem(answer, 422)) == ["arms.c.price"]


# -- memory of an experiment -----------------------------------------------------------------------

QUOTA = 40 * 2**20


def wide(columns: int, **policy: Any) -> Json:
    """Define one head of so many columns."""
    return {
        "features": {"context": {"c": {"type": "vector", "size": columns - 1}}},
        "policies": {"p": {"kind": "lints", **policy}},
        "arms": {"one": {}, "other": {}},
    }


def test_a_definition_that_would_take_too_much_memory_is_refused() -> None:
    """A head of 1,000 columns takes 77 MiB with its draws."""
    with serving(experiment_memory_bytes=QUOTA) as wire:

        def put(columns: int) -> int:
            return wire.put("/experiments/wide", wide(columns)).status_code

        problem = expect_problem(wire.put("/experiments/wide", wide(1_000)), 422)
        assert paths(problem) == ["policies.p"]
        assert "77 MiB" in problem["detail"]
        assert "may take 40" in problem["detail"]
        assert wire.get("/experiments/wide").status_code == 404
        assert [put(500), put(1_000), put(100)] == [201, 422, 200]
        wire.services.admin._memory_bytes = 1
        assert [put(99), put(100)] == [200, 422]  # one that shrinks is taken


def test_arms_count_where_each_has_a_head() -> None:
    """Of 100 columns half a megabyte each: 80 of them fit, whoever adds them."""
    with serving(experiment_memory_bytes=QUOTA) as wire:
        assert wire.put("/experiments/wide", wide(100, disjoint=True)).status_code == 201
        arms, more = ({f"{name}{n}": {} for n in range(70)} for name in "ab")
        for _ in range(2):  # the second time they are there already
            added = wire.post("/experiments/wide/arms", {"arms": arms})
            assert added.status_code == 200
        problem = expect_problem(wire.post("/experiments/wide/arms", {"arms": more}), 422)
        assert paths(problem) == ["policies.p"]
        assert len(wire.get("/experiments/wide/arms").json()["arms"]) == 72


def test_an_existing_experiment_over_its_quota_is_served_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = MemoryStore()
    with serving(store) as before:
        assert before.put("/experiments/wide", wide(1_000)).status_code == 201
    with caplog.at_level(logging.WARNING), serving(store, experiment_memory_bytes=QUOTA) as wire:
        assert "experiment wide takes some 77 MiB" in caplog.text
        wire.select(experiment="wide", context={"c": [0.0] * 999})
        taken = wire.metrics()['forage_experiment_memory_bytes{experiment="wide"}']
        assert taken == pytest.approx(77 * 2**20, rel=0.02)
