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
    (policy(kind="random", share=0), "policies"),  # no policy has a share
    (policy(kind="neural_ucb"), "policies.p"),  # without features
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


# -- what a definition changes ---------------------------------------------------------------------

BARE = {"policies": {"lints": {"kind": "lints"}}}
"""What someone sends to change one policy."""


def ranged(wire: Wire) -> None:
    rules = {"range": [0.0, 5.0], "wait_seconds": 60.0}
    wire.redefine(reward=rules)


def test_a_definition_that_leaves_out_the_arms_does_not_empty_the_catalogue(wire: Wire) -> None:
    """It is refused with everything that would go, and how to say that it is meant."""
    ranged(wire)
    before = wire.definition()
    problem = expect_problem(wire.put("/experiments/shop", BARE), 409)
    assert "?replace=true" in problem["detail"]
    assert 'If-Match: "2"' in problem["detail"]
    told = {fault["path"]: fault["message"] for fault in problem["errors"]}
    assert told["arms"] == "3 go: 'kibble', 'mouse', 'ball'"
    assert told["policies"] == "2 go: 'linucb', 'named_only'"
    assert told["features"].startswith("6 go: 'context.persona'")
    assert told["reward.range"] == "falls back to its default [0.0, 1.0], from [0.0, 5.0]"
    assert wire.definition() == before
    expect_problem(wire.put("/experiments/shop", BARE, headers={"If-Match": "*"}), 409)


@pytest.mark.parametrize(("query", "headers"), [("?replace=true", {}), ("", {"If-Match": '"1"'})])
def test_a_catalogue_is_emptied_where_that_is_meant(
    wire: Wire, query: str, headers: dict[str, str]
) -> None:
    answer = wire.put(f"/experiments/shop{query}", BARE, headers=headers)
    assert answer.status_code == 200
    assert {"arms.kibble", "arms.mouse", "arms.ball"} < {*answer.json()["changes"]["removed"]}
    assert wire.definition()["arms"] == {}
    assert wire.put("/experiments/shop", BARE).status_code == 200  # there is nothing to lose


def test_an_answer_lists_what_was_added_removed_and_changed(wire: Wire) -> None:
    ranged(wire)
    wire.put("/arms/rope", {"features": {"category": "toy"}})
    changed = wire.definition()
    del changed["arms"]["ball"], changed["policies"]["named_only"]
    changed["arms"] |= {"rope": {"category": "food"}, "new": {"category": "toy"}}
    changed["policies"]["lints"]["scale"] = 2.0
    changed["policies"]["linucb"] = {"kind": "epsilon_greedy"}
    changed["features"]["context"]["age"]["scale"] = 20.0
    changed["features"]["crosses"] = ["category x persona", "age x category"]
    changed["reward"]["range"] = [0.0, 1.0]
    changed["control"] = "lints"
    told = wire.put("/experiments/shop?dry_run=true", changed).json()["changes"]
    assert told["added"] == ["arms.new", "features.crosses.age x category"]
    assert sorted(told["removed"]) == ["arms.ball", "policies.named_only"]
    expected = {
        "arms.rope": {"before": {"category": "toy"}, "after": {"category": "food"}},
        "features.context.age.scale": {"before": 10.0, "after": 20.0},
        "policies.linucb.kind": {"before": "linucb", "after": "epsilon_greedy"},
        "policies.lints.scale": {"before": 1.0, "after": 2.0},
        "reward.range": {"before": [0.0, 5.0], "after": [0.0, 1.0]},
        "control": {"before": None, "after": "lints"},
    }
    assert expected.items() <= told["changed"].items()
    assert all(path in expected or "linucb" in path for path in told["changed"])
    assert wire.put("/experiments/shop", changed).json()["changes"] == told
    nothing = {"added": [], "removed": [], "changed": {}}
    assert wire.put("/experiments/shop", changed).json()["changes"] == nothing


# -- one policy ------------------------------------------------------------------------------------


@pytest.mark.parametrize("scope", ["", "/experiments/shop"])
def test_one_policy_is_changed_and_nothing_else(wire: Wire, scope: str) -> None:
    ranged(wire)
    wire.put("/arms/rope", {"features": {"category": "toy"}})
    wire.teach()
    before = wire.definition()
    linucb = {**before["policies"]["linucb"], "alpha": 0.5}
    told = wire.put(f"{scope}/policies/linucb?dry_run=true", linucb)
    assert wire.definition() == before
    answer = wire.put(f"{scope}/policies/linucb", linucb, headers={"If-Match": '"2"'})
    assert (answer.status_code, answer.headers["etag"]) == (200, '"3"')
    assert answer.json() == told.json()
    assert answer.json()["settings"] == linucb
    assert answer.json()["restarted"] == {}
    change = {"before": before["policies"]["linucb"]["alpha"], "after": 0.5}
    assert answer.json()["changes"]["changed"] == {"policies.linucb.alpha": change}
    before["policies"]["linucb"] = linucb
    assert wire.definition() == before
    assert wire.policy("linucb")["head"]["effective_count"] == 1
    wire.put(f"{scope}/policies/linucb", {"kind": "linucb", "ridge": 3.0})
    assert wire.policy("linucb")["head"]["effective_count"] == 0


def test_a_new_policy_is_created_and_serves(wire: Wire) -> None:
    answer = wire.put("/policies/toss", {"kind": "random"})
    assert answer.status_code == 201
    assert answer.json()["changes"]["added"] == ["policies.toss"]
    assert wire.select(policy="toss")["propensity"] == pytest.approx(1 / 3)
    assert wire.put("/policies/toss", {"kind": "random"}).status_code == 200


@pytest.mark.parametrize(
    ("policy", "body", "path"),
    [
        ("p", {}, "kind"),
        ("p", {"kind": MARKER}, "kind"),
        ("p", {"kind": "linucb", "alpha": MARKER}, "alpha"),
        ("p", {"kind": "linucb", "alfa": 1}, "alfa"),
        ("p", {"kind": "linucb", "ridge": 1e300}, "policies.p.ridge"),
        ("p", {"kind": "linucb", "features": ["nothing"]}, "policies.p"),
        ("a b", {"kind": "random"}, "policy"),
    ],
)
def test_a_faulty_policy_is_refused_with_its_path(
    wire: Wire, policy: str, body: Json, path: str
) -> None:
    for query in ("", "?dry_run=true"):
        answer = wire.put(f"/policies/{policy}{query}", body)
        assert paths(expect_problem(answer, 422)) == [path]
        assert MARKER not in answer.text
    assert "p" not in wire.definition()["policies"]


def test_a_policy_of_another_revision_of_no_experiment_or_one_too_many_is_refused(
    wire: Wire,
) -> None:
    toss = {"kind": "random"}
    expect_problem(wire.put("/policies/toss", toss, headers={"If-Match": '"2"'}), 412)
    expect_problem(wire.put("/experiments/none/policies/toss", toss), 404)
    wire.redefine(policies={f"p{number}": toss for number in range(64)})
    assert paths(expect_problem(wire.put("/policies/toss", toss), 422)) == ["policies"]
    assert wire.put("/policies/p0", {"kind": "lints"}).status_code == 200
