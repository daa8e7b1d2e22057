"""The recipe of the frontend guide for a click and a purchase: with its definition and its rewards
both count, in any order, once; without its definition the second is ignored."""

import re
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest

from tests.docs.page import DOCS, FENCE
from tests.support.service import Json, Wire, serving

SECTION = re.compile(r"^## Click, then purchase$(.*?)^## ", re.MULTILINE | re.DOTALL)
REWARD = re.compile(r"forage\.reward\(\w+, ([\d.]+), \{ rewardId: \"([\w-]+)\" \}\)")
POLICY = {"linucb": {"kind": "linucb"}}


def recipe() -> tuple[dict[str, Any], list[Json]]:
    """The table of the definition, and the reports of the pages."""
    [section] = SECTION.findall((DOCS / "frontend.md").read_text(encoding="utf-8"))
    blocks = FENCE.findall(section)
    [table] = [text for language, text in blocks if language == "toml"]
    script = "".join(text for language, text in blocks if language == "js")
    reports = [{"reward": float(value), "reward_id": own} for value, own in REWARD.findall(script)]
    return tomllib.loads(table)["reward"], reports


@pytest.fixture
def wire() -> Iterator[Wire]:
    with serving() as wire:
        yield wire


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_click_and_a_purchase_both_count_once(wire: Wire, order: tuple[int, ...]) -> None:
    rules, reports = recipe()
    assert [report["reward"] for report in reports] == [0.1, 1.0]
    wire.redefine(policies=POLICY, reward=rules)
    decision = wire.select()
    for status in ("accepted", "duplicate"):
        assert [wire.reward(decision, **reports[number]) for number in order] == [status] * 2
    assert wire.learned(decision) == {decision["arm"]: 1.1}


def test_without_the_definition_of_the_recipe_the_purchase_is_ignored(wire: Wire) -> None:
    _, reports = recipe()
    wire.redefine(policies=POLICY, reward={"range": [0, 1]})
    decision = wire.select()
    assert [wire.reward(decision, **report) for report in reports] == ["accepted", "ignored"]
    assert wire.learned(decision) == {decision["arm"]: 0.1}
