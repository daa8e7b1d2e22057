"""What is published of a state decides as the state does: the same probabilities and draws, bit for
bit, wherever a log is cut into images and heads."""

from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.decide.scoring import decide
from service.errors import Damaged, UnknownSchema
from service.state import publication
from service.state.decider import Decider
from service.state.fold import State
from service.state.publication import Following, Heads, Publishing, Stamp
from tests.support.properties import examples
from tests.unit.folding import Log, opened, replay, shop
from tests.unit.test_fold_by_chance import operations, written


class Pair:
    """A state that is published, and one that follows what is."""

    def __init__(self) -> None:
        self.publishing, self.following = Publishing(), Following("shop")
        self.parts: dict[str, bytes] = {}
        self.kinds: list[str] = []

    def publish(self, state: State) -> None:
        """Publish a state, without anybody reading it yet."""
        make = self.publishing.next(state)
        if make is not None:
            made = make()
            self.kinds += made
            self.parts |= made

    def read(self) -> None:
        """Read what is published last."""
        own = self.publishing
        stamp = Stamp.read(str(Stamp("p", 1, own.image, own.heads, own.position, 0.0)))
        parts = {name: self.parts[name] for name in self.following.missing(stamp)}
        self.following.take(self.following.read_image(parts), parts)

    def expect_equal(self, state: State) -> None:
        self.publish(state)
        self.read()
        assert answers(self.following.state) == answers(state)


def answers(state: State) -> list[Any]:
    """All that decisions read of a state, and the decisions of all policies in some contexts."""
    found: list[Any] = [state.position, state.log_time, state.deleted, state.revision]
    found += [state.first_schema, state.skips, state.erased_keys, state.exposure.members()]
    if state.deleted or not state.arms:
        return found
    found += [list(state.arms.items()), list(state.attributes.items()), state.traffic.members()]
    width = state.schema.context.width
    contexts = np.linspace(0.0, 1.0, 2 * width).reshape(2, width)
    for learner in state.deciding.values():
        for decider in deciders(state, learner):
            found += [decider.label, decider.epsilon, decider.facts(state.candidates)]
            for seed, context in enumerate(contexts):
                for slots in (1, 2):
                    p, slate = decide(decider, context, state.candidates, slots, seed)
                    found += [p.tobytes(), slate.arms, slate.propensities]
    return found


def deciders(state: State, learner: Any) -> list[Decider]:
    both = [Decider.serving(learner)]
    return both if learner.challenger is None else [*both, Decider.challenging(learner)]


@settings(max_examples=examples(80))
@given(operations, st.lists(st.booleans(), min_size=30, max_size=30), st.booleans())
def test_a_follower_decides_as_the_state_it_follows(
    steps: list[tuple[Any, ...]], cuts: list[bool], large: bool
) -> None:
    """large: heads are published by the rows that moved."""
    log, pair = written(steps), Pair()
    cut = iter(cuts * (1 + len(log.records) // len(cuts)))

    def watch(state: State) -> None:
        pair.publish(state)
        if next(cut):
            pair.expect_equal(state)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(publication, "LARGE_BYTES", 0 if large else 2**40)
        patch.setattr(publication, "MOST_MOVED", 2.0)
        state = replay(log.records, watch=watch)
        pair.expect_equal(state)


AUTO = {
    "auto": {"kind": "auto"},
    "own": {"kind": "auto", "learns_from": "all"},
    "pop": {"kind": "popularity", "learns_from": "all"},
    "logistic": {"kind": "neural_glm_ts", "hidden": [4], "embedding": 2, "learns_from": "all"},
    "square": {"kind": "squarecb", "learns_from": "all"},
    "greedy": {"kind": "epsilon_greedy", "learns_from": "all"},
}


@pytest.mark.parametrize("large", [True, False])
def test_an_averaged_head_follows_through_its_late_members_and_imports(large: bool) -> None:
    log, rng = Log(), Random(4)
    log.define(shop(**AUTO))
    pair = Pair()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(publication, "LARGE_BYTES", 0 if large else 2**40)
        patch.setattr(publication, "MOST_MOVED", 0.95)
        for number in range(600):
            arm = rng.choice(sorted(log.state.arms))
            context = {"pet": rng.choice(["cat", "dog"]), "age": rng.random() * 9}
            log.settle("auto", {arm: rng.random()}, context, imported=number in (3, 300))
            if rng.random() < 0.2:
                pair.expect_equal(log.state)
        pair.expect_equal(log.state)
    assert pair.kinds.count("image") == 1
    assert ("moved" in pair.kinds) == large


def test_an_image_follows_whatever_is_no_settlement_and_heads_follow_settlements() -> None:
    log, pair = opened({"kind": "lints", "disjoint": True}), Pair()
    pair.expect_equal(log.state)
    log.settle("p", {"toy1": 1.0})
    pair.expect_equal(log.state)
    log.upsert("new", {"kind": "toy"})
    pair.expect_equal(log.state)
    log.settle("p", {"new": 1.0})
    pair.expect_equal(log.state)
    pair.publish(log.state)
    assert pair.kinds == ["image", "heads", "image", "heads"]


def test_an_image_holds_no_settlement_and_no_decision() -> None:
    log = opened({"kind": "linucb", "window": 8, "change": False})
    for _ in range(5):
        log.settle("p", {"toy1": 1.0})
    pair = Pair()
    pair.publish(log.state)
    log.settle("p", {"toy1": 1.0})
    pair.publish(log.state)
    names = [b'"d%d"' % number for number in range(9)]
    assert not any(name in part for name in names for part in pair.parts.values())
    assert b'"d5"' in log.state.snapshot().payload


def test_a_follower_passes_over_what_does_not_continue_it() -> None:
    log, pair, other = opened({"kind": "linucb"}), Pair(), Pair()
    pair.expect_equal(log.state)
    log.settle("p", {"toy1": 1.0})
    other.publish(log.state)  # another process begins with an image of another position
    log.settle("p", {"toy1": 0.0})
    other.publish(log.state)
    before = pair.following.state.position
    assert not pair.following.take(None, {"heads": other.parts["heads"]})
    assert pair.following.state.position == before
    pair.expect_equal(log.state)
    image = pair.following.read_image({"image": other.parts["image"]})
    assert not pair.following.take(image, {})  # an older position
    assert pair.following.state.position == log.state.position


def test_what_cannot_be_read_says_so() -> None:
    log, pair = opened({"kind": "linucb"}), Pair()
    pair.publish(log.state)
    log.settle("p", {"toy1": 1.0})
    pair.publish(log.state)
    with pytest.raises(Damaged):
        Heads.read(pair.parts["heads"][:-9])
    with pytest.raises(UnknownSchema, match="schema 99"):
        Heads.read(b"\x99\x63" + pair.parts["heads"][2:])
    with pytest.raises(Damaged):
        Stamp.read("p 1")


@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_keep_the_order_of_their_memory(order: Any) -> None:
    """Products round by it."""
    array = np.asarray(np.arange(12.0).reshape(4, 3), order=order)
    read = publication._pack(array).unpack(None)
    assert read.flags.f_contiguous == (order == "F")
    assert (read == array).all()
    moved = array.copy(order="K")
    moved[2] = -1.0
    packed = publication._pack_moved(moved, array)
    assert packed is not None
    read = packed.unpack(array)
    assert read.flags.f_contiguous == (order == "F")
    assert (read == moved).all()
    assert len(packed.data) == array.nbytes // 4
    assert publication._pack_moved(array, array) is None


def test_large_heads_are_whole_again_once_half_of_them_have_moved() -> None:
    log, pair = opened({"kind": "lints", "disjoint": True}), Pair()
    arms = sorted(log.state.arms)
    for arm in arms * 300:
        log.settle("p", {arm: 1.0})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(publication, "LARGE_BYTES", 0)
        pair.expect_equal(log.state)
        for arm in (arms[0], arms[0], arms[1], *arms):
            log.settle("p", {arm: 1.0})
            pair.expect_equal(log.state)
    assert pair.kinds[:4] == ["image", "heads", "moved", "moved"]
    assert "heads" in pair.kinds[4:]
