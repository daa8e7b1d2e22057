"""The short form of tests/statistics/test_rules_drawn.py: one policy a set of rules."""

from collections.abc import Iterator

from tests.statistics.ruled import LEARNED, SETS, SLATE, expect_true, fits

DRAWS, FEW = 2_000, 50


def played() -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the sets of rules, each with a policy, of which all have their turn."""
    for number, chosen in enumerate(SETS):
        yield chosen, LEARNED[(number + number // len(LEARNED)) % len(LEARNED)]


def test_choices_under_rules_have_the_chances_that_are_logged() -> None:
    found = {}
    for chosen, policy in played():
        found |= fits([chosen], policy, 1, DRAWS)
    expect_true(found)


def test_slates_under_rules_have_the_chances_that_are_logged() -> None:
    """Under a rule alone; under pairs a few, which shows which rules hold."""
    found = {}
    for chosen, policy in played():
        found |= fits([chosen], policy, SLATE, DRAWS if len(chosen) == 1 else FEW)
    expect_true(found)
