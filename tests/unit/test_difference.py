"""A difference tells a change of any part of a definition: what it misses is never applied."""

from typing import Any

import pytest

from service.definition.difference import difference
from service.definition.experiment import Definition

SHOP: dict[str, Any] = {
    "arms": {"a": {}, "b": {}},
    "policies": {"main": {"kind": "random"}, "other": {"kind": "random"}},
}
CHANGES: dict[str, Any] = {
    "features": {"context": {"age": {"type": "numeric"}}},
    "attributes": {"stock": "number"},
    "arms": {"a": {}},
    "policies": {"main": {"kind": "random"}},
    "reward": {"wait_seconds": 7.0},
    "rules": {"measure": 0.1},
    "rollout": {"margin": 0.2},
    "control": "main",
    "never_below": {"policy": "main", "by": 0.1},
    "fallback": "main",
    "max_vector": 100,
}


def test_each_part_of_a_definition_is_changed_here() -> None:
    assert CHANGES.keys() == Definition.model_fields.keys()


def guarded(**guardrails: Any) -> Definition:
    country = {"type": "categorical", "values": ["DE"]}
    features = {"context": {"country": country}, "arm": {}}
    more = {"features": features, "rollout": {"guardrails": guardrails}}
    return Definition.model_validate({**SHOP, **more})


@pytest.mark.parametrize(
    ("before", "after", "path"),
    [
        ({}, {"errors": {"most": 0.5}}, "errors.most"),
        ({}, {"errors": "none"}, "errors"),
        ({"errors": None}, {"errors": {}}, "errors"),
        ({}, {"segments": {"margin": 0.5}}, "segments.margin"),
    ],
)
def test_a_change_of_a_guardrail_is_told(before: Any, after: Any, path: str) -> None:
    found = difference(guarded(**before), guarded(**after))
    assert [*found.changed] == [f"rollout.guardrails.{path}"]
    assert not found.added + found.removed


def test_segments_come_and_go_by_their_names() -> None:
    germany, rest = {"germany": "country == 'DE'"}, {"rest": "country != 'DE'"}
    before = guarded(segments={"where": germany})
    found = difference(before, guarded(segments={"where": rest}))
    path = "rollout.guardrails.segments.where"
    assert (found.added, found.removed) == ([f"{path}.rest"], [f"{path}.germany"])
    assert not found.changed
    changed = difference(before, guarded(segments={"where": {"germany": "country in ['DE']"}}))
    assert [*changed.changed] == [f"{path}.germany"]


def test_a_guardrail_that_falls_back_to_its_default_is_a_loss() -> None:
    found = difference(guarded(errors={"most": 0.5}), guarded())
    assert [*found.losses()] == [
        ("rollout.guardrails.errors.most", "falls back to its default 0.01, from 0.5")
    ]


@pytest.mark.parametrize("part", CHANGES)
def test_a_change_of_a_part_is_told(part: str) -> None:
    before = Definition.model_validate(SHOP)
    after = Definition.model_validate({**SHOP, part: CHANGES[part]})
    found = difference(before, after)
    told = [*found.added, *found.removed, *found.changed]
    assert [path.partition(".")[0] for path in told] == [part]
