"""Draws under rules have the chances that are logged: each of eight rules alone and all pairs.

Bounds that can hold together do in every decision; else exactly the later rule yields (`ruled`).
Chi-square tests at 0.001 over all: of the arm of a single choice, of whole slates of three, and of
the second slot after the first arm that is shown most often. tests/unit has the short form.
"""

import os

import pytest

from tests.statistics.ruled import LEARNED, SETS, SLATE, TURNED, expect_true, fits

DRAWS = int(os.environ.get("FORAGE_TEST_RULE_DRAWS", "1000000"))
"""Single choices under a set of rules; a slate takes longer, and a tenth of them are drawn."""
FEW = 1_000


@pytest.mark.statistics
@pytest.mark.timeout(14_400)
@pytest.mark.parametrize("slots", [1, SLATE])
@pytest.mark.parametrize("policy", LEARNED)
def test_draws_under_rules_have_the_chances_that_are_logged(policy: str, slots: int) -> None:
    found = fits(SETS, policy, slots, DRAWS if slots == 1 else DRAWS // 10)
    print(f"{policy}, {slots} slots: {expect_true(found)}")  # noqa: T201


@pytest.mark.statistics
@pytest.mark.parametrize("policy", LEARNED)
def test_the_order_of_the_file_decides_between_rules_of_one_kind_alone(policy: str) -> None:
    for slots in (1, SLATE):
        expect_true(fits(TURNED, policy, slots, FEW))
