"""Which slots of a slate users look at.

The position-based model: a click on the arm in slot k needs that the user looks there and likes it,
P(click) = theta_k g, with g the chance of a click on the arm once it is seen (Richardson,
Dominowska, Ragno 2007). A miss in slot k says something of the arm only if it was seen, of which
the chance is

    P(seen | no click) = theta_k (1 - g) / (1 - theta_k g)

Heads learn a miss by this weight: the E-step of regression EM (Wang, Golbandi, Bendersky, Metzler,
Najork 2018, "Position bias estimation for unbiased learning to rank in personal search"), in which
the head is the regression. Three things differ from their M-step, each measured in
docs/decisions/16-where-users-look.md:

- theta_k = (sum of clicks in slot k) / (sum of what was predicted there), the root of the same
  likelihood equation. The mean of the E-step's chances cannot leave theta_k = 1.
- Heads that learned under a wrong theta predict too little of the arms in the lower slots, and so
  confirm it. Each arm a has a factor r_a of its predictions: rewards ~ Poisson(r_a theta_k P_ak).
  Only an arm that was shown in several slots then says anything of their chances.
- Weights use a lower bound of theta. Too small a theta flatters the arms of lower slots; they come
  first, where theta_1 = 1 is certain, and are found out. Too large a theta keeps them where they
  are, and nothing ever tells.

| symbol    | attribute     | meaning                                                           |
|-----------|---------------|-------------------------------------------------------------------|
| theta_k   | `likely`      | chance that slot k is looked at; theta_1 = 1                      |
| C_ak      | `rewards`     | rewards of arm a in slot k, each scaled to [0, 1]                 |
| P_ak      | `predicted`   | sum of the predictions g, (arms, slots)                           |
| I_k       |               | sum_a C_ak (1 - C_ak / C_a), information on ln theta_k, in clicks |
| bound     | `lower`       | theta_k exp(-3 / sqrt(1 + I_k))                                   |
"""

from collections.abc import Mapping
from math import log2

import numpy as np

from service.bandits.heads.base import Meta, NameIndex, Stored, pack_names, unpack_names
from service.bandits.linalg import Array

LARGEST_CHANCE = 0.99
"""Largest chance of a click in a weight: a prediction above 1 would have no miss count."""

SMALLEST = 1e-3
"""Least theta: a slot that nobody has clicked in can become known."""

CAUTION = 3.0
"""Standard errors of ln theta below it that the bound lies."""

ARMS = 1_000
"""Arms with a row of their own, the first ones; row 0 is that of all others."""

PASSES = 30
"""Passes of the proportional fitting of r and theta (Deming, Stephan 1940)."""

SOLVED_EVERY = 100
"""Chances are solved again after a hundredth more settlements."""


def seen_chance(examined: float, predicted: float) -> float:
    """P(seen | no click). examined: theta of the slot; predicted: g, clipped here."""
    g = min(max(predicted, 0.0), LARGEST_CHANCE)
    return examined * (1 - g) / (1 - examined * g)


def first_chance(slot: int) -> float:
    """Chance that a slot, from 1 on, is looked at, before there is a reward: the discount of DCG
    (Jarvelin, Kekalainen 2002)."""
    return 1 / log2(slot + 1)


class Examination:
    """Learned chances that slots are looked at: a fold over settlements."""

    def __init__(self) -> None:
        self._rows = NameIndex()
        self.rewards, self.predicted = np.zeros((2, 1, 1))
        self.settled = self.clicks = self._due = 0
        self.likely, self._lower = [1.0], [1.0]

    def lower(self, slot: int) -> float:
        """Return the lower bound of theta in a slot, from 1 on."""
        if slot <= len(self._lower):
            return self._lower[slot - 1]
        return first_chance(slot) * float(np.exp(-CAUTION))

    def learn(self, arm: str | None, slot: int, reward: float, predicted: float) -> None:
        """Count a first reward in a slot, scaled to [0, 1], and what was predicted. arm: None for
        one outside the catalogue."""
        row = self._row(arm)
        self._reserve(row + 1, slot)
        self.rewards[row, slot - 1] += reward
        self.predicted[row, slot - 1] += predicted
        self.clicks += reward > 0
        self.settled += 1
        if self.settled >= self._due:
            self._due = self.settled + 1 + self.settled // SOLVED_EVERY
            self._solve()

    def correct(self, arm: str | None, slot: int, reward: float, was: float) -> None:
        """Count a reward in a slot that changed."""
        row = self._row(arm)
        self._reserve(row + 1, slot)
        self.rewards[row, slot - 1] = max(self.rewards[row, slot - 1] + reward - was, 0.0)
        self.clicks += (reward > 0) - (was > 0)

    def _row(self, arm: str | None) -> int:
        if arm is None:
            return 0
        full = len(self._rows) > ARMS
        return self._rows.by_name.get(arm, 0) if full else self._rows.add(arm)

    def _reserve(self, rows: int, slots: int) -> None:
        old, size = self.rewards.shape, self.rewards.shape
        if rows > size[0]:
            size = max(rows, min(2 * size[0], ARMS + 1)), size[1]
        if slots > size[1]:
            size = size[0], slots
        if size != old:
            wide = np.zeros((2, *size))
            wide[:, : old[0], : old[1]] = self.rewards, self.predicted
            self.rewards, self.predicted = wide

    def _solve(self) -> None:
        """Derive the chances from the sums, and from nothing else. The prior of each weighs as one
        click."""
        rewards, predicted = self.rewards, self.predicted
        first = np.array([first_chance(slot) for slot in range(1, rewards.shape[1] + 1)])
        click = float(rewards.sum()) / self.clicks if self.clicks else 1.0
        by_arm, by_slot, likely = rewards.sum(axis=1), rewards.sum(axis=0), first
        for _ in range(PASSES):
            factor = (by_arm + click) / (predicted @ likely + click)
            likely = (by_slot + click * first) / (factor @ predicted + click)
            likely = np.clip(likely, SMALLEST, 1.0)
            likely[0] = 1.0
        lower = likely * np.exp(-CAUTION / np.sqrt(1 + self._information(rewards, by_arm) / click))
        lower[0] = 1.0
        self.likely, self._lower = likely.tolist(), lower.tolist()

    @staticmethod
    def _information(rewards: Array, by_arm: Array) -> Array:  # (arms, slots), (arms,) -> (slots,)
        share = rewards / np.where(by_arm > 0, by_arm, 1.0)[:, None]
        return np.asarray((rewards * (1 - share)).sum(axis=0))

    @property
    def bounds(self) -> tuple[list[float], list[float]]:
        """The likeliest chances, and their lower bounds."""
        return self.likely, self._lower

    @bounds.setter
    def bounds(self, bounds: tuple[list[float], list[float]]) -> None:
        self.likely, self._lower = bounds

    # -- snapshots -----------------------------------------------------------------------------

    def dump(self) -> tuple[Meta, dict[str, Stored]]:
        rows = len(self._rows)
        meta = {
            "settled": self.settled,
            "clicks": self.clicks,
            "due": self._due,
            "likely": self.likely,
            "lower": self._lower,
        }
        return meta, {
            "arms": pack_names(self._rows.by_name),
            "rewards": self.rewards[:rows],
            "predicted": self.predicted[:rows],
        }

    @classmethod
    def restore(cls, meta: Meta, arrays: Mapping[str, Stored]) -> "Examination":
        """Do the inverse of `dump`."""
        found = cls()
        found._rows = NameIndex(unpack_names(arrays["arms"]))
        found.rewards, found.predicted = arrays["rewards"].copy(), arrays["predicted"].copy()
        found.settled, found.clicks = int(meta["settled"]), int(meta["clicks"])
        found._due = int(meta["due"])
        found.likely, found._lower = list(meta["likely"]), list(meta["lower"])
        return found
