"""The fallback in definition and state, and what an audit and an evaluation make of it."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from pydantic import ValidationError

from service.analysis.rederive import check_decision
from service.analysis.walk import LoggedDecision
from service.definition.experiment import FALLBACK, Definition
from service.definition.reward_request import RewardRequest
from service.definition.select_request import SelectRequest
from service.http.services import Services
from service.log.stores.memory import MemoryStore
from service.state.decisions import Decision
from service.state.events import Default
from service.state.fold import State
from tests.support.broken import break_head
from tests.unit.audited import CAT, DOG, audited, state_of
from tests.unit.folding import Log, contents, replay, shop
from tests.unit.test_evaluation import played, walked

TWO: dict[str, dict[str, Any]] = {"linucb": {"kind": "linucb"}, "lints": {"kind": "lints"}}


def counts(state: State) -> dict[str, float]:
    """Clicks and misses that the built-in fallback has counted, by arm."""
    assert state.built_in is not None
    head = state.built_in.active.head
    assert head is not None
    means, held = head.mean(np.empty(0), [*state.arms]), head.evidence([*state.arms])[0]
    clicks = means * (held + 2) - 1
    return {arm: float(own) for arm, own in zip(state.arms, clicks, strict=True) if own}


# -- definitions -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parts", "say"),
    [
        ({"fallback": "lint"}, "no policy 'lint'; did you mean 'lints'"),
        (
            {"fallback": "dark", "policies": {**TWO, "dark": {"kind": "random", "shadow": True}}},
            "a shadow decides nothing",
        ),
        (
            {"policies": {**TWO, FALLBACK: {"kind": "random"}}},
            "is the name of the built-in fallback: give it another name",
        ),
    ],
)
def test_a_fallback_that_cannot_decide_is_refused(parts: dict[str, Any], say: str) -> None:
    with pytest.raises(ValidationError, match=say):
        Definition.model_validate({**shop(**TWO), **parts})


@pytest.mark.parametrize(
    ("reward", "kind"),
    [
        ({}, "popularity"),
        ({"range": [0, 1], "aggregation": "last"}, "popularity"),
        ({"range": [0, 2]}, "random"),
        ({"range": [-1, 1]}, "random"),
        ({"default": None}, "random"),
        ({"default": 0.5}, "random"),
        ({"range": [0, 1], "aggregation": "sum", "total": [0, 5]}, "random"),
    ],
)
def test_clicks_are_counted_and_other_rewards_leave_it_to_chance(
    reward: dict[str, Any], kind: str
) -> None:
    definition = Definition.model_validate({**shop(**TWO), "reward": reward})
    built_in = definition.built_in_fallback
    assert built_in is not None
    assert built_in.kind == kind


# -- the fold --------------------------------------------------------------------------------------


def test_it_learns_every_reward_from_the_first_one_on() -> None:
    log = Log()
    log.define(shop(**TWO))
    log.settle("linucb", {"toy1": 1.0})
    later = log.settle("lints", {"toy1": 1.0, "food1": 0.0}, kind=Default)
    log.correct(later, 0.5)
    log.settle("lints", {"rope": 1.0}, inline={"kind": "toy"})
    assert counts(log.state) == {"toy1": 1.5, "food1": 0.5}
    assert log.state.learners.keys() == TWO.keys()


def test_a_snapshot_holds_it_and_a_replay_makes_it_again() -> None:
    log = Log()
    log.define(shop(**TWO))
    log.settle("linucb", {"toy1": 1.0})
    restored = State.restore(log.state.snapshot())
    assert counts(restored) == {"toy1": 1.0}
    log.settle("lints", {"bed1": 1.0})
    assert contents(replay(log.records, restored)) == contents(log.state)
    assert contents(replay(log.records)) == contents(log.state)


def test_another_definition_keeps_what_it_counted_while_rewards_are_what_they_were() -> None:
    log = Log()
    log.define(shop(**TWO))
    log.settle("linucb", {"toy1": 1.0})
    other = shop(**TWO)
    del other["features"]["context"]["age"]
    log.define(other)
    assert counts(log.state) == {"toy1": 1.0}
    log.define({**other, "reward": {"range": [0, 2]}})
    assert log.state.fallback.learner.settings.kind == "random"
    log.define(other)
    assert counts(log.state) == {}


def test_a_named_one_is_the_policy_itself() -> None:
    log = Log()
    log.define({**shop(**TWO), "fallback": "lints"})
    assert log.state.built_in is None
    assert log.state.fallback.learner is log.state.learners["lints"]
    restored = State.restore(log.state.snapshot())
    assert restored.fallback.learner is restored.learners["lints"]


def test_a_deleted_experiment_has_none() -> None:
    log = Log()
    log.define(shop(**TWO))
    log.delete()
    assert log.state.built_in is None
    assert State.restore(log.state.snapshot()).built_in is None


@pytest.mark.parametrize(
    "policy",
    [
        {"kind": "linucb", "change": True},
        {"kind": "auto"},
        {"kind": "neural_glm_ts", "hidden": [4], "embedding": 2},
        {"kind": "lints", "disjoint": True},
        {"kind": "popularity"},
    ],
    ids=lambda policy: policy["kind"],
)
def test_a_head_that_is_no_number_keeps_no_reward_from_being_folded(policy: Any) -> None:
    log = Log()
    log.define(shop(broken=policy))
    log.settle("broken", {"toy1": 1.0})
    break_head(log.state.learners["broken"])
    with np.errstate(all="ignore"):
        for _ in range(40):
            shown = log.settle("broken", {"toy1": 1.0})
        log.correct(shown, 0.0)
    assert counts(log.state) == {"toy1": 40.0}


# -- logs in which it decided ----------------------------------------------------------------------


def visits(count: int, broken: tuple[str, ...] = (), policy: str | None = None) -> Any:
    """Decisions and their rewards; heads break in memory before the first."""

    async def play(services: Services) -> None:
        for name in broken:
            break_head(state_of(services).learners[name])
        for number in range(count):
            asked = SelectRequest([CAT, DOG][number % 2], "shop", policy)
            answer = await services.selector.select(asked)
            liked = ("food", "toy")[number % 2]
            rewards = {arm.arm: float(arm.arm.startswith(liked)) for arm in answer.decision.shown}
            await services.settlements.reward(RewardRequest(answer.token, rewards=rewards))

    return play


async def sound_again(services: Services) -> None:
    await services.admin.reset(state_of(services), "linucb", "")


def shared_log(*plays: Callable[[Services], Any]) -> MemoryStore:
    return played(*plays, policies=TWO)


def test_where_the_fallback_decides_its_chances_stand_in_the_mixture_of_the_traffic() -> None:
    """Whoever was assigned: of a decision of `lints`, too, the other half is the fallback's."""
    log = shared_log(visits(40), visits(60, broken=("linucb",)), sound_again, visits(20))
    assert audited(log).clean
    seen = walked(log, *TWO)
    fell = [bool(one.decision.facts.fallback) for one in seen]
    first, last = fell.index(True), len(fell) - 1 - fell[::-1].index(True)
    of_others = 0
    for place, one in enumerate(seen):
        sound = one.targets["linucb"] / 2 + one.targets["lints"] / 2
        if first <= place <= last:
            of_others += not fell[place]
            assert _half(one) != pytest.approx(one.targets["linucb"])
        elif place < first:
            assert one.behaviour == pytest.approx(sound)
        if fell[place]:
            assert _half(one) == pytest.approx(one.decision.probabilities, rel=1e-6)
    assert of_others > 10
    last_self = next(
        place for place in range(last + 1, len(seen)) if seen[place].decision.policy == "linucb"
    )
    for one in seen[last_self:]:
        assert _half(one) == pytest.approx(one.targets["linucb"])


def _half(one: LoggedDecision) -> np.ndarray:
    """The chances that stand for `linucb` in what is divided by."""
    assert one.behaviour is not None
    return 2 * one.behaviour - one.targets["lints"]


def test_a_policy_that_the_fold_cannot_score_either_earns_what_the_fallback_would(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As where rewards or contexts of the log made a head overflow."""
    log = shared_log(visits(40, broken=("linucb",)))
    apply = State.apply

    def poisoned(self: State, *event: Any) -> None:
        apply(self, *event)
        if "linucb" in self.learners:
            break_head(self.learners["linucb"])

    monkeypatch.setattr(State, "apply", poisoned)
    with np.errstate(all="ignore"):
        seen = walked(log, *TWO)
    assert len(seen) == 40
    for one in seen:
        assert one.behaviour == pytest.approx(sum(one.targets.values()) / 2)
        if one.decision.facts.fallback:
            logged = one.decision.probabilities
            assert one.targets["linucb"] == pytest.approx(logged, rel=1e-6)


# -- what an audit finds ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fallen() -> tuple[State, Decision]:
    """A decision of the fallback, and the state that made it."""
    found: list[tuple[State, Decision]] = []

    async def play(services: Services) -> None:
        state = state_of(services)
        break_head(state.learners["linucb"])
        answer = await services.selector.select(SelectRequest(CAT, "shop", "linucb"))
        found.append((State.restore(state.snapshot()), answer.decision))

    shared_log(visits(8), play)
    return found[0]


def test_changed_chances_of_such_a_row_are_found(fallen: tuple[State, Decision]) -> None:
    state, decision = fallen
    assert decision.facts.fallback == "scores"
    assert not list(check_decision(state, decision))
    others = [p * 1.01 for p in decision.probabilities]
    [found] = check_decision(state, replace(decision, probabilities=others))
    assert found.kind == "probabilities"


def test_a_row_that_denies_or_invents_a_fallback_is_found(fallen: tuple[State, Decision]) -> None:
    state, decision = fallen
    denied = replace(decision, facts=replace(decision.facts, fallback=""))
    assert any("model_version" in one.what for one in check_decision(state, denied))
    own = Log()
    own.define({**shop(**TWO), "fallback": "linucb"})
    invented = replace(decision, model_version=f"linucb/0@{own.state.position}")
    assert any(one.what == "fallback" for one in check_decision(own.state, invented))
