"""Replay of a logged bandit data set by rejection sampling on matching choices.

A visit is a row of the log. The policy is asked; where its choice is the logged arm the logged
reward is sent, otherwise the visit is rejected: nothing is sent, and it does not count. Over a log
of uniform choices this is an unbiased account of the policy run live [Li et al. 2011, arXiv
1003.5956]. Over a log of other choices a matching row is kept with chance min(p) / p, with p the
logged propensity and min(p) the smallest of the log, decided by the visit's own uniform: every row
is then kept with the same chance whatever was shown, and the account is exact again. The price is
that of 1 / min(p) rows about one is kept: a log with tiny propensities keeps next to none.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from simulator_client.errors import UsageError
from simulator_client.worlds.base import Outcome, Reference
from simulator_client.worlds.policies import chosen
from simulator_client.worlds.tables import CATEGORIES, Columns, numbers, read_table

ITEM, CLICK, PROPENSITY, POSITION = "item_id", "click", "propensity_score", "position"
USER_PREFIX: Final = "user_feature"
ITEM_PREFIX: Final = "item_feature"
ITEM_FILE: Final = "*item_context.csv"
ARM_FEATURE: Final = "arm"
MATCHED: Final = "matched"
REJECTED: Final = "rejected"


class Visit(NamedTuple):
    number: int  # from 0
    row: int
    uniform: float  # in [0, 1): whether a match is kept


class LogStream:
    """The rows of the log, once each: in file order for seed 0, else permuted by the seed."""

    def __init__(self, seed: int, rows: int) -> None:
        order = np.random.default_rng(seed).permutation(rows) if seed else np.arange(rows)
        chance = np.random.default_rng(np.random.SeedSequence(seed).spawn(1)[0])
        self._order, self._uniforms = order.tolist(), chance.random(rows).tolist()

    def visit(self, index: int) -> Visit:
        if index >= len(self._order):
            raise UsageError(f"the log has {len(self._order):,} rows, and so many visits at most")
        return Visit(index, self._order[index], self._uniforms[index])


class Logged:
    """The log in a file of the Open Bandit form; features of its items in a file beside it."""

    name: str = "logged"
    groups: tuple[str, ...] = (MATCHED, REJECTED)

    def __init__(self, path: Path) -> None:
        table = read_table(path)
        if missing := [name for name in (ITEM, CLICK, PROPENSITY) if name not in table]:
            raise UsageError(f"{path} has no column {missing[0]!r}; it has: {', '.join(table)}")
        self.shown = table[ITEM]
        self.clicks = _numbers(path, table, CLICK)
        self.propensities = _numbers(path, table, PROPENSITY)
        if not 0.0 < min(self.propensities) <= max(self.propensities) <= 1.0:
            raise UsageError(f"{path}: a {PROPENSITY} is not in (0, 1]")
        if not 0.0 <= min(self.clicks) <= max(self.clicks) <= 1.0:
            raise UsageError(f"{path}: a {CLICK} is not in [0, 1]")
        self._kept = min(self.propensities)
        seen = {n: v for n, v in table.items() if n == POSITION or n.startswith(USER_PREFIX)}
        # A position is a place, not an amount: its values are told apart, not measured.
        if POSITION in seen:
            seen[POSITION] = [f"place {place}" for place in seen[POSITION]]
        self.arms, items = self._catalogue(path)
        if len(self.arms) > CATEGORIES:
            raise UsageError(f"{path} has {len(self.arms):,} items; at most {CATEGORIES:,} work")
        self.items = Columns(items, taken=[ARM_FEATURE])
        self.columns = Columns(seen, taken=[ARM_FEATURE, *self.items.schema])
        self.reward_range: tuple[float, float] = (0.0, 1.0)
        self.miss: float | None = None
        self.longest: int | None = len(self.shown)
        self.remark = "A visit counts where the choice is the logged one"
        self.remark += (
            "."
            if self.is_uniform
            else (
                " and, as the log is not one of uniform choices, the row is kept: with chance "
                f"min(p)/p, min(p) being {self._kept:.3g}, which makes the account exact."
            )
        )

    @property
    def is_uniform(self) -> bool:
        """Whether every choice was logged with the same propensity."""
        return max(self.propensities) <= self._kept * (1.0 + 1e-9)

    def definition(
        self, policies: Sequence[str], own: Mapping[str, Mapping[str, Any]] | None = None
    ) -> dict[str, Any]:
        """Define the experiment without a default reward: a rejected visit teaches nothing."""
        arm = {ARM_FEATURE: {"type": "categorical", "values": self.arms}} | self.items.schema
        return {
            "features": {"context": self.columns.schema, "arm": arm},
            "arms": {
                arm: {ARM_FEATURE: arm} | (self.items.row(k) if self.items.schema else {})
                for k, arm in enumerate(self.arms)
            },
            "policies": chosen(policies, own, lambda settings: {}),
            "reward": {"range": list(self.reward_range), "default": None},
        }

    def stream(self, seed: int) -> LogStream:
        return LogStream(seed, len(self.shown))

    def request(self, visit: Visit) -> dict[str, Any]:
        """Return the user's features and the position on the page."""
        return {"context": self.columns.row(visit.row)}

    def outcome(self, visit: Visit, shown: Sequence[str]) -> Outcome:
        """Return the logged reward where the choice is the logged one and the row is kept."""
        row = visit.row
        kept = visit.uniform * self.propensities[row] < self._kept
        if shown[0] != self.shown[row] or not kept:
            return Outcome(None, 0.0, 0.0, None, None, REJECTED)
        click = self.clicks[row]
        return Outcome({"reward": click}, click, click, None, None, MATCHED)

    def references(self, visits: int) -> list[Reference]:
        """Return none: nobody knows the truth behind a log."""
        return []

    def _catalogue(self, path: Path) -> tuple[list[str], dict[str, list[str]]]:
        """Return the items and the columns of their features, in one order."""
        beside = [file for file in path.parent.glob(ITEM_FILE) if file != path]
        if not beside:
            return sorted(set(self.shown), key=_by_number), {}
        nearest = max(
            sorted(beside),
            key=lambda file: len(os.path.commonprefix([file.name, path.name])),  # noqa: RUF071
        )
        table = read_table(nearest)
        if ITEM not in table:
            raise UsageError(f"{nearest} has no column {ITEM!r}")
        arms = table[ITEM]
        if missing := set(self.shown) - set(arms):
            raise UsageError(f"{nearest} has not the item {min(missing)!r} of {path.name}")
        if len(set(arms)) < len(arms):
            raise UsageError(f"{nearest} has an item twice")
        return arms, {n: v for n, v in table.items() if n.startswith(ITEM_PREFIX)}


def _numbers(path: Path, table: Mapping[str, Sequence[str]], column: str) -> list[float]:
    values = numbers(table[column])
    if values is None:
        raise UsageError(f"{path}: column {column!r} has values that are no numbers")
    return values


def _by_number(item: str) -> tuple[int, str]:
    return (int(item), "") if item.isdecimal() else (1 << 62, item)
