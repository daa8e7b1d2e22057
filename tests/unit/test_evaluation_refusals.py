"""What an evaluation refuses: other candidates, weights that cannot be, slates by another name."""

from dataclasses import replace
from functools import cache
from math import inf, nan
from random import Random
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from service.analysis.columns import Columns
from service.analysis.evaluate import evaluate
from service.analysis.evaluation_answer import EvaluationAnswer
from service.analysis.evaluation_report import table
from service.analysis.refusals import WeightSummary, refusal
from service.analysis.request import EvaluationRequest, Selection
from service.analysis.walk import TINY_PROPENSITY
from service.definition.reward_request import RewardRequest
from service.definition.select_request import SelectRequest
from service.http.services import Services
from service.log.stores.memory import MemoryStore
from service.manage.importing import Visit as Imported
from service.retrieval.shortlists import DRAWS
from service.state.decisions import Shortlist
from tests.support.clock import run_virtual
from tests.unit.audited import decisions_of, define, live, state_of
from tests.unit.test_evaluation import played, visits, walked

ARMS, DECISIONS = 800, 200
QUALITY = np.random.default_rng(1).random(ARMS) ** 2
CHANCES = 0.1 + 0.55 * QUALITY
RETRIEVES = {"kind": "lints", "draws": 64, "retrieve": 20, "epsilon": 0.2}


def catalogue(**policies: dict[str, Any]) -> dict[str, Any]:
    """800 arms of one number each: what it is worth."""
    return {
        "features": {
            "context": {"pet": {"type": "categorical", "values": ["cat", "dog"]}},
            "arm": {"quality": {"type": "numeric", "scale": 1.0}},
        },
        "policies": policies,
        "arms": {f"a{number}": {"quality": float(QUALITY[number])} for number in range(ARMS)},
        "reward": {"range": [0, 1]},
    }


def bought(
    definition: dict[str, Any], count: int = DECISIONS, arms: list[str] | None = None
) -> MemoryStore:
    store, rng = MemoryStore(), Random(0)

    async def play(services: Services) -> None:
        await define(services, definition)
        for _ in range(count):
            question = SelectRequest({"pet": rng.choice(["cat", "dog"])}, "shop", arms=arms)
            answer = await services.selector.select(question)
            chance = CHANCES[int(answer.decision.shown[0].arm[1:])]
            reward = float(rng.random() < chance)
            await services.settlements.reward(RewardRequest(answer.token, reward=reward))

    run_virtual(live(store, play))
    return store


def found(store: MemoryStore, **request: Any) -> EvaluationAnswer:
    return run_virtual(evaluate(store, EvaluationRequest("shop", **request)))


def refusals(result: EvaluationAnswer) -> dict[str, str | None]:
    return {value.policy: value.refused for value in result.policies}


# -- shortlists ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def retrieved() -> MemoryStore:
    return bought(catalogue(ts=RETRIEVES, random={"kind": "random", "share": 0.0}))


def test_a_row_says_who_made_its_shortlist_and_how(retrieved: MemoryStore) -> None:
    for decision in decisions_of(retrieved):
        assert decision.facts.shortlist == Shortlist("ts", "scan", ARMS, 20, 1 + DRAWS, 6)
        assert 20 <= len(decision.arms) <= 20 * (1 + DRAWS) + 6


def test_what_chance_earns_of_a_catalogue_is_not_told_by_shortlists_of_its_best(
    retrieved: MemoryStore,
) -> None:
    """It earns 0.285 a decision; among the arms that the log chose from, it would earn 0.55."""
    assert CHANCES.mean() == pytest.approx(0.285, abs=0.001)
    result = found(retrieved)
    refused = refusals(result)["random"]
    assert refused is not None
    assert refused.startswith("200 of 200 decisions (100.0%) chose from other candidates than it ")
    assert "shortlists that ts made" in refused
    assert "random: no estimate. 200 of 200" in table(result)
    assert result.shortlists == DECISIONS
    random = {value.policy: value for value in result.policies}["random"]
    assert (random.estimates, random.direct_method) == ({}, None)
    assert random.other_candidates == DECISIONS


def test_of_the_policy_that_made_them_its_own_value_stays(retrieved: MemoryStore) -> None:
    result = found(retrieved, policies=["ts"])
    [value] = result.policies
    assert value.refused is None
    assert (value.mean_weight, value.mean_weight_error, value.other_candidates) == (1, 0, 0)
    for estimator in ("ips", "snips"):
        assert value.estimates[estimator].value == result.logged.value
    assert "200 decisions chose from arms that their policy had retrieved" in table(result)


def test_another_head_of_the_same_policy_would_have_made_another_shortlist(
    retrieved: MemoryStore,
) -> None:
    assert "shortlists that ts made" in str(refusals(found(retrieved, freeze=True))["ts"])
    twin = {"twin": RETRIEVES}
    assert "shortlists that ts made" in str(refusals(found(retrieved, definitions=twin))["twin"])


def test_a_policy_that_retrieves_is_not_told_by_a_log_of_the_whole_catalogue() -> None:
    """It would choose among its shortlist; chance and a definition without one are told."""
    store = bought(catalogue(random={"kind": "random"}))
    result = found(store, policies=["random"], definitions={"ts": RETRIEVES}, least_effective=1.0)
    refused = refusals(result)
    assert "from the whole catalogue" in str(refused["ts"])
    assert refused["random"] is None
    assert result.shortlists == 0


def test_where_policies_share_the_traffic_each_tells_of_itself_alone() -> None:
    store = bought(catalogue(ts=RETRIEVES, random={"kind": "random"}))
    assert None not in refusals(found(store, least_effective=1.0)).values()
    for name in ("ts", "random"):
        own = Selection(logged_by=frozenset([name]))
        result = found(store, policies=[name], selection=own, least_effective=1.0)
        assert refusals(result) == {name: None}
        assert result.policies[0].estimates["ips"].value == pytest.approx(result.logged.value)


def test_arms_that_the_request_names_are_nobodys_shortlist() -> None:
    """All policies choose among them."""
    arms = [f"a{number}" for number in range(30)]
    policies = {"ts": RETRIEVES, "random": {"kind": "random"}}
    store = bought(catalogue(**policies), 120, arms)
    assert {decision.facts.shortlist for decision in decisions_of(store)} == {None}
    result = found(store, least_effective=1.0)
    assert refusals(result) == dict.fromkeys(policies)
    assert result.shortlists == 0


# -- weights -------------------------------------------------------------------------------------


@cache
def imported(
    shown: float, said: float, *, told: bool = True, last: float | None = None
) -> MemoryStore:
    """Of six arms `food1` was shown with one chance and is said to have had another. told: what is
    said of the others was logged, too. last: what is said of the last visit alone."""
    rng, arms = Random(3), [f"{kind}{n}" for kind in ("food", "toy", "bed") for n in (1, 2)]
    rest = (1 - said) / 5

    async def play(services: Services) -> None:
        history = [
            Imported(
                id=str(number),
                at=1_700_000_000.0 + number,
                context={"pet": "cat"},
                arm=(arm := "food1" if rng.random() < shown else rng.choice(arms[1:])),
                propensity=said if arm == "food1" else rest,
                arms=arms,
                probabilities=[said, *[rest] * 5] if told else None,
                reward=float(arm.startswith("food")),
            )
            for number in range(400)
        ]
        if last is not None:
            history[-1] = structs.replace(history[-1], propensity=last, probabilities=None)
        await services.importer.take(state_of(services), "linucb", history, "", skip_refused=False)

    return played(play)


@pytest.mark.parametrize(("said", "told"), [(0.2, True), (0.2, False), (0.5, True), (0.7, True)])
def test_propensities_that_arms_were_drawn_by_pass(said: float, told: bool) -> None:
    """Food earns 1, all else 0; a policy that knows that shows food."""
    result = found(imported(said, said, told=told), policies=["linucb", "random"])
    assert refusals(result) == {"linucb": None, "random": None}
    for value in result.policies:
        assert abs(value.mean_weight - 1) < 5 * value.mean_weight_error
    assert result.without_probabilities == (0 if told else 400)
    linucb, random = result.policies
    assert linucb.estimates["snips"].value > 0.9
    assert random.estimates["ips"].value == pytest.approx(1 / 3, abs=0.1)


@pytest.mark.parametrize(("said", "mean", "words"), [(0.1, 5 / 3, "large"), (0.5, 1 / 3, "never")])
def test_a_mean_weight_other_than_1_is_refused_on_either_side(
    said: float, mean: float, words: str
) -> None:
    """Chance would show food1, which alone was shown, a sixth of the time: it weighs 1/6 / said."""
    result = found(imported(1.0, said, told=False), policies=["random"])
    [value] = result.policies
    assert (value.mean_weight, value.mean_weight_error) == pytest.approx((mean, 0.0))
    assert value.refused is not None
    assert f"the mean {mean:.3f} (standard error 0.000)" in value.refused
    assert words in value.refused
    assert (value.estimates, value.direct_method) == ({}, None)


def test_five_standard_errors_above_1_are_refused() -> None:
    """`linucb` learns to show food; food1 was shown half the time and is said to have been a
    fifth: IPS would come to more than the largest reward."""
    [value] = found(imported(0.5, 0.2), policies=["linucb"]).policies
    assert value.mean_weight > 1.01 + 5 * value.mean_weight_error > 1.1
    assert value.refused is not None


@pytest.mark.parametrize("tiny", [1e-300, 5e-324])
def test_a_decision_of_a_chance_that_no_weight_can_hold_is_left_out(tiny: float) -> None:
    result = found(imported(0.2, 0.2, last=tiny), policies=["linucb"])
    assert (result.decisions, result.left_out) == (399, {TINY_PROPENSITY: 1})
    [value] = result.policies
    assert value.refused is None
    assert value.effective_sample_size > 50
    assert "1 left out: their shown arm had a chance below 1e-12: nothing" in table(result)


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        (WeightSummary(nan, 1.0, 1.0, 0.0), "at least 50 are needed"),
        (WeightSummary(100.0, 1.0, nan, 0.0), "weights have the mean nan"),
        (WeightSummary(100.0, 1.0, 1.0, nan), "weights have the mean"),
    ],
)
def test_a_number_that_is_none_makes_no_estimate(weights: WeightSummary, said: str) -> None:
    columns, request = one_decision(), EvaluationRequest("shop")
    assert refusal(columns, "random", replace(SOUND, mean_weight_error=inf), 1, request) is None
    assert refusal(columns, "random", SOUND, 1, request) is None
    assert said in str(refusal(columns, "random", weights, 1, request))


SOUND = WeightSummary(100.0, 1.0, 1.0, 0.0)


def one_decision() -> Columns:
    columns = Columns(["random"])
    [visit, *_] = walked(played(visits(1, policy="random")), "random")
    columns.add(visit)
    columns.reward = np.ones(1)
    return columns


# -- learning --------------------------------------------------------------------------------------


def test_a_policy_that_learned_nothing_is_refused_and_a_definition_of_it_is_not() -> None:
    """`linucb` learned from the import, `lints` from its own decisions, of which there are none."""
    log, idea = imported(0.2, 0.2), {"idea": {"kind": "lints", "draws": 32}}
    result = found(log, policies=["linucb", "lints", "random"], definitions=idea)
    by_name = {value.policy: value for value in result.policies}
    learned = {name: value.learned_from for name, value in by_name.items()}
    assert learned == {"linucb": 399, "lints": 0, "random": None, "idea": 399}
    refused = by_name["lints"].refused
    assert refused is not None
    assert refused.startswith("it had learned from 0 rewards, so it would choose as if it knew ")
    assert "evaluate that with --definition FILE" in refused
    assert refusals(result) == {"linucb": None, "lints": refused, "random": None, "idea": None}
    assert by_name["idea"].estimates["dr"].value > 0.8
    said = [f"{name} learned from {learned[name]} rewards" for name in ("linucb", "idea")]
    assert all(each in table(result, every=True) for each in [*said, "random does not learn"])
    assert [value.policy for value in result.policies][-1] == "lints"  # without an estimate


def test_a_frozen_policy_that_learned_nothing_before_is_refused() -> None:
    log = imported(0.2, 0.2)
    [value] = found(log, policies=["linucb"], freeze=True).policies
    assert (value.learned_from, value.refused) == (200, None)
    every = Selection(since=0.0)
    [value] = found(log, policies=["linucb"], freeze=True, selection=every).policies
    assert value.learned_from == 0
    assert "choose later decisions, or do not freeze it" in str(value.refused)


# -- slates --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def slates() -> MemoryStore:
    return played(visits(60, policy="lints", top_k=3), visits(20, policy="lints"))


def test_slates_are_refused_and_their_share_is_said(slates: MemoryStore) -> None:
    result = found(slates, policies=["lints"])
    refused = refusals(result)["lints"]
    assert refused is not None
    assert refused.startswith("60 of 80 decisions (75.0%) show several arms")
    assert "first slot" in refused
    assert (result.slates, result.metric) == (60, "reward_per_decision")
    assert (result.logged.value, result.logged.interval) == (None, None)
    assert "The log itself earned" not in table(result)
    assert "--first-slot" in table(result)


def test_the_value_of_the_first_slot_is_told_under_that_name(slates: MemoryStore) -> None:
    result = found(slates, policies=["lints"], first_slot=True)
    [value] = result.policies
    assert value.refused is None
    assert value.largest_weight == pytest.approx(1.0)
    assert value.estimates["ips"].value == pytest.approx(result.logged.value)
    assert result.metric == "reward_of_first_slot"
    said = table(result)
    assert "The first slots of the log earned 0." in said
    assert "slot 1" in said.splitlines()[5]
    assert "60 of 80 decisions (75.0%) showed several arms: all values are of slot 1" in said
