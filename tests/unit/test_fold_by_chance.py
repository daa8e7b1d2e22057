"""Logs by chance: replay equals live, snapshot and tail equal the whole fold, bit for bit."""

import copy
import math
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from service.decide.scoring import decide
from service.features.attributes import attribute_faults
from service.state.decider import Decider
from service.state.events import (
    Default,
    Rewarded,
    decode_event,
    encode_event,
)
from service.state.fold import State
from tests.support.properties import examples
from tests.unit.folding import KINDS, POLICIES, SHOP, Log, bits, replay

NETS = [
    *["neural", "neural_disjoint", "neural_ucb"],
    *["windowed", "changing", "ensemble", "dropout", "full", "static"],
]


def give(policies: dict[str, Any], *names: str, **settings: Any) -> None:
    """Give policies other settings."""
    for name in names:
        policies[name] |= settings


def changed(change: str) -> dict[str, Any]:
    """SHOP as an operator may define it anew."""
    definition = copy.deepcopy(SHOP)
    policies, features = definition["policies"], definition["features"]
    match change:
        case "knobs":
            policies["linucb"]["alpha"] = 0.5
            policies["neural"] |= {"draws": 32, "bank": 7, "epsilon": 0.1}
            policies["ensemble"] |= {"rule": "ucb", "alpha": 0.5}
            policies["full"] |= {"draws": 32, "scale": 0.5}
        case "frozen":
            definition["policies"] = {n: p | {"learning": False} for n, p in policies.items()}
        case "ridge":
            give(policies, "linucb", "neural_disjoint", "neural_ucb", "ensemble", ridge=2.0)
        case "forgetting":
            policies["forgetful"]["gamma"] = 0.5
            policies["windowed"]["window"] = 2
        case "fewer":
            for name in ("popularity", "lints_disjoint", "neural"):
                del policies[name]
        case "shadows":
            give(policies, "linucb", "popularity", "neural", "neural_ucb", "changing", shadow=True)
            give(policies, "full", shadow=True, fold=False)
            give(policies, "watcher", learns_from="own")
        case "features":
            features["context"]["member"] = {"type": "boolean", "default": True}
        case "same features":
            features["context"] = dict(reversed(features["context"].items()))
            definition["attributes"] = {"stock": "number", "brand": "text", "sale": "text"}
    return definition


indexes = st.integers(0, 99)
rewards = st.sampled_from([0.0, 1.0, 0.3])
settling = st.tuples(
    st.just("settle"), st.sampled_from(list(POLICIES)), indexes, rewards, st.booleans(), indexes
)
corrections = st.tuples(st.just("correct"), indexes, rewards)
withdrawals = st.tuples(st.just("withdraw"), indexes)
staging = st.tuples(st.just("stage"), st.sampled_from(NETS), st.integers(0, 6), st.booleans())
activations = st.tuples(st.sampled_from(["activate", "reject"]), st.sampled_from(NETS))
definitions = st.tuples(
    st.just("define"),
    st.sampled_from(
        [
            *["", "knobs", "frozen", "ridge", "forgetting", "fewer"],
            *["shadows", "features", "same features"],
        ]
    ),
)
resets = st.tuples(st.just("reset"), st.sampled_from([*POLICIES, "nobody"]))
changes = st.tuples(st.just("change"), st.sampled_from([[], [0], [1], [4]]), st.integers(0, 8))
arms = st.sampled_from(["toy1", "bed2", "new"])
kinds = st.fixed_dictionaries({"kind": st.sampled_from(KINDS)})
attributes = st.fixed_dictionaries(
    {},
    optional={
        "stock": st.none() | st.floats(-9, 9),
        "brand": st.none() | st.sampled_from(["", "Acme"]),
        "sale": st.none() | st.booleans(),
    },
)
some = attributes.map(lambda values: {n: v for n, v in values.items() if v is not None})
upserts = st.tuples(st.just("upsert"), arms, kinds, some)
patches = st.tuples(st.just("patch"), arms, kinds | st.just({}), attributes)
removals = st.tuples(st.just("remove"), arms)
operations = st.lists(
    settling | settling | corrections | withdrawals | staging | activations | changes
    | definitions | upserts | patches | removals | resets
    | st.just(("delete",)) | st.just(("delete", "reset")),
    min_size=1,
    max_size=25,
)  # fmt: skip


def settle(log: Log, policy: str, arm: int, reward: float, default: bool, age: int) -> None:
    arms = sorted(log.state.arms)
    if arms:
        shown = {arms[arm % len(arms)]: reward, arms[age % len(arms)]: 0.0}
        context = {"pet": ["cat", "dog"][arm % 2], "age": float(age)}
        log.settle(policy, shown, context, Default if default else Rewarded)


def correct(log: Log, which: int, reward: float) -> None:
    known = [shown for shown in log.settled if shown.event.settled]
    if known:
        log.correct(known[which % len(known)], reward)


def withdraw(log: Log, which: int) -> None:
    known = [shown for shown in log.settled if shown.event.settled]
    if known:
        shown = known[which % len(known)]
        log.withdraw(shown, shown.event.settled[-1].arm)


def stage(log: Log, policy: str, lag: int, gated: bool) -> None:
    learner = log.state.folded.get(policy)
    if learner and not learner.challenger and log.state.arms:
        log.stage(policy, lag, gated=gated)


def change(log: Log, columns: list[int], age: int) -> None:
    """The world changed for the pet, or for an arm, `age` events ago."""
    if "changing" in log.state.folded:
        log.change("changing", columns, max(0, len(log.records) - age))


def delete(log: Log, then: str = "") -> None:
    """then: a reset that its writer logged before it saw the deletion."""
    log.delete()
    if then:
        log.reset("neural")


def activate(log: Log, policy: str) -> None:
    learner = log.state.folded.get(policy)
    if learner and learner.challenger:
        log.activate(policy)


def reject(log: Log, policy: str) -> None:
    learner = log.state.folded.get(policy)
    if learner and learner.challenger:
        log.reject(policy)


OPERATIONS = {
    "define": lambda log, change: log.define(changed(change)),
    "settle": settle,
    "correct": correct,
    "withdraw": withdraw,
    "stage": stage,
    "activate": activate,
    "reject": reject,
    "change": change,
    "upsert": lambda log, *of: log.upsert(*of),
    "patch": lambda log, *of: log.patch(*of),
    "remove": lambda log, arm: log.remove(arm),
    "reset": lambda log, policy: log.reset(policy),
    "delete": delete,
}


def written(steps: list[tuple[Any, ...]]) -> Log:
    """A log of these operations."""
    log = Log()
    log.define(changed(""))
    for name, *arguments in steps:
        if name == "define" or not log.state.deleted:
            OPERATIONS[name](log, *arguments)
    return log


@settings(max_examples=examples(60))
@given(operations)
def test_replay_equals_live(steps: list[tuple[Any, ...]]) -> None:
    """Through the bytes of the log, too."""
    log = written(steps)
    read = [(decode_event(encode_event(event)), artifact) for event, artifact in log.records]
    assert bits(replay(read)) == bits(log.state)


@settings(max_examples=examples(60))
@given(operations)
def test_the_present_definition_makes_the_present_catalogue(steps: list[tuple[Any, ...]]) -> None:
    """Each attribute fits its declaration, each arm is encoded as it is, and a definition that says
    what there is changes neither."""
    state = written(steps).state
    if state.deleted:
        return
    definition = state.current_definition
    assert state.attributes.keys() <= state.arms.keys() == state.rows.keys()
    assert all(state.attributes.values())
    other = Log()
    other.define(definition.model_dump(mode="json"))
    assert (other.state.arms, other.state.attributes) == (state.arms, state.attributes)
    for arm, values in state.attributes.items():
        assert attribute_faults(definition.attributes, values, arm) == []
        assert (state.rows[arm] == other.state.rows[arm]).all()


@settings(max_examples=examples(60))
@given(operations, indexes)
def test_a_snapshot_anywhere_and_its_tail_equal_the_whole_fold(
    steps: list[tuple[Any, ...]], chosen: int
) -> None:
    log = written(steps)
    captured = []
    replay(log.records, watch=lambda state: captured.append(state.capture()))
    snapshot = captured[chosen % len(captured)]()
    restored = State.restore(snapshot)
    assert restored.position == snapshot.position
    assert restored.snapshot() == snapshot
    assert bits(replay(log.records, restored)) == bits(log.state)


@settings(max_examples=examples(40))
@given(operations)
def test_every_answer_of_any_log_is_a_distribution(steps: list[tuple[Any, ...]]) -> None:
    """Corrections of what a head does not hold would leave Beta(2, 0), and with it no number."""
    log = written(steps)
    if log.state.deleted or not log.state.arms:
        return
    context = np.ones(log.state.schema.context.width)
    for learner in log.state.folded.values():
        p, slate = decide(Decider.serving(learner), context, log.state.candidates, 1, seed=1)
        assert np.isfinite(p).all()
        assert abs(p.sum() - 1) < 1e-9
        assert slate.propensities == [p[slate.arms[0]]]
        assert slate.log_chance == math.log(slate.propensities[0])
