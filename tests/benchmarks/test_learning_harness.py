"""The in-process harness is the service without its wire, and plays the same bits every time."""

import base64
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import service.serving.engine
from benchmarks.learning.course import Chance, chance, play
from benchmarks.learning.forage import EXPERIMENT, Forage, run
from service.bandits.posterior import digest
from service.state.events import Rewarded
from simulator_client.worlds import make_world
from tests.support.service import serving

NET = {
    "kind": "neural_linear_ts",
    "hidden": [8],
    "embedding": 4,
    "training": {"first": 40, "epochs": 2},
}
SLATES = {
    "features": {
        "context": {"user": {"type": "vector", "size": 2}},
        "arm": {"item": {"type": "vector", "size": 2}},
        "crosses": ["user x item"],
    },
    "arms": {str(k): {"item": [np.cos(k), np.sin(k)]} for k in range(8)},
    "policies": {"linucb": {"kind": "linucb"}},
}


@pytest.mark.parametrize("settings", [{"kind": "linucb"}, {"kind": "lints"}])
def test_a_run_is_the_same_to_the_bit(settings: dict[str, Any]) -> None:
    first, second = (run(make_world("zooplus", 42), "policy", settings, 1, 100) for _ in range(2))
    assert first.expected.tobytes() == second.expected.tobytes()
    assert first.eigenvalues == second.eigenvalues
    other = run(make_world("zooplus", 42), "policy", settings, 2, 100)
    assert first.expected.tobytes() != other.expected.tobytes()


@pytest.mark.slow
def test_a_training_falls_due_serves_and_learns_on() -> None:
    world = make_world("zooplus", 42)
    heads = []
    for _ in range(2):
        agent = Forage(world.definition(["net"], {"net": NET}))
        play(world, agent, 1, 100)
        version = agent.learner.active
        assert (version.number, version.rewards) == (2, 80)
        assert version.head is not None
        assert version.head.health().effective_count == 100
        heads.append(digest(version.head))
    assert heads[0] == heads[1]


class _Entropy:
    """What the harness gives a decision in place of entropy: its id and its seed."""

    def __init__(self) -> None:
        self.now = chance(1, 0)

    def getrandbits(self, bits: int) -> int:
        if bits == 63:
            return self.now.seed
        return int.from_bytes(base64.urlsafe_b64decode(self.now.decision + "=="), "big")


def _rounds() -> Iterator[tuple[dict[str, Any], Chance, int | None]]:
    """Requests of slates, and which slot is clicked."""
    rng = np.random.default_rng(0)
    for number in range(20):
        request = {
            "context": {"user": rng.standard_normal(2).tolist()},
            "arms": [str(arm) for arm in rng.permutation(8)[:5]],
            "top_k": 3,
        }
        yield request, chance(1, number), [None, 0, 1, 2][number % 4]


def _feedback(shown: list[str], slot: int | None) -> dict[str, Any]:
    return {"feedback": "cascade", "clicked": None if slot is None else shown[slot]}


def test_cascades_come_to_what_the_wire_makes_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    entropy = _Entropy()
    monkeypatch.setattr(service.serving.engine, "_entropy", entropy)
    agent = Forage(SLATES)
    with serving() as wire:
        assert wire.put(f"/experiments/{EXPERIMENT}", SLATES).status_code in (200, 201)
        for request, drawn, slot in _rounds():
            entropy.now = drawn
            shown = agent.show(request, drawn)
            decision = wire.select(experiment=EXPERIMENT, policy="linucb", **request)
            assert [place["arm"] for place in decision["ranking"]] == shown
            agent.settle(_feedback(shown, slot), drawn)
            assert wire.reward(decision, **_feedback(shown, slot)) == "accepted"
        head = agent.learner.active.head
        assert head is not None
        assert wire.policy("linucb", EXPERIMENT)["head"]["digest"] == digest(head)


def test_arms_below_a_click_are_not_learned_from() -> None:
    agent = Forage(SLATES)
    learned = []
    for request, drawn, slot in _rounds():
        agent.settle(_feedback(agent.show(request, drawn), slot), drawn)
        event = agent.log.events[-1]
        assert isinstance(event, Rewarded)
        learned.append([arm.reward for arm in event.settled])
    assert learned[:4] == [[0, 0, 0], [1], [0, 1], [0, 0, 1]]
