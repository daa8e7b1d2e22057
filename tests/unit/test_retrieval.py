"""A search finds the arms that the mean and the draws score best, and none that was removed."""

import sys
from threading import Event
from typing import Any

import numpy as np
import pytest

from service.bandits.heads import Observation
from service.decide.scoring import decide
from service.retrieval import arm_index
from service.retrieval import shortlists as retrieval
from service.retrieval.arm_index import ArmIndex
from service.retrieval.shortlists import DRAWS, Retrieval, applies
from service.state.decider import Decider
from service.state.events import ArmRemoved, ArmUpserted, ExperimentDefined
from service.state.fold import State
from tests.support.clock import run_virtual

FEATURES = {
    "context": {"hour": {"type": "numeric"}, "mood": {"type": "vector", "size": 3}},
    "arm": {"image": {"type": "vector", "size": 3}, "new": {"type": "boolean", "default": False}},
    "crosses": ["hour x image", "mood x image"],
}
CONTEXT = np.array([0.5, 1.0, -2.0, 0.3])


def defined(arms: int, kind: str = "lints", **more: Any) -> State:
    rng = np.random.default_rng(arms)
    definition = {
        "features": FEATURES,
        "policies": {"p": {"kind": kind, "retrieve": 5, **more}},
        "arms": {str(arm): {"image": rng.standard_normal(3).tolist()} for arm in range(arms)},
    }
    state = State("shop")
    event = ExperimentDefined(at=0.0, revision=1, schema_version=1, definition=definition)
    state.apply(1, event)
    return state


def put(state: State, arm: str, image: list[float] | None) -> None:
    if image is None:
        state.apply(state.position + 1, ArmRemoved(at=0.0, arm=arm))
    else:
        event = ArmUpserted(at=0.0, arm=arm, features={"image": image})
        state.apply(state.position + 1, event)


def learned(state: State, rewards: int = 40) -> Decider:
    policy, rng = Decider.serving(state.learners["p"]), np.random.default_rng(0)
    head = policy.version.head
    assert head is not None
    for phi in rng.standard_normal((rewards, policy.view.width)):
        head.observe(Observation("", phi, float(phi.sum())))
    return policy


def best(state: State, policy: Decider, seed: int, count: int) -> set[str]:
    """By scoring every row under every direction."""
    ids, rows = list(state.rows), np.array(list(state.rows.values()))
    head = policy.version.head
    directions = policy.directions(CONTEXT, DRAWS, seed) / _part(policy)[:, None]
    scores = policy.view.design(CONTEXT[None], rows) @ directions
    assert head is not None
    return {ids[row] for column in scores.T for row in column.argsort()[-count:]}


def _part(policy: Decider) -> Any:
    return policy.view.context_part(CONTEXT)


def loaded(state: State, policy: Decider, scanned: int = 20_000) -> ArmIndex:
    found = ArmIndex(policy.view, scanned=scanned)
    found.load(state.rows)
    return found


def built(index: ArmIndex) -> None:
    index.build_aside().join()
    index.settle()


@pytest.mark.parametrize("kind", ["lints", "linucb"])
def test_what_is_found_are_the_best_under_each_direction(kind: str) -> None:
    state = defined(300, kind)
    policy = learned(state)
    for seed in range(5):
        directions = policy.directions(CONTEXT, DRAWS, seed)
        found = loaded(state, policy).search(directions, 5, 0, seed)
        assert set(found) == best(state, policy, seed, 5)


def test_every_arm_has_a_chance_to_be_drawn() -> None:
    state = defined(40)
    policy = learned(state)
    found = loaded(state, policy)
    directions = policy.directions(CONTEXT, DRAWS, 0)
    seen = {arm for seed in range(400) for arm in found.search(directions, 1, 2, seed)}
    assert seen == set(state.rows)


def test_the_service_follows_its_catalogue() -> None:
    """A new arm is a candidate at once, a removed arm is none at once."""

    async def scenario() -> None:
        state, found = defined(500), Retrieval()
        policy = learned(state)
        assert applies(state, policy.policy)
        assert (
            found.fast_candidates(state, policy, CONTEXT, 1).ids == ()
        )  # the catalogue is not taken in yet
        first = await found.candidates(state, policy, CONTEXT, 1)
        assert found.fast_candidates(state, policy, CONTEXT, 1).ids == first.ids
        assert 5 < len(first.ids) < 60
        gone = first.ids[0]
        put(state, gone, None)
        mean = policy.directions(CONTEXT, 1, 0)[:, 0] / _part(policy)
        put(state, "star", (1e3 * mean[policy.view.groups[_image(policy)]]).tolist())
        for seed in range(20):
            candidates = found.fast_candidates(state, policy, CONTEXT, seed)
            assert gone not in candidates.ids
            assert set(candidates.ids) <= state.rows.keys()
            p, _ = decide(policy, CONTEXT, candidates, 1, seed)
            assert p.sum() == pytest.approx(1.0)

    run_virtual(scenario())


def _image(policy: Decider) -> int:
    return policy.view.names.index("image")


def test_disjoint_heads_cannot_be_searched() -> None:
    with pytest.raises(ValueError, match="disjoint heads cannot be searched"):
        defined(1, disjoint=True)


Moving = tuple[State, Decider, ArmIndex]


def filed(arms: int = 2_000) -> Moving:
    """Arms with an index, all of whose lists are probed."""
    pytest.importorskip("faiss")
    state = defined(arms)
    policy = learned(state)
    found = loaded(state, policy, scanned=1_000)
    assert found.stale
    built(found)
    assert not found.stale
    return state, policy, found


def changed(state: State, found: ArmIndex, count: int, rng: np.random.Generator) -> None:
    """Change, add and remove arms."""
    for number in range(count):
        arm = str(rng.integers(2 * len(state.rows)))
        stays = number % 4 > 0 or arm not in state.rows
        put(state, arm, rng.standard_normal(3).tolist() if stays else None)
        found.change({arm: state.rows.get(arm)})


def expect_as_a_scan(found: ArmIndex, state: State, policy: Decider) -> None:
    assert len(found) == len(state.rows)
    exact = loaded(state, policy)
    for count in (5, 500):  # of 500 for each direction, most arms are among them
        directions = policy.directions(CONTEXT, DRAWS, count)
        own = found.search(directions, count, 0, 1)
        assert len(set(own)) == len(own)
        assert set(own) == set(exact.search(directions, count, 0, 1))


def test_an_index_follows_changes_and_is_then_as_good_as_a_scan() -> None:
    (state, policy, found), rng = filed(), np.random.default_rng(1)
    expect_as_a_scan(found, state, policy)
    for _ in range(5):
        changed(state, found, 60, rng)
        expect_as_a_scan(found, state, policy)


def test_an_arm_longer_than_all_others_is_found_whichever_lists_are_probed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its nearest center says nothing of what it scores."""
    for name, value in (("SCANNED_ARMS", 9), ("PROBED", 1)):
        monkeypatch.setattr(arm_index, name, value)
    _, policy, found = filed()
    mean = policy.directions(CONTEXT, 1, 0)[:, :1]
    gain = (policy.view.design(CONTEXT[None], np.eye(4)) @ (mean[:, 0] / _part(policy)))[:3]
    gain -= policy.view.design(CONTEXT[None], np.zeros((1, 4))) @ (mean[:, 0] / _part(policy))
    across = np.cross(gain, [1.0, 0.0, 0.0])
    image = 1e3 * (across / np.linalg.norm(across) + 0.2 * gain / np.linalg.norm(gain))
    found.change({"star": np.append(image, 0.0)})
    assert "star" in found.search(mean, 1, 0, 1)
    found.change({"star": None})
    assert "star" not in found.search(mean, 1, 0, 1)


def test_arms_that_change_during_a_build_are_scanned_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (state, policy, found), rng = filed(), np.random.default_rng(2)
    changed(state, found, 100, rng)
    started, go_on = Event(), Event()

    class Waiting(arm_index._InvertedFile):
        def __init__(self, vectors: Any) -> None:
            copy = vectors.copy()
            started.set()
            assert go_on.wait(10.0)
            super().__init__(copy)

    monkeypatch.setattr(arm_index, "_InvertedFile", Waiting)
    thread = found.build_aside()
    assert started.wait(10.0)
    changed(state, found, 200, rng)
    found.settle()
    expect_as_a_scan(found, state, policy)
    go_on.set()
    thread.join()
    found.settle()
    assert isinstance(found._file, Waiting)
    for _ in range(3):
        expect_as_a_scan(found, state, policy)
        changed(state, found, 60, rng)


def test_without_faiss_every_arm_is_compared(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    state = defined(2_000)
    found = loaded(state, learned(state), scanned=100)
    built(found)
    assert "2000 arms are searched one by one" in caplog.text
    assert found.slow
    assert not found.stale
    expect_as_a_scan(found, state, learned(state))


def test_many_changes_are_followed_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """No decision is made before all are."""
    monkeypatch.setattr(retrieval, "CHANGES_PER_SEARCH", 10)

    async def scenario() -> None:
        state, found = defined(500), Retrieval()
        policy = learned(state)
        first = await found.candidates(state, policy, CONTEXT, 1)
        gone = [str(number) for number in range(35) if str(number) not in first.ids][:30]
        gone.append(first.ids[0])
        for arm in gone:
            put(state, arm, None)
        for _ in range(3):
            assert found.fast_candidates(state, policy, CONTEXT, 1).ids == ()
        assert not set(gone) & set(found.fast_candidates(state, policy, CONTEXT, 1).ids)
        for arm in gone:
            put(state, arm, [0.0, 0.0, 1.0])
        candidates = await found.candidates(state, policy, CONTEXT, 1)
        assert found.fast_candidates(state, policy, CONTEXT, 1).ids == candidates.ids

    run_virtual(scenario())


def test_changes_without_end_are_followed_and_one_too_far_behind_starts_anew() -> None:
    async def scenario() -> None:
        state, found = defined(100), Retrieval()
        policy = learned(state)
        await found.candidates(state, policy, CONTEXT, 1)
        held = found._catalogues["shop", "p"]
        for number in range(10_200):
            put(state, str(number % 100), [float(number), 0.0, 1.0])
            if number % 100 == 0:
                assert found.fast_candidates(state, policy, CONTEXT, 1).ids
        assert len(state.changed) < state.changes
        for number in range(10_200):
            put(state, str(number % 100), [0.0, float(number % 7), 1.0])
        assert found._catalogues["shop", "p"] is held
        assert found.fast_candidates(state, policy, CONTEXT, 1).ids == ()
        await found.candidates(state, policy, CONTEXT, 1)
        assert found._catalogues["shop", "p"] is not held
        expect_as_a_scan(found._catalogues["shop", "p"].index, state, policy)

    run_virtual(scenario())
