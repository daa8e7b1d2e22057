"""The gate of a trained version: it serves once it predicts rewards better than the one that does.

Each settlement is predicted by both versions before either learns it. With l, the loss of the one
that serves, and l', that of the challenger, its gain is x = l - l', in [-1, 1]. Means of x are told
by a confidence sequence, so that they may be looked at after each settlement: with m, the mean of
the earlier gains, the sum of e = x - m is within the boundary of V, the sum of e^2
(`service.bandits.boundary`; Howard, Ramdas, McAuliffe, Sekhon 2021, Theorem 4: the empirical
Bernstein sequence of a bounded mean).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import log
from typing import Final, Literal

import msgspec
import numpy as np

from service.bandits.boundary import log_evidence, radius
from service.tables import figure

GATE_ALPHA: Final = 0.05
"""Chance that the bounds of the mean gain ever leave it out."""

LAST_LOOK: Final = 500
"""Settlements after which a version serves that is no worse, if its net explains rewards, and any
other is rejected: a head learns on beside any net, so two versions may well predict alike."""

NO_WORSE: Final = 0.01
"""Share of the loss of the version that serves by which that of the challenger may be larger."""

EXPLAINED: Final = 4.0
"""Standard errors by which a net explains rewards that it was not fitted to: one that learned
nothing seems to in 3 of 100,000 trainings."""

LEAST_CHANCE: Final = 0.01
"""Bound of a predicted chance, from both ends, under a log loss."""

_SCALE: Final = 2.0
"""The largest |x - m| there can be."""

GateOutcome = Literal["serves", "rejected"]


class GateFigures(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a gate saw of two versions. Losses are those of rewards as shares of their range.

    settlements       that both predicted
    gain              mean loss of the version that served, less that of the challenger
    low, high         bounds of the mean gain that hold at all times at once
    loss              mean, of the version that served
    challenger_loss   mean
    explains          the challenger's net explains rewards that it was not fitted to
    """

    settlements: int
    gain: float
    low: float
    high: float
    loss: float
    challenger_loss: float
    explains: bool


@dataclass(slots=True)
class GateSums:
    """Sums over the settlements that both versions predicted: of gains, of (x - m)^2, of losses.

    explains   the challenger's net explains rewards that it was not fitted to
    """

    explains: bool = True
    settlements: int = 0
    gains: float = 0.0
    squares: float = 0.0
    losses: float = 0.0
    challenger_losses: float = 0.0

    def add(self, loss: float, challenger_loss: float) -> None:
        """Add a settlement, unless the outcome is known."""
        if self.outcome is not None:
            return
        gain = min(max(loss - challenger_loss, -1.0), 1.0)
        mean = self.gains / self.settlements if self.settlements else 0.0
        self.settlements += 1
        self.gains += gain
        self.squares += (gain - mean) ** 2
        self.losses += loss
        self.challenger_losses += challenger_loss

    @property
    def outcome(self) -> GateOutcome | None:
        """What follows from the gains; None: it is open."""
        found = log_evidence(np.array(abs(self.gains)), np.array(self.squares), _SCALE)
        told = float(found) > log(2 / GATE_ALPHA)
        if told:
            return "serves" if self.gains > 0 else "rejected"
        if self.settlements < LAST_LOOK:
            return None
        no_worse = self.gains >= -NO_WORSE * self.losses
        return "serves" if no_worse and self.explains else "rejected"

    @property
    def figures(self) -> GateFigures | None:
        """Return means and bounds; None before the first settlement."""
        n = self.settlements
        if n == 0:
            return None
        half = float(radius(np.array(self.squares), _SCALE, GATE_ALPHA)) / n
        gain = self.gains / n
        bounds = max(gain - half, -1.0), min(gain + half, 1.0)
        losses = self.losses / n, self.challenger_losses / n
        return GateFigures(n, gain, *bounds, *losses, self.explains)


def loss_of(reward: float, predicted: float, *, log_loss: bool) -> float:
    """Return the loss of a prediction: the squared error, or the log loss of a chance.

    reward, predicted   shares of the range of rewards, to which they are cut
    """
    r, p = (min(1.0, max(0.0, share)) for share in (reward, predicted))
    if not log_loss:
        return (r - p) ** 2
    p = min(1 - LEAST_CHANCE, max(LEAST_CHANCE, p))
    return -r * log(p) - (1 - r) * log(1 - p)


GATE_VERBS: Final[Mapping[GateOutcome | Literal["rolls out"], str]] = {
    "serves": "serves",
    "rejected": "was rejected",
    "rolls out": "is rolled out",
}


def gate_sentence(
    number: int,
    before: int,
    found: GateFigures | None,
    outcome: GateOutcome | Literal["rolls out"],
) -> str:
    """Say in words what becomes of a version, and why. before: the number of the other one."""
    verb = GATE_VERBS[outcome]
    if found is None:
        return f"Version {number} {verb}: it was not compared with version {before}."
    errs = "less" if found.gain > 0 else "more"
    told = (
        f"Version {number} {verb}: over {found.settlements:,} rewards it erred by "
        f"{figure(abs(found.gain))} {errs} than version {before} "
        f"(between {figure(found.low)} and {figure(found.high)} less)"
    )
    if found.low <= 0 <= found.high:
        shown = "explains" if found.explains else "was not shown to explain"
        told += f", and its net {shown} rewards that it was not fitted to"
    return told + "."
