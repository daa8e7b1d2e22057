"""Arms are found by what a draw of the weights would score them, and none that went is found."""

import asyncio
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service import retrieval
from service.engine import decide
from service.events import ArmRemoved, ArmUpserted, ExperimentDefined
from service.fold import State
from service.policies.learner import Learner
from service.retrieval import DRAWS, Retrieval, Retriever

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


def learned(state: State, rewards: int = 40) -> Learner:
    policy, rng = state.learners["p"], np.random.default_rng(0)
    head = policy.active.head
    assert head is not None
    for phi in rng.standard_normal((rewards, policy.view.width)):
        head.observe("", phi, float(phi.sum()))
    return policy


def best(state: State, policy: Learner, seed: int, count: int) -> set[str]:
    """By scoring every row under every direction."""
    ids, rows = list(state.rows), np.array(list(state.rows.values()))
    head = policy.active.head
    directions = policy.directions(CONTEXT, DRAWS, seed) / _part(policy)[:, None]
    scores = policy.view.design(CONTEXT[None], rows) @ directions
    assert head is not None
    return {ids[row] for column in scores.T for row in column.argsort()[-count:]}


def _part(policy: Learner) -> Any:
    return policy.view.context_part(CONTEXT)


def loaded(state: State, policy: Learner, scanned: int = 20_000) -> Retriever:
    found = Retriever(policy.view, scanned=scanned)
    found.load(state.rows)
    return found


def test_where_all_are_as_good_some_are_found() -> None:
    """As for a context of zeros: no block of scores is better than another."""
    state = defined(6_000)
    policy = learned(state)
    found = loaded(state, policy).search(np.zeros((policy.view.width, 9)), 5, 0, 1)
    assert 5 <= len(found) <= 9 * 5


@pytest.mark.parametrize("kind", ["lints", "linucb"])
def test_what_is_found_are_the_best_under_each_direction(kind: str) -> None:
    state = defined(300, kind)
    policy = learned(state)
    for seed in range(5):
        directions = policy.directions(CONTEXT, DRAWS, seed)
        found = loaded(state, policy).search(directions, 5, 0, seed)
        assert set(found) == best(state, policy, seed, 5)


def test_a_file_that_looks_into_every_list_finds_what_a_scan_finds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("faiss")
    monkeypatch.setattr(retrieval, "PROBED", 1.0)
    state = defined(2_000)
    policy = learned(state)
    filed = loaded(state, policy, scanned=1_000)
    assert filed.stale
    filed.build_aside().join()
    assert not filed.stale
    for seed in range(5):
        directions = policy.directions(CONTEXT, DRAWS, seed)
        scanned = loaded(state, policy).search(directions, 5, 2, seed)
        assert filed.search(directions, 5, 2, seed) == scanned


@settings(deadline=None, max_examples=15)
@given(
    st.lists(st.tuples(st.integers(0, 60), st.booleans()), min_size=1, max_size=80),
    st.sampled_from([10, 20_000]),
    st.integers(0, 2**32),
)
def test_arms_that_come_and_go_between_builds_are_found_as_they_are(
    moves: list[tuple[int, bool]], scanned: int, seed: int
) -> None:
    state = defined(40)
    policy = learned(state)
    found = loaded(state, policy, scanned)
    if scanned == 10:
        found.build_aside().join()
    rng = np.random.default_rng(seed)
    for arm, stays in moves:
        if not stays and str(arm) not in state.rows:
            continue
        put(state, str(arm), rng.standard_normal(3).tolist() if stays else None)
        found.put(str(arm), state.rows.get(str(arm)))
        if scanned == 10 and found.stale:
            found.build_aside().join()
    assert len(found) == len(state.rows)
    directions = policy.directions(CONTEXT, DRAWS, seed)
    ids = found.search(directions, 5, 3, seed)
    assert set(ids) <= state.rows.keys()
    assert len(set(ids)) == len(ids)
    if scanned > 10:
        assert best(state, policy, seed, 5) <= set(ids)


def test_every_arm_has_a_chance_to_be_drawn() -> None:
    state = defined(40)
    policy = learned(state)
    found = loaded(state, policy)
    directions = policy.directions(CONTEXT, DRAWS, 0)
    seen = {arm for seed in range(400) for arm in found.search(directions, 1, 2, seed)}
    assert seen == set(state.rows)


def test_the_service_follows_its_catalogue() -> None:
    """An arm that came is a candidate at once, one that went at once is none."""

    async def scenario() -> None:
        state, found = defined(500), Retrieval()
        policy = learned(state)
        assert found.applies(state, policy)
        assert found.now(state, policy, CONTEXT, 1).ids == ()  # the catalogue is not taken in yet
        first = await found.candidates(state, policy, CONTEXT, 1)
        assert found.now(state, policy, CONTEXT, 1).ids == first.ids
        assert 5 < len(first.ids) < 60
        gone = first.ids[0]
        put(state, gone, None)
        mean = policy.directions(CONTEXT, 1, 0)[:, 0] / _part(policy)
        put(state, "star", (1e3 * mean[policy.view.groups[_image(policy)]]).tolist())
        for seed in range(20):
            candidates = found.now(state, policy, CONTEXT, seed)
            assert gone not in candidates.ids
            assert set(candidates.ids) <= state.rows.keys()
            p, _ = decide(policy, CONTEXT, candidates, 1, seed)
            assert p.sum() == pytest.approx(1.0)

    asyncio.run(scenario())


def _image(policy: Learner) -> int:
    return policy.view.names.index("image")


def test_disjoint_heads_cannot_be_searched() -> None:
    with pytest.raises(ValueError, match="disjoint heads cannot be searched"):
        defined(1, disjoint=True)
