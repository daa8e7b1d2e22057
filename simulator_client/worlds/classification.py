"""A classification data set as a bandit: a row is a visit, the classes are the arms.

The reward is 1 for the right class. In the Mushroom problem (Riquelme et al. 2018) the arms are
`eat` and `pass`: passing pays 0, eating an edible mushroom 5, eating a poisonous one 5 or -35, each
with chance 1/2; regret is against the arm with the best mean.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator_client.errors import UsageError
from simulator_client.worlds.base import Outcome, Reference
from simulator_client.worlds.policies import Settings, chosen, sees_features
from simulator_client.worlds.tables import CATEGORIES, Columns, read_table

LABEL: Final = "label"
ARM_FEATURE: Final = "arm"
ARM_CHARACTERS: Final = 128
GROUPS: Final = 14  # classes that a figure tells apart
OTHERS: Final = "other classes"
# Heads an arm, which see the context alone; the others tell the arms apart by their one feature.
DISJOINT: Final = frozenset(
    {
        *("linucb", "lints", "greedy", "epsilon_greedy", "squarecb"),
        *("neural_linear_ts", "neural_linucb"),
    }
)

MUSHROOMS: Final = frozenset({"edible", "poisonous"})
EATEN: Final = {"edible": (5.0, 5.0), "poisonous": (5.0, -35.0)}  # below and from uniform 1/2
RISK: Final = (
    "Rewards are those of the Mushroom problem: passing 0, an edible one 5, a poisonous one 5 or "
    "-35 with chance 1/2 each. CTR stands for the mean reward."
)
PASSED: Final = (0.0, 0.0)


class Visit(NamedTuple):
    number: int  # from 0
    row: int
    uniform: float  # in [0, 1): which of two rewards, where chance has a say


class RowStream:
    """The rows in an order of the seed, and one uniform a visit.

    `numpy.random.default_rng(seed).permutation` orders the rows; visits beyond the last row go on
    with a further permutation of the same generator. The uniforms come from another one. Both are
    drawn for as many visits as there are rows, so a visit is the same wherever a run started.
    """

    def __init__(self, seed: int, rows: int) -> None:
        self._order = np.random.default_rng(seed)
        self._chance = np.random.default_rng(np.random.SeedSequence(seed).spawn(1)[0])
        self._rows = rows
        self._passes: list[tuple[NDArray[np.int64], NDArray[np.float64]]] = []

    def visit(self, index: int) -> Visit:
        number, offset = divmod(index, self._rows)
        while number >= len(self._passes):
            order = self._order.permutation(self._rows)
            self._passes.append((order, self._chance.random(self._rows)))
        order, chance = self._passes[number]
        return Visit(index, int(order[offset]), float(chance[offset]))


class Classification:
    name: str = "classification"
    longest: int | None = None

    def __init__(self, path: Path, label: str = LABEL, *, risky: bool = False) -> None:
        table = read_table(path)
        if label not in table:
            raise UsageError(f"{path} has no column {label!r}; it has: {', '.join(table)}")
        self.labels = table.pop(label)
        classes = sorted(set(self.labels))
        if risky and set(classes) != MUSHROOMS:
            raise UsageError(f"{path}: risky rewards are for the labels edible and poisonous alone")
        self.risky = risky or (path.name.startswith("mushroom") and set(classes) == MUSHROOMS)
        self.arms = ["eat", "pass"] if self.risky else classes
        if not 2 <= len(self.arms) <= CATEGORIES:
            raise UsageError(f"{path} has {len(classes)} classes; 2 to {CATEGORIES:,} are needed")
        if wrong := [c for c in self.arms if not 1 <= len(c) <= ARM_CHARACTERS]:
            raise UsageError(f"{path}: {wrong[0]!r} is no name of a class: 1 to 128 characters")
        self.columns = Columns(table, taken=[ARM_FEATURE])
        if not self.columns.schema:
            raise UsageError(f"{path} has no column that varies beside {label!r}")
        self.reward_range: tuple[float, float] = (-35.0, 5.0) if self.risky else (0.0, 1.0)
        self.miss: float | None = None if self.risky else 0.0
        self.remark = RISK if self.risky else ""
        common = [c for c, _ in Counter(self.labels).most_common(GROUPS)]
        few = len(self.arms) <= GROUPS
        self.groups: tuple[str, ...] = tuple(self.arms) if few else (*sorted(common), OTHERS)

    def definition(
        self, policies: Sequence[str], own: Mapping[str, Mapping[str, Any]] | None = None
    ) -> dict[str, Any]:
        """Define the experiment: the columns are the context, and an arm's only feature is its
        id."""
        return {
            "features": {
                "context": self.columns.schema,
                "arm": {ARM_FEATURE: {"type": "categorical", "values": self.arms}},
            },
            "arms": {arm: {ARM_FEATURE: arm} for arm in self.arms},
            "policies": chosen(policies, own, one_head_an_arm),
            "reward": {"range": list(self.reward_range)},
        }

    def stream(self, seed: int) -> RowStream:
        return RowStream(seed, len(self.labels))

    def request(self, visit: Visit) -> dict[str, Any]:
        return {"context": self.columns.row(visit.row)}

    def outcome(self, visit: Visit, shown: Sequence[str]) -> Outcome:
        """Return the reward of one arm; of two equally likely ones, by the visit's uniform."""
        if shown[0] not in self.arms:
            raise UsageError(f"the service showed arm {shown[0]!r}, which the data has not")
        label = self.labels[visit.row]
        rewards = self.rewards(label, shown[0])
        reward = rewards[0] if visit.uniform < 0.5 else rewards[1]
        best, uniform = self._bounds(label)
        group = shown[0] if shown[0] in self.groups else OTHERS
        return Outcome({"reward": reward}, reward, sum(rewards) / 2, best, uniform, group)

    def rewards(self, label: str, arm: str) -> tuple[float, float]:
        """Return the two equally likely rewards of an arm where `label` is the truth."""
        if self.risky:
            return EATEN[label] if arm == "eat" else PASSED
        return (1.0, 1.0) if arm == label else (0.0, 0.0)

    def references(self, visits: int) -> list[Reference]:
        bounds = [(self._bounds(label), n) for label, n in Counter(self.labels).items()]
        best = sum(n * best for (best, _), n in bounds) / len(self.labels)
        uniform = sum(n * uniform for (_, uniform), n in bounds) / len(self.labels)
        return [Reference(0, best, uniform)]

    def _bounds(self, label: str) -> tuple[float, float]:
        if not self.risky:
            return 1.0, 1.0 / len(self.arms)
        means = [sum(self.rewards(label, arm)) / 2 for arm in self.arms]
        return max(means), sum(means) / len(means)


def one_head_an_arm(settings: Settings) -> Settings:
    """Return what a policy needs where arms have no feature but their name."""
    if settings.get("kind") in DISJOINT and sees_features(settings):
        return {"disjoint": True}
    return {}
