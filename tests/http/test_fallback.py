"""Where a policy cannot decide the fallback does: no request fails, and the log stays true."""

from collections import Counter
from collections.abc import Iterator
from random import Random

import numpy as np
import pytest

from service.analysis.evaluate import evaluate
from service.analysis.history import read_history
from service.analysis.request import EvaluationRequest, Selection
from service.analysis.selected import selected
from service.analysis.targets import ExtraPolicies
from service.analysis.walk import Walk
from service.log.stores.memory import MemoryStore
from service.offline.audit import Audit
from service.state.decisions import Decision, decode_decision
from service.state.fold import State
from tests.support.broken import break_head
from tests.support.service import Json, Wire, serving

SHARES = {"linucb": 1.0, "lints": 1.0, "random": 1.0}
POLICIES = {name: {"kind": name, "share": share} for name, share in SHARES.items()}
RULES = {
    "fresh": {"floor": {"arm": "mouse", "share": 0.2}},
    "ad": {"pin": {"arm": "ball", "share": 0.3, "if": "member"}},
    "few": {"cap": {"arm": "kibble", "count": 3, "every": "1m"}},
    "if_empty": "ball",
}
ROPE = {"id": "rope", "features": {"category": "toy"}}
LIKED = {"cat": "food", "dog": "toy"}
KINDS = {"kibble": "food", "mouse": "toy", "ball": "toy", "rope": "toy"}


@pytest.fixture
def broken(store: MemoryStore) -> Iterator[Wire]:
    """A shop whose `linucb` is no number; it shares the traffic with others."""
    with serving(store) as wire:
        wire.redefine(policies=POLICIES)
        break_head(state_of(wire).learners["linucb"])
        yield wire


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def state_of(wire: Wire) -> State:
    state = wire.services.log.replicas.state("shop")
    assert state is not None
    return state


def row_of(wire: Wire, answer: Json) -> Decision:
    row = wire.run(wire.services.store.decision("shop", answer["id"]))
    assert row is not None
    return decode_decision(row)


def chance(context: Json, arm: str) -> float:
    """Of a reward of 1."""
    return 0.7 if KINDS[arm] == LIKED[context["persona"]] else 0.1


def question(rng: Random, number: int) -> Json:
    """One arm or a ranking, of the catalogue, of named arms or of one outside it; with a unit or
    without."""
    asked: Json = {"context": {"persona": rng.choice(["cat", "dog"]), "member": rng.random() < 0.3}}
    asked["arms"] = [None, ["kibble", "mouse"], [ROPE, "ball", "kibble"]][rng.randrange(3)]
    asked["top_k"] = rng.choice([1, 1, 2])
    if rng.random() < 0.2:
        asked["unit"] = f"unit {number}"
    if rng.random() < 0.1:
        asked["policy"] = "linucb"
    if rng.random() < 0.1:
        asked["exclude"] = ["mouse"]
    return asked


def play(wire: Wire, count: int, seed: int) -> None:
    """Selects, each alone or in a batch of ten, and their rewards."""
    rng, number = Random(seed), 0
    while number < count:
        asked = [question(rng, number + place) for place in range(rng.choice([1, 1, 10]))]
        if len(asked) == 1:
            answers = [wire.select(**asked[0])]
        else:
            found = wire.post("/select/batch", {"requests": asked}).json()["results"]
            assert {each["status"] for each in found} == {200}
            answers = [each["answer"] for each in found]
        number += len(asked)
        for one, answer in zip(asked, answers, strict=True):
            shown = [each["arm"] for each in answer["ranking"]]
            rewards = {arm: float(rng.random() < chance(one["context"], arm)) for arm in shown}
            wire.reward(answer, rewards=rewards)
        wire.clock.skip(1.0)


def truths(store: MemoryStore, wire: Wire, policies: list[str]) -> dict[str, float]:
    """What policies would have earned in the places of the log, by the chances that gave its
    rewards."""

    async def walked() -> dict[str, float]:
        chosen = selected(await read_history(store, "shop"), Selection())
        values: dict[str, list[float]] = {name: [] for name in policies}
        async for each in Walk(store, "shop", policies, ExtraPolicies({})).decisions(chosen):
            q = [chance(each.decision.context, arm) for arm in each.arms]
            for name in policies:
                values[name].append(float(each.targets[name] @ q))
        return {name: float(np.mean(found)) for name, found in values.items()}

    return wire.run(walked())


def prove(store: MemoryStore, selects: int, seed: int) -> None:
    """A head breaks after a fifth of a mixed set of selects, and another one later: no answer is a
    5xx, the log is audited without a difference, and estimates hold the truth."""
    with serving(store) as wire:
        wire.redefine(policies=POLICIES, rules=RULES)
        play(wire, selects // 5, seed)
        break_head(state_of(wire).learners["linucb"])
        play(wire, selects // 5, seed + 1)
        break_head(state_of(wire).learners["lints"])
        play(wire, selects - 2 * (selects // 5), seed + 2)
        audit = wire.run(Audit(store, "shop").run())
        assert audit.decisions >= selects
        assert audit.clean, audit
        result = wire.run(evaluate(store, EvaluationRequest("shop")))
        truth = truths(store, wire, list(POLICIES))
        fell = [one for one in rows(wire, store) if one.facts.fallback]
        kinds = Counter((one.policy, one.model_version.partition("/")[0]) for one in fell)
        assert kinds.keys() == {("linucb", "fallback"), ("lints", "fallback")}
        print(f"{audit.decisions} decisions, {len(fell)} of the fallback")  # noqa: T201
        for value in result.policies:
            for name in ("ips", "snips", "dr"):
                each = value.estimates[name]
                low, high = each.interval
                print(  # noqa: T201
                    f"{value.policy} {name}: {each.value:.4f} [{low:.4f}, {high:.4f}], truth "
                    f"{truth[value.policy]:.4f}"
                )
                assert low <= truth[value.policy] <= high


def rows(wire: Wire, store: MemoryStore) -> list[Decision]:
    kept = wire.run(store.decisions("shop", 0, 1_000_000))
    return [decode_decision(row.payload) for row in kept]


def test_500_selects_of_a_broken_policy_are_answered_audited_and_evaluated(
    store: MemoryStore,
) -> None:
    prove(store, 500, seed=1)


@pytest.mark.statistics
@pytest.mark.timeout(1_800)
def test_10_000_selects_of_broken_policies_are_answered_audited_and_evaluated(
    store: MemoryStore,
) -> None:
    prove(store, 10_000, seed=7)
