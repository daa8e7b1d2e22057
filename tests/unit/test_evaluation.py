"""What is evaluated on: logs that a service wrote, with what may be in them."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest

from service.analysis.evaluate import evaluate
from service.analysis.evaluation_answer import EvaluationAnswer
from service.analysis.evaluation_report import table
from service.analysis.history import BEFORE_ORIGIN, DELETED, OPEN, read_history
from service.analysis.request import EvaluationRequest, Selection
from service.analysis.selected import UNKNOWN, selected
from service.analysis.targets import ExtraPolicies, with_policies
from service.analysis.walk import ABSENT, LoggedDecision, Walk
from service.definition.reward_request import RewardRequest
from service.definition.select_request import SelectRequest
from service.errors import Invalid, NotFound
from service.http.services import Services
from service.log.stores.base import Trim
from service.log.stores.memory import MemoryStore
from service.state.decisions import decode_decision
from service.state.fold import State
from service.state.snapshot import Snapshot
from tests.support.clock import run_virtual
from tests.unit.audited import CAT, DOG, a_log, artifact, define, live, state_of
from tests.unit.folding import shop

Play = Callable[[Services], Awaitable[None]]
POLICIES: dict[str, dict[str, Any]] = {
    "linucb": {"kind": "linucb", "learns_from": "all"},
    "lints": {"kind": "lints", "draws": 32, "share": 2.0},
    "random": {"kind": "random"},
}


def played(*plays: Play, rng: Random | None = None, **definition: Any) -> MemoryStore:
    """The log of a service, a life for each play; the first begins with the definition."""
    store = MemoryStore()

    async def run() -> None:
        async def begin(services: Services) -> None:
            await define(services, {**shop(**POLICIES), **definition})

        for play in (begin, *plays):
            await live(store, play, rng=rng)

    run_virtual(run())
    return store


def visits(count: int, seed: int = 0, *, policy: str | None = None, top_k: int = 1) -> Play:
    """Decisions and their rewards: cats like food, dogs like toys."""

    async def play(services: Services) -> None:
        rng = Random(seed)
        for _ in range(count):
            pet, kind = rng.choice([(CAT, "food"), (DOG, "toy")])
            asked = SelectRequest(pet, "shop", policy, top_k=top_k)
            answer = await services.selector.select(asked)
            rewards = {
                arm.arm: float(rng.random() < (0.7 if arm.arm.startswith(kind) else 0.1))
                for arm in answer.decision.shown
            }
            await services.settlements.reward(RewardRequest(answer.token, rewards=rewards))

    return play


def found(store: MemoryStore, **request: Any) -> EvaluationAnswer:
    return run_virtual(evaluate(store, EvaluationRequest("shop", **request)))


def walked(
    store: MemoryStore, *policies: str, extra: Mapping[str, Any] | None = None, **how: Any
) -> list[LoggedDecision]:
    async def run() -> list[LoggedDecision]:
        chosen = selected(await read_history(store, "shop"), Selection())
        walk = Walk(store, "shop", policies, ExtraPolicies(extra or {}), **how)
        return [visit async for visit in walk.decisions(chosen)]

    return run_virtual(run())


@pytest.fixture(scope="module")
def log() -> MemoryStore:
    """The same in each run: a few of its 40 newest decisions decide what is refused."""
    return played(visits(240), rng=Random(1))


# -- shadows -------------------------------------------------------------------------------------

DARK: dict[str, Any] = {
    "kind": "neural_linear_ts",
    "hidden": [4],
    "embedding": 2,
    "draws": 16,
    "shadow": True,
    "training": {"first": 1_000},
}


async def _a_version(services: Services) -> None:
    state = state_of(services)
    await services.admin.stage(state, "idea", artifact(state.shadows["idea"], state.position), "")
    while state.shadows["idea"].challenger:
        await services.log.replicas.follow(0.01)


async def _goes_live(services: Services) -> None:
    policies = {**POLICIES, "idea": {**DARK, "shadow": False, "share": 0.0}}
    await define(services, shop(**policies))


def test_a_shadow_is_evaluated_with_a_head_of_its_own_and_a_policy_with_the_one_it_has() -> None:
    """The former trains by itself, whatever versions the service gave it. A policy that was a
    shadow is evaluated over that time as well, with its versions."""

    def evaluated(extra: dict[str, Any]) -> tuple[int, int, int | None]:
        """Decisions, and the version and the rewards of the head at their end."""

        async def run() -> tuple[int, int, int | None]:
            chosen = selected(await read_history(store, "shop"), Selection())
            walk = Walk(store, "shop", ["idea"], ExtraPolicies(extra))
            count = len([visit async for visit in walk.decisions(chosen)])
            kept = walk.dump()
            assert kept is not None
            learner = State.restore(Snapshot(0, kept[1])).folded["idea"]
            return count, learner.active.number, walk.learned_from["idea"]

        return run_virtual(run())

    with_idea = {**POLICIES, "idea": DARK}
    store = played(visits(10), _a_version, visits(10), policies=with_idea)
    assert evaluated({"idea": DARK}) == (20, 0, 19)
    run_virtual(live(store, _goes_live))
    assert evaluated({}) == (20, 1, 9)


# -- what is estimated ---------------------------------------------------------------------------


def test_a_policy_that_learned_is_worth_more_than_chance_and_the_truth_lies_within(
    log: MemoryStore,
) -> None:
    """Chance earns 2/6 of 0.7 and 4/6 of 0.1."""
    result = found(log)
    assert result.decisions == 240
    by_name = {value.policy: value for value in result.policies}
    low, high = by_name["random"].estimates["dr"].interval
    assert low < 0.3 < high
    assert by_name["linucb"].estimates["dr"].interval.low > high


def test_what_is_divided_by_is_the_chance_over_all_policies_that_share_the_traffic(
    log: MemoryStore,
) -> None:
    """lints has half of it, the others a quarter each; it is never below a quarter of 1/6."""
    for visit in walked(log, *POLICIES)[:60]:
        shared = (
            visit.targets["linucb"] / 4 + visit.targets["lints"] / 2 + visit.targets["random"] / 4
        )
        assert visit.behaviour == pytest.approx(shared)
        assert visit.propensity == visit.behaviour[visit.shown] >= 1 / 24  # type: ignore[index]
        logged = visit.targets[visit.decision.policy]
        assert logged == pytest.approx(visit.decision.probabilities)


def test_the_assigned_policy_s_own_propensity_can_be_asked_for(log: MemoryStore) -> None:
    for visit in walked(log, "random", own=True)[:60]:
        assert visit.propensity == visit.decision.shown[0].propensity


def test_of_a_policy_that_was_named_in_the_request_its_own_propensity_holds() -> None:
    for visit in walked(played(visits(20, policy="linucb")), "random"):
        assert visit.propensity == visit.decision.shown[0].propensity


def test_no_policy_has_seen_the_reward_that_it_is_judged_by() -> None:
    """In the same log with another last reward, no chance of any policy is another."""

    def ending(reward: float) -> Play:
        async def play(services: Services) -> None:
            answer = await services.selector.select(SelectRequest(CAT, "shop", "random"))
            await services.settlements.reward(RewardRequest(answer.token, reward=reward))

        return play

    ends = [walked(played(ending(reward)), "linucb", "lints") for reward in (0.0, 1.0)]
    for one, other in zip(*ends, strict=True):
        for policy in ("linucb", "lints"):
            assert (one.targets[policy] == other.targets[policy]).all()
        assert (one.guess == other.guess).all()
    assert len(ends[0]) == 1


def test_frozen_policies_do_not_move(log: MemoryStore) -> None:
    """They stand as before the first decision: no reward was there, so all arms tie."""
    for visit in walked(log, "linucb", freeze=True):
        assert visit.targets["linucb"] == pytest.approx(np.full(6, 1 / 6))
    result = found(log, policies=["linucb"], freeze=True)
    assert (result.decisions, result.frozen) == (120, True)
    assert result.policies[0].estimates["dr"].value > 0.45


# -- definitions that never ran ------------------------------------------------------------------


def test_a_definition_learns_as_a_live_policy_does_that_learns_from_all(log: MemoryStore) -> None:
    """Bit for bit: it is the same fold."""
    for visit in walked(log, "linucb", "twin", extra={"twin": {"kind": "linucb"}}):
        assert (visit.targets["linucb"] == visit.targets["twin"]).all()


@pytest.mark.process
def test_a_net_of_a_definition_is_trained_when_it_would_have_been(log: MemoryStore) -> None:
    training = {"first": 60, "epochs": 3}
    net = {"kind": "neural_linucb", "hidden": [4], "embedding": 2, "training": training}
    result = found(log, definitions={"net": net})
    [value] = result.policies
    assert value.never_ran
    assert value.refused is None
    assert 0.2 < value.estimates["dr"].value < 0.7


# -- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "error", "said"),
    [
        ({"policies": ["nobody"]}, NotFound, "nobody"),
        ({"definitions": {"lints": {"kind": "lints"}}}, Invalid, "another name"),
        ({"definitions": {"idea": {"kind": "linucb", "alpha": -1.0}}}, Invalid, "alpha"),
        (
            {"definitions": {"idea": {"kind": "linucb", "features": ["colour"]}}},
            Invalid,
            "there is no feature 'colour'",
        ),
        ({"definitions": {"idea": 3}}, Invalid, "policies.idea"),
    ],
)
def test_a_policy_that_cannot_be_evaluated_is_refused_in_words(
    log: MemoryStore, asked: dict[str, Any], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        found(log, **asked)


def test_where_the_log_could_not_show_an_arm_there_is_no_estimate_and_it_is_named() -> None:
    """Once it tried all, linucb shows one arm for sure; chance would show the five others."""
    store = played(visits(80, policy="linucb"))
    result = found(store, policies=["random"])
    [value] = result.policies
    assert value.refused is not None
    assert "had no chance of being shown in the log" in value.refused
    assert value.estimates == {}
    assert value.unsupported == pytest.approx(sum(value.unsupported_arms.values()))
    assert 0.5 < value.unsupported < 5 / 6
    worst = next(iter(value.unsupported_arms))
    assert f"{worst} (" in value.refused
    assert "random: no estimate." in table(result)


def test_too_few_decisions_in_effect_are_refused(log: MemoryStore) -> None:
    [value] = found(log, policies=["linucb"], selection=Selection(newest=40)).policies
    assert value.refused is not None
    assert "at least 50 are needed" in value.refused
    [value] = found(
        log, policies=["linucb"], selection=Selection(newest=40), least_effective=5.0
    ).policies
    assert value.refused is None


def test_nothing_to_evaluate_on_is_said(log: MemoryStore) -> None:
    result = found(log, selection=Selection(until=0.0))
    assert result.decisions == 0
    assert {value.refused for value in result.policies} == {"there is no decision to evaluate on"}
    assert "0 decisions" in table(result)


# -- what logs hold ------------------------------------------------------------------------------


def test_decisions_count_up_to_the_first_that_is_waited_for() -> None:
    """What comes after it would be clicks alone."""

    async def one_open(services: Services) -> None:
        await services.selector.select(SelectRequest(CAT, "shop"))

    result = found(played(visits(60), one_open, visits(30)), least_effective=5.0)
    assert result.decisions == 60
    assert result.left_out == {OPEN: 31}


def test_a_default_reward_counts_and_its_correction_takes_its_place() -> None:
    tokens = []

    async def expired(services: Services) -> None:
        for _ in range(30):
            answer = await services.selector.select(SelectRequest(CAT, "shop", "random"))
            await services.expiry.expire(state_of(services), answer.decision)
            tokens.append((answer.token, answer.decision.shown[0].arm))

    async def corrected(services: Services) -> None:
        for token, _ in tokens[:12]:
            await services.settlements.reward(RewardRequest(token, reward=1.0))

    assert found(played(expired), policies=["random"]).logged.value == 0.0
    tokens.clear()
    assert found(played(expired, corrected), policies=["random"]).logged.value == 12 / 30


def test_without_a_default_what_nobody_told_is_left_out() -> None:
    async def silent(services: Services) -> None:
        for _ in range(5):
            await services.selector.select(SelectRequest(CAT, "shop", "random"))
        await asyncio.sleep(0.05)

    rules = {"range": [0, 1], "default": None, "wait_seconds": 0.02}
    result = found(played(silent, visits(60, policy="random"), reward=rules), policies=["random"])
    assert result.decisions == 60
    assert result.left_out == {UNKNOWN: 5}


def test_a_decision_that_was_never_shown_is_left_out() -> None:
    async def ahead(services: Services) -> None:
        await services.selector.select(SelectRequest(CAT, "shop", "random", deferred=True))
        shown = await services.selector.select(SelectRequest(CAT, "shop", "random", deferred=True))
        await services.settlements.activate(shown.decision.id, "shop")
        await services.settlements.reward(RewardRequest(shown.token, reward=1.0))
        await asyncio.sleep(0.05)

    rules = {"range": [0, 1], "wait_seconds": 0.02}
    result = found(played(ahead, visits(60, policy="random"), reward=rules), policies=["random"])
    assert result.decisions == 61
    assert result.left_out == {UNKNOWN: 1}


def test_every_kind_of_policy_is_evaluated_over_changes_of_features() -> None:
    """Inline arms, slates, a trained version, other features: what is left in the log of the
    policies that were there."""
    store = a_log(days=1)

    async def expire(services: Services) -> None:
        for row in await store.decisions("shop", 0, 10_000):
            await services.expiry.expire(state_of(services), decode_decision(row.payload))

    run_virtual(live(store, expire))
    result = found(
        store, policies=["linucb", "watcher", "neural"], least_effective=1.0, first_slot=True
    )
    assert result.decisions > 80
    assert set(result.logged_by) >= {"linucb", "watcher", "neural"}


def test_decisions_before_one_of_the_policies_was_there_are_left_out() -> None:
    async def add(services: Services) -> None:
        await define(services, shop(**POLICIES, late={"kind": "random"}))

    store = a_log(days=1)
    run_virtual(live(store, add))
    run_virtual(live(store, visits(20)))
    result = found(store, policies=["linucb", "late"], least_effective=1.0, first_slot=True)
    assert result.left_out[ABSENT] > 0


def test_decisions_before_a_deletion_are_left_out() -> None:
    result = found(a_log(), policies=["linucb"], least_effective=1.0, first_slot=True)
    assert result.left_out[DELETED] > 80
    assert 0 < result.decisions < 80


def test_what_was_erased_is_left_out_and_the_rest_is_evaluated() -> None:
    async def ann(services: Services) -> None:
        for _ in range(10):
            answer = await services.selector.select(SelectRequest(CAT, "shop", unit="ann"))
            await services.settlements.reward(RewardRequest(answer.token, reward=1.0))

    async def erase(services: Services) -> None:
        await services.eraser.erase("ann", "")

    result = found(played(visits(40), ann, visits(40), erase), least_effective=5.0)
    assert (result.decisions, result.erased) == (80, 10)
    assert "10 events were erased" in table(result)


def test_a_log_that_was_trimmed_is_evaluated_from_its_origin_on() -> None:
    async def trim(services: Services) -> None:
        store = services.store
        newest = (await store.snapshots("shop"))[0]
        await store.put("shop", replace(newest, origin=True))
        await store.trim("shop", Trim(newest.position, 0, 0.0), 1_000)

    store = played(visits(40), trim, visits(60))
    idea = {"idea": {"kind": "linucb"}}
    result = found(store, policies=["linucb"], definitions=idea, least_effective=5.0)
    assert result.decisions == 60
    assert result.left_out == {BEFORE_ORIGIN: 40}
    assert [value.policy for value in result.policies] == ["linucb", "idea"]


def test_decisions_are_chosen_by_time_count_and_policy(log: MemoryStore) -> None:
    by = found(log, policies=["lints"], selection=Selection(logged_by=frozenset(["random"])))
    assert set(by.logged_by) == {"random"}
    assert found(log, selection=Selection(newest=70)).decisions == 70
    middle = sorted(visit.decision.at for visit in walked(log, "random"))[100]
    assert found(log, selection=Selection(since=middle)).decisions == 140
    assert found(log, selection=Selection(until=middle)).decisions == 100


@pytest.mark.parametrize(("settings", "tries"), [({}, 0), ({"min_tries": 2}, 2)])
def test_a_policy_that_never_ran_has_the_defaults_that_it_would_run_with(
    settings: dict[str, Any], tries: int
) -> None:
    content = {
        "features": {"context": {"age": {"type": "numeric"}}},
        "arms": {"a": {}, "b": {}},
        "policies": {"live": {"kind": "random"}},
    }
    added = with_policies(content, {"new": {"kind": "auto", **settings}})
    assert added["policies"]["new"]["min_tries"] == tries
