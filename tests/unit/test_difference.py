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


@pytest.mark.parametrize("part", CHANGES)
def test_a_change_of_a_part_is_told(part: str) -> None:
    before = Definition.model_validate(SHOP)
    after = Definition.model_validate({**SHOP, part: CHANGES[part]})
    found = difference(before, after)
    told = [*found.added, *found.removed, *found.changed]
    assert [path.partition(".")[0] for path in told] == [part]
