"""Evaluation under other rules than those of the log: with one more, or without one that held."""

from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest

from service.analysis.checkpoints import NOWHERE
from service.analysis.evaluate import evaluate
from service.analysis.history import read_history
from service.analysis.request import EvaluationRequest, Selection
from service.analysis.selected import selected
from service.analysis.targets import ExtraPolicies, read_rules
from service.analysis.walk import NONE_ELIGIBLE, LoggedDecision, Walk
from service.definition.reward_request import RewardRequest
from service.definition.select_request import SelectRequest
from service.errors import ConfigurationError, Invalid
from service.http.services import Services
from service.log.reading import SILENT
from service.log.stores.memory import MemoryStore
from tests.support.clock import run_virtual
from tests.unit.audited import CAT, define, live, state_of
from tests.unit.folding import shop

HELD = {"food": {"cap": {"of": "kind", "is": "food", "share": 0.2}}}
EVEN = dict.fromkeys(["food1", "food2", "toy1", "toy2", "bed1", "bed2"], 1 / 6)
CAPPED = {arm: 0.1 if arm.startswith("food") else 0.2 for arm in EVEN}


@pytest.fixture(scope="module")
def ruled_log() -> MemoryStore:
    """Of a uniform policy under a cap of food."""
    store = MemoryStore()

    async def play(services: Services) -> None:
        await define(services, {**shop(uniform={"kind": "random"}), "rules": HELD})
        for number in range(200):
            answer = await services.selector.select(SelectRequest(CAT, "shop"))
            reward = float(number % 3 == 0)
            await services.settlements.reward(RewardRequest(answer.token, reward=reward))

    run_virtual(live(store, play, rng=Random(1)))
    return store


def walked(store: MemoryStore, rules: Mapping[str, Any]) -> tuple[list[LoggedDecision], Walk]:
    async def read() -> tuple[list[LoggedDecision], Walk]:
        chosen = selected(await read_history(store, "shop", SILENT, NOWHERE), Selection())
        walk = Walk(store, "shop", ["uniform"], ExtraPolicies({}), rules=rules)
        return [logged async for logged in walk.decisions(chosen)], walk

    return run_virtual(read())


@pytest.mark.parametrize(
    ("rules", "chances"),
    [
        ({}, CAPPED),
        ({"food": None}, EVEN),
        ({"food": {"cap": {"of": "kind", "is": "food", "share": 0.9}}}, EVEN),
        (
            {"beds": {"eligible_if": "kind != 'bed'"}},
            {**dict.fromkeys(EVEN, 0.0), "food1": 0.1, "food2": 0.1, "toy1": 0.4, "toy2": 0.4},
        ),
        (
            {"pinned": {"pin": {"arm": "bed1", "share": 0.5}}},
            {**dict.fromkeys(EVEN, 0.1), "bed1": 0.5},
        ),
    ],
)
def test_a_policy_is_evaluated_under_the_rules_that_are_asked_for(
    ruled_log: MemoryStore, rules: Mapping[str, Any], chances: Mapping[str, float]
) -> None:
    logged, _ = walked(ruled_log, rules)
    assert len(logged) == 200
    for each in logged:
        found = dict(zip(each.arms, each.targets["uniform"].tolist(), strict=True))
        assert found == pytest.approx(dict(chances))
        assert each.behaviour is not None
        held = dict(zip(each.arms, each.behaviour.tolist(), strict=True))
        assert held == pytest.approx(CAPPED, abs=1e-6)  # what was logged is as it was


def test_decisions_of_which_a_rule_would_have_left_no_arm_are_left_out(
    ruled_log: MemoryStore,
) -> None:
    logged, walk = walked(ruled_log, {"none": {"eligible_if": "kind == 'bed' and kind == 'toy'"}})
    assert (logged, walk.left_out[NONE_ELIGIBLE]) == ([], 200)


def test_other_rules_read_attributes_as_they_were_at_each_decision() -> None:
    store = MemoryStore()

    async def play(services: Services) -> None:
        arms = {arm: {"kind": arm[:-1], "stock": 1} for arm in EVEN}
        attributes = {"attributes": {"stock": "number"}, "arms": arms}
        await define(services, {**shop(uniform={"kind": "random"}), **attributes})
        for stock in (1.0, 0.0, 1.0):
            await services.admin.patch_arm(state_of(services), "bed2", {}, {"stock": stock}, "")
            answer = await services.selector.select(SelectRequest(CAT, "shop"))
            await services.settlements.reward(RewardRequest(answer.token, reward=1.0))

    run_virtual(live(store, play, rng=Random(1)))
    logged, _ = walked(store, {"stocked": {"eligible_if": "stock > 0"}})
    places = [each.arms.index("bed2") for each in logged]
    found = [each.targets["uniform"][at] for each, at in zip(logged, places, strict=True)]
    assert found == pytest.approx([1 / 6, 0.0, 1 / 6])


@pytest.mark.parametrize(
    ("rules", "fault"),
    [
        ({"a": {"cap": {"arm": "food9", "share": 0.2}}}, "rules.a.cap.arm: no arm 'food9'"),
        ({"a": {"cap": {"of": "kind", "share": 0.2, "every": 100}}}, "leave `every` out"),
        ({"a": {"cup": {"share": 0.2}}}, "rules.a.cup: is unknown"),
        ({"a": {"eligible_if": "price > 3"}}, "rules.a.eligible_if: column 1"),
    ],
)
def test_rules_that_no_log_can_tell_of_are_refused(
    ruled_log: MemoryStore, rules: Mapping[str, Any], fault: str
) -> None:
    with pytest.raises(Invalid, match=fault) as raised:
        run_virtual(evaluate(ruled_log, EvaluationRequest("shop", rules=rules)))
    assert raised.value.faults[0].path == "rules"


def test_shadows_keep_the_rules_of_the_experiment(ruled_log: MemoryStore) -> None:
    request = EvaluationRequest("shop", shadows=True, rules=HELD)
    with pytest.raises(Invalid, match="leave out rules"):
        run_virtual(evaluate(ruled_log, request))


def test_rules_come_from_a_file_of_rules_or_of_an_experiment(tmp_path: Path) -> None:
    text = 'cap = { of = "kind", share = 0.2 }\n'
    (tmp_path / "rules.toml").write_text(f"[kinds]\n{text}")
    (tmp_path / "shop.toml").write_text(f'name = "shop"\n[rules.kinds]\n{text}')
    (tmp_path / "without.json").write_text('{"kinds": null}')
    (tmp_path / "empty.toml").write_text("")
    kinds = {"kinds": {"cap": {"of": "kind", "share": 0.2}}}
    assert read_rules(tmp_path / "rules.toml") == read_rules(tmp_path / "shop.toml") == kinds
    assert read_rules(tmp_path / "without.json") == {"kinds": None}
    with pytest.raises(ConfigurationError, match="there is no rule in it"):
        read_rules(tmp_path / "empty.toml")
