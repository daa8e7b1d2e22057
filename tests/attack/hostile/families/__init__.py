"""Every family by its name, and how many requests of a campaign it sends."""

from collections.abc import Callable, Iterable
from random import Random
from typing import Final, NamedTuple

from tests.attack.hostile.families.bodies import BODIES
from tests.attack.hostile.families.definitions import DEFINITIONS
from tests.attack.hostile.families.edge import EDGE
from tests.attack.hostile.families.numbers import NUMBERS
from tests.attack.hostile.shots import Arsenal, Attack

COUNTS: Final = {
    "endless heads": 600,
    "half-open connections": 2_000,
    "lengths": 1_000,
    "malformed": 1_000,
    "slow bodies": 200,
    "nested bodies": 1_500,
    "beacons": 600,
    "magnitudes": 3_000,
    "ties": 500,
    "contribution floods": 2_500,
    "evaluations": 40,
    "wide definitions": 400,
    "inflated artifacts": 160,
    "catalogues": 300,
}
"""Shares of a campaign: few of those that are slow for the sender, too."""
AT_ONCE: Final = {
    "half-open connections": 1_200,  # above the open files of the service
    "slow bodies": 100,
    "malformed": 50,
    "lengths": 50,
    "endless heads": 8,
}


class Family(NamedTuple):
    """at_once: requests that wait for their answer at a time."""

    name: str
    attack: Callable[[Arsenal, Random], Attack]
    at_once: int


FAMILIES: Final[dict[str, Family]] = {
    name: Family(name, attack, AT_ONCE.get(name, 4))
    for name, attack in (EDGE | BODIES | NUMBERS | DEFINITIONS).items()
}


def counts_of(requests: int, names: Iterable[str]) -> dict[str, int]:
    """Return the requests of each family: so many in all, and three of each at least."""
    counts = {name: COUNTS[name] for name in names}
    whole = sum(counts.values())
    return {name: max(3, round(requests * count / whole)) for name, count in counts.items()}
