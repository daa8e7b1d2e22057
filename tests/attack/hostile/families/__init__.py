"""Every family by its name, and how many requests of a campaign it sends."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random
from typing import Final

from tests.attack.hostile.families.bodies import BODIES
from tests.attack.hostile.families.definitions import DEFINITIONS
from tests.attack.hostile.families.edge import EDGE
from tests.attack.hostile.families.numbers import NUMBERS
from tests.attack.hostile.families.tenancy import TENANCY
from tests.attack.hostile.shots import Arsenal, Attack


@dataclass(frozen=True, slots=True)
class Family:
    """count    of a campaign of `WHOLE` requests
    at_once  requests that wait for their answer at a time
    """

    name: str
    attack: Callable[[Arsenal, Random], Attack]
    count: int
    at_once: int = 4


COUNTS: Final = {
    "endless heads": 600,
    "half-open connections": 2_000,
    "lengths": 1_000,
    "malformed": 1_000,
    "slow bodies": 200,
    "nested bodies": 1_500,
    "long ids": 1_200,
    "beacons": 600,
    "magnitudes": 3_000,
    "ties": 500,
    "contribution floods": 2_500,
    "clock edges": 1_500,
    "key profiles": 1_700,
    "other tenant": 800,
    "rebinding": 1_000,
    "evaluations": 40,
    "wide definitions": 400,
    "inflated artifacts": 160,
    "catalogues": 300,
}
"""Few of those that are slow for whoever sends them, too."""
WHOLE: Final = sum(COUNTS.values())
AT_ONCE: Final = {"half-open connections": 1_200, "slow bodies": 100, "malformed": 50,
                  "lengths": 50, "endless heads": 8}  # fmt: skip
"""1,200 and more are above the open files of the service."""

FAMILIES: Final[dict[str, Family]] = {
    name: Family(name, attack, COUNTS[name], AT_ONCE.get(name, 4))
    for table in (EDGE, BODIES, NUMBERS, TENANCY, DEFINITIONS)
    for name, attack in table.items()
}


def counts_of(requests: int, names: Iterable[str]) -> dict[str, int]:
    """Requests of each family, so many in all and some of each."""
    chosen = [FAMILIES[name] for name in names]
    whole = sum(family.count for family in chosen)
    return {family.name: max(3, round(requests * family.count / whole)) for family in chosen}
