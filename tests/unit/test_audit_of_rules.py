"""What an audit and an evaluation make of a log under rules."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from service.analysis.evaluate import evaluate
from service.analysis.request import EvaluationRequest
from service.analysis.walk import UNFIT_FEATURES
from service.log.stores.memory import MemoryStore
from service.state.decisions import Decision, encode_decision
from tests.support.clock import run_virtual
from tests.unit.audited import Changed, Pick, audited, decisions_of, row
from tests.unit.ruled_log import FIRST, SECOND, ruled_log


@pytest.fixture(scope="module")
def played() -> MemoryStore:
    return ruled_log()


def test_a_log_under_every_rule_is_derived_again(played: MemoryStore) -> None:
    """Times, new arms, changed attributes, inline arms, slates, keys, and what requests wish."""
    decisions = decisions_of(played)
    told = {name for each in decisions for name in (*each.rules, *each.relaxed)}
    assert told == {*FIRST, *SECOND, "exclude", "only", "if_empty"}
    assert {each.facts.if_empty for each in decisions} == {False, True}
    assert {len(each.shown) for each in decisions} == {1, 2, 3}  # no more kinds were eligible
    assert any(each.attributes for each in decisions)
    assert any(arm.arm == "rope" for each in decisions for arm in each.shown)
    found = audited(played)
    assert (found.kept, found.underived, found.decisions) == ([], 0, len(decisions))


def with_rules(**names: bool) -> Pick:
    """Pick a decision of the first rules that names these, and not those that are False."""
    return lambda decision: (
        "/0@" in decision.model_version
        and all((name in decision.rules) is there for name, there in names.items())
    )


def without_rule(name: str) -> Callable[[Decision], Decision]:
    return lambda decision: msgspec.structs.replace(
        decision, rules=tuple(each for each in decision.rules if each != name)
    )


def with_rule(name: str) -> Callable[[Decision], Decision]:
    return lambda decision: msgspec.structs.replace(decision, rules=(*decision.rules, name))


def with_arm(decision: Decision) -> Decision:
    """An arm that was not in stock, and no candidate."""
    return msgspec.structs.replace(
        decision,
        arms=[*decision.arms, "bed1"],
        probabilities=[*decision.probabilities, 0.0],
    )


def with_facts(**facts: Any) -> Callable[[Decision], Decision]:
    return lambda decision: msgspec.structs.replace(
        decision, facts=msgspec.structs.replace(decision.facts, **facts)
    )


def yielding(decision: Decision) -> bool:
    return "food" in decision.relaxed


def steady(decision: Decision) -> bool:
    return "food" in decision.rules and not decision.relaxed


def indoors(decision: Decision) -> bool:
    return decision.context["pet"] == "cat" and with_rules(stocked=True)(decision)


def emptied(decision: Decision) -> bool:
    return decision.facts.if_empty


CHANGES: dict[str, tuple[Pick, Callable[[Decision], Decision], str]] = {
    "an arm that is not eligible": (indoors, with_arm, "'stocked' removed the last arm"),
    "exclude": (with_rules(exclude=True), with_facts(exclude=()), "rules"),
    "only": (with_rules(only=True), with_facts(only=None), "rules"),
    "an excluded candidate": (
        with_rules(exclude=False),
        lambda d: with_facts(exclude=(d.arms[0],))(d),
        "'exclude' removed the last arm",
    ),
    "a rule that held a chance": (with_rules(food=True), without_rule("food"), "rules"),
    "a rule that did not": (with_rules(food=False, first=False), with_rule("first"), "rules"),
    "a rule that yielded": (yielding, lambda d: msgspec.structs.replace(d, relaxed=()), "relaxed"),
    "a rule that did not yield": (
        steady,
        lambda d: msgspec.structs.replace(d, relaxed=("food",)),
        "relaxed",
    ),
    "another arm in place of none": (
        emptied,
        lambda d: msgspec.structs.replace(
            d, arms=["toy1"], shown=[msgspec.structs.replace(d.shown[0], arm="toy1")]
        ),
        "'if_empty' removed the last arm",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_row_that_was_changed_is_named_by_what_differs(played: MemoryStore, name: str) -> None:
    pick, change, what = CHANGES[name]
    changed = change(row(played, pick))
    found = audited(Changed(played, {changed.id: encode_decision(changed)})).kept
    assert {each.id for each in found} == {changed.id}
    assert [each.what for each in found if each.kind == "fields" and what in each.what]


OTHER = {"other": {"kind": "lints", "draws": 16}}


def test_another_policy_is_evaluated_under_the_rules_of_each_decision(played: MemoryStore) -> None:
    request = EvaluationRequest("shop", definitions=OTHER, first_slot=True)
    found = run_virtual(evaluate(played, request))
    assert (found.decisions, found.left_out) == (len(decisions_of(played)), {})


def test_a_decision_with_an_arm_that_was_not_eligible_is_left_out(played: MemoryStore) -> None:
    changed = with_arm(row(played, indoors))
    store = Changed(played, {changed.id: encode_decision(changed)})
    request = EvaluationRequest("shop", definitions=OTHER, first_slot=True)
    assert run_virtual(evaluate(store, request)).left_out[UNFIT_FEATURES] == 1
