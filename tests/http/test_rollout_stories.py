"""The stories of docs/rollouts.md, told by a service: one to 100 percent, one that is rolled back,
one that stays undecided."""

import re
from pathlib import Path

import pytest

from service.log.stores.memory import MemoryStore
from tests.http.test_rollouts import Visitors, start, status, two_policies
from tests.support.clock import VirtualClock
from tests.support.service import Wire, serving

PAGE = Path(__file__).parents[2] / "docs" / "rollouts.md"
SHOP = two_policies() | {
    "policies": {"old": {"kind": "random"}, "new": {"kind": "random", "share": 0.0}}
}
KEY = bytes(32)
"""It hashes units, and so says who gets whom."""

STORIES = {
    "To 100 percent": ({"old": 0.5, "new": 0.52}, {"margin": 0.4, "stage_hours": 0.1}),
    "Taken back": ({"old": 0.5, "new": 0.1}, {"margin": 0.4, "stage_hours": 0.1}),
    "Undecided": ({"old": 0.5, "new": 0.42}, {"margin": 0.15, "undecided_after_days": 0.01}),
}
"""Rates of clicks of both policies, and how the rollout differs from the defaults."""


def told(wire: Wire) -> list[str]:
    """What the history says of the rollout, oldest first."""
    changes = wire.get("/experiments/shop/changes?limit=20").json()["changes"]
    return [each["sentence"] for each in changes if "rollout" in each["kind"]][::-1]


@pytest.mark.parametrize("title", STORIES)
def test_a_story_is_as_the_page_tells_it(
    title: str, store: MemoryStore, clock: VirtualClock
) -> None:
    rates, plan = STORIES[title]
    page = PAGE.read_text(encoding="utf-8")
    section = page[page.index(f"### {title}") :]
    found = re.search(r"```\n(.*?)\n```", section, re.DOTALL)
    assert found is not None
    with serving(store, clock=clock, expiry_seconds=1.0, token_keys=[KEY]) as wire:
        assert wire.put("/experiments/shop?replace=true", SHOP).status_code == 200
        begun = start(wire, stages=[0.2, 0.5, 1.0], **plan)
        visitors = Visitors(wire, **rates)
        while begun["state"] == "running":
            visitors.visit(60, every=1.0)
            begun = status(wire)
            assert visitors.number < 6_000
        assert told(wire) == found[1].splitlines()
