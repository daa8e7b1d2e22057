"""`squarecb`: inverse-gap weighting of the means, with a chance for every arm in closed form."""

from typing import Literal

from pydantic import Field, PositiveFloat

from service.bandits.inverse_gap import InverseGap
from service.bandits.kinds.base import Kind, Point
from service.bandits.policy import Rule


class SquareCb(Point):
    kind: Literal["squarecb"]
    gap_scale: PositiveFloat = Field(
        10.0,
        description="c: of K arms of U kinds, one whose mean is a share g of the reward range "
        "below the best has the chance 1 / (K + (K / U) c sqrt(n) g) after n settlements. "
        "Larger explores less.",
    )

    keeps_head = Kind.keeps_head | {"training", "gap_scale"}

    def make_rule(self) -> Rule:
        return InverseGap(self.gap_scale, net=self.has_net)
