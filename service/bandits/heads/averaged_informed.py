"""An averaged head that another system's visits taught, beside a twin that they did not.

The log of another system is a prior. Where its world is this one, it saves the exploring; where it
is not, it misleads for as long as it outweighs what is learned here. Which of both is true only
rewards of this world can say. So both heads learn these, they are averaged, and their forecasts
decide what the log may count (the question of Zhang et al. 2019, "Warm-starting contextual
bandits", arXiv 1901.00301).
"""

from collections.abc import Sequence
from math import exp
from typing import NamedTuple

import numpy as np

from service.bandits.heads.averaged import NEGLIGIBLE_WEIGHT, AveragedHead
from service.bandits.heads.averaged_rows import MemberRows
from service.bandits.heads.base import HeadHealth, Observation, Observations, Stored, part
from service.bandits.heads.head import Effects
from service.bandits.linalg import Array, Index
from service.features.view import View

TWIN_SHARE = 0.3
"""Least share of the twin, and the first one. Where rewards are rare, no evidence comes in time: so
much of the twin's width explores then."""

CREDIT, BOUND = 10.0, 9.0
"""Evidence for imports at first and at most, which gives them no larger share, and the most against
them. Of the arms that imports call the best, too much is expected even where they are right: the
credit is spent before that counts. At the bound they do not count at all."""


class Half(NamedTuple):
    """A head, and its share of the mean."""

    share: float
    head: AveragedHead
    remark: str


class InformedHead(AveragedHead):
    """An averaged head that learns imports beside a twin which does not. Imports reach it alone;
    all other settlements reach its twin too.

    plain     the twin, a copy from before the first import; None: nothing was imported
    against   evidence against imports, from -CREDIT to BOUND: by how much the twin's squared errors
              are smaller, in units of twice the larger noise; the twin that saw no click yet has
              almost none
    """

    def __init__(self, view: View, key: str) -> None:
        super().__init__(view, key)
        self.plain: AveragedHead | None = None
        self.against = -CREDIT

    @property
    def halves(self) -> list[Half]:
        """Heads that count in a decision."""
        if self.plain is None:
            return [Half(1.0, self, "")]
        informed = (1.0 - TWIN_SHARE) * exp(min(0.0, -self.against))
        share = informed / (informed + TWIN_SHARE)
        plain = Half(1.0 - share, self.plain, ", without imports")
        if share < NEGLIGIBLE_WEIGHT:
            return [plain._replace(share=1.0)]
        return [Half(share, self, ""), plain]

    # -- score ---------------------------------------------------------------------------------

    def spread(
        self, phi: Array, arms: Sequence[str], *, by_forms: bool = True
    ) -> tuple[Array, Array, Array]:
        if self.plain is None:
            return super().spread(phi, arms, by_forms=by_forms)
        seen = MemberRows(self._rows, phi, len(arms))
        (share, head, _), *others = self.halves
        mean, width, grown = head.spread_of(seen, arms, by_forms=by_forms)
        for rest, other, _ in others:
            found = other.spread_of(seen, arms, by_forms=by_forms)
            mean = share * mean + rest * found[0]
            width = share * width + rest * found[1]
            grown = share * grown + rest * found[2]
        return mean, width, grown

    def opinions(self, phi: Array, arms: Sequence[str]) -> list[tuple[str, float, Array]]:
        return [
            (name + half.remark, half.share * share, means)
            for half in self.halves
            for name, share, means in AveragedHead.opinions(half.head, phi, arms)
        ]

    def effects(self, row: Array, arm: str) -> Effects:  # (view.width,)
        predicted = [
            (half.share, AveragedHead.effects(half.head, row, arm)) for half in self.halves
        ]
        return Effects(
            sum(share * found.constant for share, found in predicted),
            np.sum([share * found.columns for share, found in predicted], axis=0),
            np.sum([share * found.crosses for share, found in predicted], axis=0),
            predicted[0][1].sides,
        )

    # -- learn ---------------------------------------------------------------------------------

    def observe(self, row: Observation) -> None:
        if row.imported and self.plain is None:
            self.plain = self.new()
            self.plain.restore(super().arrays())
            self.plain.trial = None  # late members join the half that imports taught
        error, noise = self.learn(row)
        if row.imported or self.plain is None:
            return
        forecast = self.plain.settled > 0
        own, other = self.plain.learn(row)
        if forecast:
            self._weigh(error, own, max(noise, other), row.weight)

    def observe_block(self, rows: Observations) -> None:
        if any(rows.imported):
            self.observe_many(rows)
            return
        learned = self.learn_many(rows)
        if self.plain is None:
            return
        before = self.plain.settled
        own = self.plain.learn_many(rows)
        for place, ((error, noise), (twin, other)) in enumerate(zip(learned, own, strict=True)):
            if before + place:
                self._weigh(error, twin, max(noise, other), float(rows.weights[place]))

    def _weigh(self, error: float, twin: float, noise: float, weight: float) -> None:
        """Move the evidence against imports by the errors of both."""
        gain = weight * (error * error - twin * twin) / (2.0 * noise)
        self.against = min(max(self.against + gain, -CREDIT), BOUND)

    def revise(self, row: Observation, was: float, left: float = 1.0) -> None:
        super().revise(row, was, left)
        if self.plain is not None and not row.imported:
            self.plain.revise(row, was, left)

    def withdraw(self, row: Observation, left: float = 1.0) -> None:
        super().withdraw(row, left)
        if self.plain is not None and not row.imported:
            self.plain.withdraw(row, left)

    def follow(self, kept: AveragedHead, columns: Index) -> None:
        super().follow(kept, columns)
        if isinstance(kept, InformedHead) and kept.plain is not None:
            self.plain, self.against = self.new(), kept.against
            self.plain.follow(kept.plain, columns)

    # -- state ---------------------------------------------------------------------------------

    @property
    def twin(self) -> bool:
        return self.plain is not None

    def health(self) -> HeadHealth:
        """Describe the heavier half."""
        return AveragedHead.health(max(self.halves, key=lambda half: half.share).head)

    def arrays(self) -> dict[str, Stored]:
        found = super().arrays()
        if self.plain is not None:
            found |= {f"plain.{name}": array for name, array in self.plain.arrays().items()}
            found["against"] = np.array([self.against])
        return found

    def restore(self, arrays: dict[str, Stored]) -> None:
        super().restore(arrays)
        self.plain, self.against = None, -CREDIT
        if own := part(arrays, "plain."):
            self.plain = self.new()
            self.plain.restore(own)
            [self.against] = arrays["against"].tolist()
