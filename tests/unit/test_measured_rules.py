"""Rules that are off for some units, to measure what they cost."""

from collections.abc import Mapping
from random import Random
from typing import Any

import msgspec
import pytest

from service.analysis.evaluate import evaluate
from service.analysis.request import EvaluationRequest
from service.decide.traffic import rules_off
from service.definition.experiment import Definition
from service.definition.select_request import SelectRequest
from service.http.services import Services
from service.log.stores.memory import MemoryStore
from service.observe.rule_sentences import sentences
from service.state.decisions import Decision, encode_decision
from service.state.events import Exposed
from service.state.fold import State
from service.state.rulebook import RuleBook
from service.state.traffic import winner
from tests.support.clock import run_virtual
from tests.unit.audited import (
    CAT,
    Changed,
    audited,
    decisions_of,
    define,
    events_of,
    live,
    row,
    state_of,
)
from tests.unit.ruled_log import FIRST, definition, visits
from tests.unit.test_rulebook import best_bone, decided, state_with

UNITS = [f"unit {number}" for number in range(4_000)]
CAP = {"cap": {"arm": "bone", "share": 0.3}}
FLOOR = {"floor": {"arm": "nest", "share": 0.2}}
EVEN = {"explore": {"share": 0.1}}
MIXED = {"at_most": {"of": "brand", "per_slate": 1}}
DAILY = {"cap": {"of": "arm", "share": 0.5, "every": "day"}}
COUNTED = {"cap": {"arm": "ball", "count": 9, "every": "day"}}
STOCKED = {"eligible_if": "stock > 0"}
PINNED = {"pin": {"arm": "rope", "share": 0.1}}


def off(measure: float | None, **rules: Mapping[str, Any]) -> list[set[str]]:
    """The rules that are off, by unit."""
    declared = {**rules, **({} if measure is None else {"measure": measure})}
    state = state_with(declared)
    return [{*rules_off(state, unit)} for unit in UNITS]


def share(found: list[set[str]], *names: str) -> float:
    return sum({*names} <= each for each in found) / len(found)


# -- for whom --------------------------------------------------------------------------------------


def test_each_measured_rule_is_off_for_its_share_of_the_units_whatever_the_others_are() -> None:
    found = off(0.25, cap=CAP, floor=FLOOR)
    for name in ("cap", "floor"):
        assert share(found, name) == pytest.approx(0.25, abs=0.03)
    assert share(found, "cap", "floor") == pytest.approx(0.0625, abs=0.015)


def test_a_unit_keeps_its_rules() -> None:
    found = off(0.25, cap=CAP)
    assert off(0.25, cap=CAP) == found
    assert [each & {"cap"} for each in off(0.25, floor=FLOOR, cap=CAP)] == found
    more = off(0.5, cap=CAP)
    assert all(each <= other for each, other in zip(found, more, strict=True))


def test_a_rule_is_off_whatever_policy_of_its_name_decides() -> None:
    """Both draws are of the same unit and the same name."""
    chances = {"cap": 0.5, "other": 0.5}
    decides = [winner("shop", unit, chances) == "cap" for unit in UNITS]
    left = [each for each, mine in zip(off(0.25, cap=CAP), decides, strict=True) if mine]
    assert share(left, "cap") == pytest.approx(0.25, abs=0.04)


def test_caps_floors_exploration_and_variety_are_measured() -> None:
    rules = {"cap": CAP, "daily": DAILY, "floor": FLOOR, "even": EVEN, "mixed": MIXED}
    assert set.union(*off(0.25, **rules)) == {*rules}


def test_eligibility_pins_counts_and_what_always_holds_are_never_off() -> None:
    rules = {"stocked": STOCKED, "few": COUNTED, "pinned": PINNED, "cap": {**CAP, "always": True}}
    assert set.union(*off(0.5, **rules)) == set()
    assert set.union(*off(None, cap=CAP, floor=FLOOR)) == set()


@pytest.mark.parametrize("measure", [0, -0.1, 0.51, 1])
def test_at_most_half_of_the_units_can_be_without_a_rule(measure: float) -> None:
    policies = {"main": {"kind": "random"}}
    with pytest.raises(ValueError, match="measure"):
        Definition.model_validate({"policies": policies, "rules": {"measure": measure}})


# -- what it does ----------------------------------------------------------------------------------


def test_a_rule_that_is_off_bounds_nothing_and_the_others_hold() -> None:
    """Bone and fish are food, and alike; without bounds they have all."""
    state = best_bone({"cap": {"cap": {"of": "kind", "is": "food", "share": 0.3}}, "floor": FLOOR})
    for names, food in (
        ((), 0.3), (("cap",), 0.8), (("floor",), 0.3), (("cap", "floor"), 1.0), ((), 0.3),
    ):  # fmt: skip
        chances, _, _ = decided(state, off=names)
        assert chances["bone"] + chances["fish"] == pytest.approx(food)
        assert "floor" in names or chances["nest"] >= 0.2


def test_what_cannot_be_measured_draws_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    state = state_with({"stocked": STOCKED, "measure": 0.5})
    monkeypatch.setattr("service.decide.traffic.uniform", None)
    assert rules_off(state, "unit 1") == ()


# -- a log -----------------------------------------------------------------------------------------

MEASURED = {**FIRST, "dogs": {**FIRST["dogs"], "always": True}, "measure": 0.3}
"""All rules of a log, one of which always holds; the others can be off but for the eligible ones
and the pin."""
CAN_BE_OFF = {"even", "bed", "new", "food", "kinds"}


async def a_day(services: Services) -> None:
    await define(services, definition(MEASURED))
    for seed in range(4):
        await visits(services, seed)


@pytest.fixture(scope="module")
def played() -> MemoryStore:
    store = MemoryStore()
    run_virtual(live(store, a_day, rng=Random(1)))
    return store


def test_a_decision_names_the_rules_that_are_off_in_the_order_of_the_file(
    played: MemoryStore,
) -> None:
    found = [each.facts.off for each in decisions_of(played)]
    assert {name for names in found for name in names} == CAN_BE_OFF
    order = [*FIRST]
    assert all(list(names) == sorted(names, key=order.index) for names in found)


def test_a_log_of_measured_rules_is_derived_again(played: MemoryStore) -> None:
    found = audited(played)
    assert (found.kept, found.underived) == ([], 0)
    assert found.decisions == len(decisions_of(played))


@pytest.mark.parametrize("names", [(), ("food", "bed"), ("gone",)])
def test_an_audit_names_a_row_of_which_other_rules_are_off(
    played: MemoryStore, names: tuple[str, ...]
) -> None:
    decision = row(played, lambda each: "even" in each.facts.off)
    facts = msgspec.structs.replace(decision.facts, off=names)
    changed = encode_decision(msgspec.structs.replace(decision, facts=facts))
    found = audited(Changed(played, {decision.id: changed})).kept
    assert {each.id for each in found} == {decision.id}
    assert ("fields", "rules that are off") in [(each.kind, each.what) for each in found]


def test_an_audit_derives_them_of_the_id_where_there_is_no_unit() -> None:
    store = MemoryStore()

    async def play(services: Services) -> None:
        await define(services, definition(MEASURED))
        for _ in range(20):
            await services.selector.select(SelectRequest({**CAT, "age": 3.0}, "shop"))

    run_virtual(live(store, play, rng=Random(2)))
    assert len({each.facts.off for each in decisions_of(store)}) > 5
    assert audited(store).kept == []


def test_an_evaluation_is_within_the_rules_of_each_decision(played: MemoryStore) -> None:
    request = EvaluationRequest("shop", policies=["random"], first_slot=True)
    found = run_virtual(evaluate(played, request))
    assert (found.decisions, found.left_out) == (len(decisions_of(played)), {})


def test_an_explanation_says_that_a_rule_is_off(played: MemoryStore) -> None:
    decision = row(played, lambda each: each.facts.off == ("food",))
    state = State("shop")
    for position, event in events_of(played)[:1]:
        state.apply(position, event)
    assert sentences(state, decision)[-1] == "'food' is off, to measure what it costs"


# -- windows ---------------------------------------------------------------------------------------


def test_a_decision_for_which_a_rule_is_off_is_not_counted_in_its_window() -> None:
    store = MemoryStore()
    rules = {
        "daily": {"cap": {"of": "arm", "share": 0.5, "every": "day"}},
        "few": {"cap": {"arm": "bed2", "count": 50, "every": "day"}},
        "measure": 0.5,
    }

    async def play(services: Services) -> None:
        await define(services, definition(rules))
        for number in range(40):
            request = SelectRequest({**CAT, "age": 3.0}, "shop", unit=f"unit {number}")
            await services.selector.select(request)
        counted.update(
            {name: window.decisions for name, window in state_of(services).exposure.windows.items()}
        )

    counted = dict[str, int]()
    run_virtual(live(store, play, rng=Random(3)))
    decisions = decisions_of(store)
    held = [each for each in decisions if not each.facts.off]
    assert 10 < len(held) < 30
    shown = [
        each
        for _, event in events_of(store)
        if isinstance(event, Exposed)
        for _, _, each in event.decisions
    ]
    assert sum("daily" in each for each in shown) == len(held)
    assert sum("few" in each for each in shown) == len(decisions)
    assert counted == {"daily": len(held), "few": len(decisions)}
    assert [_counts(each) for each in held] == [*range(len(held))]
    assert audited(store).kept == []


def _counts(decision: Decision) -> int:
    """Decisions that the rule had counted before."""
    return next(each.decisions for each in decision.facts.counts if each.rule == "daily")


def test_a_rulebook_without_measure_measures_nothing() -> None:
    book = RuleBook(state_with({"cap": CAP}).definition)
    assert (book.measured, book.measure) == ([], 0.0)
