"""Has the world changed? A sequential test on a policy's prediction residuals.

Two-sided CUSUM (Page 1954) in one stratum for each column of the context, of the arm, and one of
all visits. For a shift of the reward by delta x_j sigma the log-likelihood ratio grows by
delta e x_j / sigma - delta^2 x_j^2 / 2 a settlement: a persona whose taste changed is noticed by
its own visits, undiluted by the others'.
"""

from math import log

import numpy as np

from service.bandits.heads.base import Array, Stored

SHIFT = 0.8
"""Shift (delta), in units of the noise, that the test finds soonest."""

FALSE_ALARMS = 1e-5
"""A settlement, in all strata together, for normal residuals: one in a hundred thousand."""

OUTLIER = 3.0
"""Residuals count for at most so many standard deviations: one outlier is no change."""

TESTED_FROM = 30.0
"""Settlements of a stratum before its residuals are tested: their scale has to be known."""

WIDEST, PRIOR_SETTLEMENTS = 0.5, 10.0
"""The widest noise that rewards in a range of 1 can have, and the settlements that it weighs in the
scale of a stratum: a few residuals near 0 are no scale, by which the next larger ones would be a
change."""

QUIET_SETTLEMENTS = 500
"""Settlements after a change before the next can be found: the head learns anew, and its residuals
say how far it has come."""


class Detector:
    """The running sums of one policy.

    contexts   (C,) columns of the base vector x that its strata are of: a change is looked for
               there first, since it is the context whose alternatives have to be tried again
    arms       (D,) columns of x that tell arms apart
    """

    def __init__(self, contexts: list[int], arms: list[int]) -> None:
        self.columns = [*contexts, *arms]
        self._contexts = len(contexts) + 1
        strata = len(self.columns) + 1  # the first is of all visits
        self._mass = np.zeros(strata)  # sum x_j^2
        self._seen = np.zeros(strata)  # settlements with x_j != 0
        self._squares = np.zeros(strata)  # sum (e x_j)^2
        self._quiet = np.zeros(strata)  # settlements before it is tested again
        self._sums = np.zeros((2, strata))  # of the ratio, upwards and downwards
        self._since = np.zeros((2, strata), np.int64)
        self._threshold = log(strata / FALSE_ALARMS)

    def observe(self, position: int, x: Array, residual: float) -> None:
        """One settlement. residual: e = reward - what was predicted before it was learned, as a
        share of the range of rewards."""
        x = np.concatenate([[1.0], x[self.columns]])
        active = x != 0
        self._seen += active
        self._mass += x * x
        self._squares += (residual * x) ** 2
        quiet = self._quiet > 0
        self._quiet[quiet] -= 1
        self._since[:, quiet] = position + 1
        tested = active & (self._seen > TESTED_FROM) & ~quiet
        if not tested.any():
            return
        size = np.where(tested, self._mass / np.maximum(self._seen, 1), 1.0)  # mean x_j^2
        squares = self._squares / size + PRIOR_SETTLEMENTS * WIDEST**2
        noise = np.sqrt(squares / (self._seen + PRIOR_SETTLEMENTS))
        share = np.where(tested, x / np.sqrt(size), 0.0)
        step = SHIFT * np.clip(residual / noise, -OUTLIER, OUTLIER) * share
        moved = self._sums + np.stack([step, -step]) - 0.5 * (SHIFT * share) ** 2
        restarts = moved <= 0
        self._sums = np.where(restarts, 0.0, moved)
        self._since = np.where(restarts & tested, position + 1, self._since)

    @property
    def alarm(self) -> tuple[int | None, int] | None:
        """(column of x, None for all visits; position from which the change seems to hold) of the
        stratum that says so most clearly, one of the context where there is any."""
        if self._sums.max() <= self._threshold:
            return None
        best = self._sums.max(axis=0)
        own = best[1 : self._contexts]
        if len(own) and own.max() > self._threshold:
            stratum = 1 + int(own.argmax())
        elif best[0] > self._threshold:
            stratum = 0
        else:
            stratum = int(best.argmax())
        side = int(self._sums[:, stratum].argmax())
        column = self.columns[stratum - 1] if stratum else None
        return column, int(self._since[side, stratum])

    def reset(self, position: int) -> None:
        """Start scales and evidence anew, since a change was acted on."""
        for sums in (self._mass, self._seen, self._squares, self._sums):
            sums[:] = 0.0
        self._quiet[:] = QUIET_SETTLEMENTS
        self._since[:] = position + 1

    def arrays(self) -> dict[str, Stored]:
        return {
            "sums": self._sums,
            "since": self._since,
            "counts": np.stack([self._mass, self._seen, self._squares, self._quiet]),
        }

    def restore(self, arrays: dict[str, Stored]) -> None:
        self._sums, self._since = arrays["sums"].copy(), arrays["since"].copy()
        self._mass, self._seen, self._squares, self._quiet = arrays["counts"].copy()
