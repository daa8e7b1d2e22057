"""A pet shop: four kinds of customers, five kinds of products, click chances known exactly.

The world is drawn from one generator in this order: the shuffle of the catalogue, then one persona
per user. The draws are part of the world's definition: the same seed has to give
the same shop in any implementation. At seed 42 user 0 is a new_puppy_parent, product 4 a Dog Toy,
product 3 a Cat Toy.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator_client.errors import UsageError
from simulator_client.worlds.base import Outcome, Reference
from simulator_client.worlds.policies import Settings, chosen

CATEGORIES: Final = ("Fish Supplies", "Cat Food", "Dog Food", "Dog Toy", "Cat Toy")
PERSONAS: Final = ("new_puppy_parent", "cat_connoisseur", "budget_shopper", "fish_hobbyist")

CLICK_CHANCE: Final[dict[str, dict[str, float]]] = {
    persona: dict(
        zip(("Dog Food", "Dog Toy", "Cat Food", "Cat Toy", "Fish Supplies"), p, strict=True)
    )
    for persona, p in {
        "new_puppy_parent": (0.40, 0.50, 0.10, 0.05, 0.02),
        "cat_connoisseur": (0.05, 0.02, 0.55, 0.45, 0.05),
        "budget_shopper": (0.25, 0.15, 0.40, 0.20, 0.20),
        "fish_hobbyist": (0.02, 0.02, 0.10, 0.08, 0.60),
    }.items()
}
# The market shock: puppy parents take up fish.
SHOCKED: Final = CLICK_CHANCE | {
    "new_puppy_parent": {
        "Dog Food": 0.05,
        "Dog Toy": 0.10,
        "Cat Food": 0.01,
        "Cat Toy": 0.02,
        "Fish Supplies": 0.60,
    }
}

USERS: Final = 1_000
PRODUCTS_OF_A_CATEGORY: Final = 10
BLOCK_VISITS: Final = 4096


class Visit(NamedTuple):
    """One customer at the shop window."""

    number: int  # from 0
    user: int
    uniform: float  # in [0, 1): a click where it is below the click chance


class ZooplusStream:
    """Two generators of a seed: one draws the users, one a uniform a visit.

    Both are drawn in blocks of a fixed size, so a visit is the same wherever a run started.
    """

    def __init__(self, seed: int, users: int) -> None:
        self._who, self._chance = (
            np.random.default_rng(child) for child in np.random.SeedSequence(seed).spawn(2)
        )
        self._users = users
        self._blocks: list[tuple[NDArray[np.int64], NDArray[np.float64]]] = []

    def visit(self, index: int) -> Visit:
        block, offset = divmod(index, BLOCK_VISITS)
        while block >= len(self._blocks):
            who = self._who.integers(0, self._users, BLOCK_VISITS)
            self._blocks.append((who, self._chance.random(BLOCK_VISITS)))
        who, chance = self._blocks[block]
        return Visit(index, int(who[offset]), float(chance[offset]))


class Zooplus:
    """The shop of `seed`; from visit `shock_at` on the market is another (None: never)."""

    name: str = "zooplus"
    groups: tuple[str, ...] = CATEGORIES
    reward_range: tuple[float, float] = (0.0, 1.0)
    miss: float | None = 0.0
    longest: int | None = None
    remark: str = ""

    def __init__(self, seed: int = 42, shock_at: int | None = None) -> None:
        rng = np.random.default_rng(seed)
        listed = [category for category in CATEGORIES for _ in range(PRODUCTS_OF_A_CATEGORY)]
        self.categories = [str(category) for category in rng.permutation(listed)]
        self.personas = [str(rng.choice(PERSONAS)) for _ in range(USERS)]
        self.shock_at = shock_at
        # Best and mean click chance by persona, before the shock and after it.
        self._best, self._mean = (
            [
                {persona: float(of([*chances.values()])) for persona, chances in table.items()}
                for table in (CLICK_CHANCE, SHOCKED)
            ]
            for of in (np.max, np.mean)
        )

    def definition(
        self, policies: Sequence[str], own: Mapping[str, Mapping[str, Any]] | None = None
    ) -> dict[str, Any]:
        """Define the experiment with these policies, everything else at the service's defaults."""
        return {
            "features": {
                "context": {"persona": {"type": "categorical", "values": list(PERSONAS)}},
                "arm": {"category": {"type": "categorical", "values": list(CATEGORIES)}},
                "crosses": ["persona x category"],
            },
            "arms": {str(k): {"category": name} for k, name in enumerate(self.categories)},
            "policies": chosen(policies, own, _fit),
            "reward": {"range": list(self.reward_range)},
        }

    def stream(self, seed: int) -> ZooplusStream:
        return ZooplusStream(seed, len(self.personas))

    def request(self, visit: Visit) -> dict[str, Any]:
        """Return the persona: it is all that is known of a customer."""
        return {"context": {"persona": self.personas[visit.user]}}

    def click_probability(self, user: int, arm: str, *, shocked: bool = False) -> float:
        """Return the true chance that `user` clicks on product `arm`."""
        chances = (SHOCKED if shocked else CLICK_CHANCE)[self.personas[user]]
        return chances[self._category(arm)]

    def outcome(self, visit: Visit, shown: Sequence[str]) -> Outcome:
        """Click where the visit's uniform is below the click chance of the one arm shown."""
        shocked = self._shocked(visit.number)
        p = self.click_probability(visit.user, shown[0], shocked=shocked)
        persona = self.personas[visit.user]
        best, uniform = self._best[shocked][persona], self._mean[shocked][persona]
        click = float(visit.uniform < p)
        return Outcome({"reward": click}, click, p, best, uniform, self._category(shown[0]))

    def references(self, visits: int) -> list[Reference]:
        """Return the expected CTR of the oracle and of uniform showing, before and after the
        shock."""
        starts = [0]
        if self.shock_at is not None and 0 < self.shock_at < visits:
            starts.append(self.shock_at)
        return [Reference(start, *self._bounds(self._shocked(start))) for start in starts]

    def _shocked(self, index: int) -> bool:
        return self.shock_at is not None and index >= self.shock_at

    def _bounds(self, shocked: bool) -> tuple[float, float]:
        """Oracle and uniform: means over all users, as every user is equally likely to come."""
        oracle = np.mean([self._best[shocked][persona] for persona in self.personas])
        uniform = np.mean([self._mean[shocked][persona] for persona in self.personas])
        return float(oracle), float(uniform)

    def _category(self, arm: str) -> str:
        if not (arm.isdecimal() and int(arm) < len(self.categories)):
            raise UsageError(f"the service showed arm {arm!r}, which world {self.name} has not")
        return self.categories[int(arm)]


def _fit(settings: Settings) -> Settings:
    # The personas alone: with the service's intercept beside them one column would be redundant.
    return {"features": ["persona"]} if settings.get("disjoint") else {}
