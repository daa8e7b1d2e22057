"""Bounds of numbers over the wire: refused with their path, clipped and counted, logged whole."""

from service.definition.experiment import CLIP
from tests.support.service import Json, Wire, expect_problem, paths

AGE: Json = {"type": "numeric", "center": 40.0, "scale": 10.0}


def define(wire: Wire, **age: object) -> Json:
    definition = {
        "features": {"context": {"age": AGE | age}, "arm": {"price": {"type": "numeric"}}},
        "arms": {"a": {"price": 1.0}, "b": {"price": 2.0}},
        "policies": {"p": {"kind": "linucb", "features": ["intercept", "age", "price"]}},
    }
    answer = wire.put("/experiments/ages", definition)
    assert answer.status_code in (200, 201), answer.text
    return definition


def served(wire: Wire) -> Json:
    found: Json = wire.definition("ages")["features"]["context"]["age"]
    return found


def ask(wire: Wire, age: float) -> Json:
    return wire.select(experiment="ages", context={"age": age})


def test_a_number_is_served_as_it_was_declared(wire: Wire) -> None:
    define(wire)
    assert served(wire) == AGE | {"min": None, "max": None, "clip": None, "default": None}


def test_a_value_beyond_the_clip_is_learned_from_as_the_clip_and_counted(wire: Wire) -> None:
    define(wire)
    wire.reward(ask(wire, 9.9e9), 1.0)
    state = wire.services.journal.states["ages"]
    head = state.learners["p"].active.head.arrays()  # type: ignore[union-attr]
    assert head["A"][1, 1] <= 1 + CLIP**2
    assert wire.metrics()['forage_clipped_values_total{experiment="ages",feature="age"}'] == 1


def test_a_value_outside_min_and_max_is_refused_with_its_path(wire: Wire) -> None:
    define(wire, min=0.0, max=120.0)
    body = {"experiment": "ages", "context": {"age": 121.0}}
    assert paths(expect_problem(wire.post("/select", body), 422)) == ["context.age"]
    ask(wire, 120.0)


def test_what_was_got_can_be_put_back_and_so_can_what_was_put_first(wire: Wire) -> None:
    first = define(wire)
    wire.reward(ask(wire, 41.0), 1.0)
    head = wire.policy("p", "ages")["head"]["digest"]
    for again in (wire.definition("ages"), first):
        body = wire.put("/experiments/ages", again).json()
        assert body["schema_version"] == 1
        assert wire.policy("p", "ages")["head"]["digest"] == head


def test_arms_are_held_to_the_bounds_of_their_features(wire: Wire) -> None:
    definition = define(wire)
    definition["features"]["arm"]["price"] = {"type": "numeric", "max": 10.0}
    definition["arms"]["c"] = {"price": 11.0}
    answer = wire.put("/experiments/ages", definition)
    assert paths(expect_problem(answer, 422)) == ["arms.c.price"]


def test_a_number_without_a_declared_scale_is_taken_up_to_1e15(wire: Wire) -> None:
    define(wire, center=None, scale=None)
    wire.reward(ask(wire, 1e12), 1.0)
    body = {"experiment": "ages", "context": {"age": 1e16}}
    assert paths(expect_problem(wire.post("/select", body), 422)) == ["context.age"]
