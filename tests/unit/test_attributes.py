"""Attributes of arms: what is taken, and a fold in which nothing that is learned hangs on them."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.analysis.targets import ExtraPolicies
from service.definition.difference import SettingChange, difference
from service.definition.experiment import Definition
from service.definition.select_request import InlineArm
from service.features.attributes import attribute_faults, fitting
from service.features.declaration import AttributeType
from service.state.fold import State
from tests.unit.folding import SHOP, Log, bits, head_of, replay, shop

DECLARED: dict[str, AttributeType] = {"stock": "number", "brand": "text", "sale": "boolean"}
LINUCB = {"kind": "linucb"}


def opened() -> Log:
    """A log with something learned, and all that is made of its catalogue."""
    log = Log()
    log.define(shop(linucb=LINUCB))
    log.settle("linucb", {"toy1": 1.0})
    named = ("toy1", "bed2")
    log.state.selections.remember(named, log.state.candidates.choose(named, [2, 5]))
    return log


def made_of_features(state: State) -> list[object]:
    learner = state.learners["linucb"]
    named = state.selections.get(("toy1", "bed2"))
    return [state.rows, state.candidates, state.selections, named, learner, learner.active.head]


# -- values ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("stock", "3", "must be a number"),
        ("stock", True, "must be a number"),
        ("stock", [3.0], "must be a number"),
        ("brand", 3.0, "must be a string"),
        ("sale", 1, "must be true or false"),
        ("stok", 3.0, "there is no such attribute; did you mean 'stock'?"),
    ],
)
def test_a_value_of_another_type_and_an_unknown_name_are_faults(
    name: str, value: object, message: str
) -> None:
    [fault] = attribute_faults(DECLARED, {"sale": True, name: value}, "attributes")[:1]
    assert (fault.path, fault.message) == (f"attributes.{name}", message)


def test_the_nearest_name_is_sought_once() -> None:
    faults = attribute_faults(DECLARED, {"stok": 1, "brant": 2, "sale": None}, "at")
    assert [fault.path for fault in faults] == ["at.stok", "at.brant"]
    assert [fault.message.count("did you mean") for fault in faults] == [1, 0]


def test_members_of_an_arm_are_counted_with_its_attributes() -> None:
    """A colon each: "id", "attributes" and two of these."""
    assert InlineArm("rope", {}, {"stock": 3.0, "sale": True}).least_members() == 4
    assert InlineArm("rope", {"kind": "toy"}, {"stock": 3.0}).least_members() == 5


VALUES = st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.just([1.0])


@given(st.dictionaries(st.sampled_from([*DECLARED, "other"]), VALUES))
def test_what_fits_is_what_has_no_fault(values: dict[str, Any]) -> None:
    wrong = {fault.path.removeprefix("at.") for fault in attribute_faults(DECLARED, values, "at")}
    assert fitting(DECLARED, values) == {n: v for n, v in values.items() if n not in wrong}


# -- the fold --------------------------------------------------------------------------------------


def test_a_change_of_attributes_alone_leaves_all_that_is_made_of_features() -> None:
    log = opened()
    state = log.state
    before, changes = made_of_features(state), state.changes
    log.patch("toy1", {}, {"stock": 3.0, "brand": "Acme"})
    log.upsert("toy1", {"kind": "toy"}, {"stock": 2.0})
    log.patch("toy1", {"kind": "toy"}, {"stock": 1.0})
    assert state.attributes["toy1"] == {"stock": 1.0}
    assert all(now is was for now, was in zip(made_of_features(state), before, strict=True))
    assert (state.changes, state.changed) == (changes, [])


def test_a_change_of_features_leaves_attributes_until_the_arm_goes() -> None:
    log = opened()
    before = log.state.attributes.copy()
    log.patch("bed2", {"kind": "food"}, {"stock": 4.0})
    log.upsert("bed2", {"kind": "toy"}, {"stock": 4.0, "brand": "Acme"})
    log.upsert("toy1", {"kind": "bed"})
    log.remove("toy1")
    assert log.state.attributes == before
    assert log.state.changes == 4
    log.remove("bed2")
    assert log.state.attributes == {}


def test_changes_of_different_values_of_an_arm_both_hold() -> None:
    """Two clients patch one arm at once: neither event says what the other changes."""
    log = opened()
    log.patch("bed2", {}, {"stock": 3.0})
    log.patch("bed2", {"kind": "toy"}, {"sale": True, "brand": None})
    assert log.state.arms["bed2"] == {"kind": "toy"}
    assert log.state.attributes["bed2"] == {"stock": 3.0, "sale": True}


def test_an_upsert_replaces_all_attributes_and_removing_the_last_leaves_none() -> None:
    log = opened()
    log.upsert("bed2", {"kind": "bed"}, {"sale": False})
    assert log.state.attributes == {"bed2": {"sale": False}}
    log.patch("bed2", {}, {"sale": None})
    assert log.state.attributes == {}


def test_a_change_of_an_arm_that_was_removed_since_its_check_changes_nothing() -> None:
    log = opened()
    log.remove("toy1")
    before = log.state.arms.copy(), log.state.changes, log.state.attributes.copy()
    log.patch("toy1", {"kind": "toy"}, {"stock": 3.0})
    assert (log.state.arms, log.state.changes, log.state.attributes) == before


def test_an_attribute_that_no_longer_fits_is_dropped_and_the_others_stay() -> None:
    """A definition may have followed the check of an event."""
    log = opened()
    log.define(shop(linucb=LINUCB) | {"attributes": {"stock": "number", "brand": "text"}})
    log.upsert("toy1", {"kind": "bed"}, {"stock": "3", "sale": True, "brand": "Acme"})
    assert log.state.arms["toy1"] == {"kind": "bed"}
    assert log.state.attributes["toy1"] == {"brand": "Acme"}
    log.patch("toy1", {"kind": "drink"}, {"brand": "Other"})
    assert log.state.attributes["toy1"] == {"brand": "Acme"}


def test_a_change_of_declarations_keeps_schema_version_and_heads() -> None:
    log = opened()
    head, version = head_of(log.state, "linucb"), log.state.schema_version
    schema = log.state.schema
    declared = {"stock": "number", "brand": "text", "margin": "number"}
    log.define(shop(linucb=LINUCB) | {"attributes": declared})
    assert (log.state.schema_version, head_of(log.state, "linucb")) == (version, head)
    assert log.state.schema is schema
    assert log.state.learners["linucb"].rewards == 1
    assert log.state.attributes == {"bed2": {"stock": 4.0, "brand": "Acme"}}


def test_a_snapshot_keeps_attributes_and_a_deletion_does_not() -> None:
    log = opened()
    log.patch("toy1", {}, {"stock": 3.0})
    restored = State.restore(log.state.snapshot())
    assert restored.attributes == log.state.attributes != {}
    log.patch("toy1", {}, {"stock": 2.0})
    assert bits(replay(log.records, restored)) == bits(log.state)
    log.delete()
    assert log.state.attributes == {}


def test_policies_that_an_evaluation_adds_at_an_origin_leave_the_catalogue_as_it_is() -> None:
    log = opened()
    log.upsert("new", {"kind": "toy"}, {"sale": True})
    before = log.state.arms, log.state.attributes
    ExtraPolicies({"idea": {"kind": "random"}}).into_origin(log.state)
    assert "idea" in log.state.shadows
    assert (log.state.arms, log.state.attributes) == before


# -- definitions -----------------------------------------------------------------------------------


def test_a_difference_names_declarations_and_the_arms_whose_attributes_change() -> None:
    before = Definition.model_validate(SHOP)
    declared = {"stock": "number", "sale": "text", "margin": "number"}
    bed = {"kind": "bed", "stock": 5.0}
    changed = SHOP | {"attributes": declared, "arms": SHOP["arms"] | {"bed2": bed}}
    found = difference(before, Definition.model_validate(changed))
    assert (found.added, found.removed) == (["attributes.margin"], ["attributes.brand"])
    assert found.changed == {
        "arms.bed2": SettingChange({"kind": "bed", "stock": 4.0, "brand": "Acme"}, bed),
        "attributes.sale": SettingChange("boolean", "text"),
    }
    assert [*found.losses()] == [("attributes", "1 goes: 'brand'")]
