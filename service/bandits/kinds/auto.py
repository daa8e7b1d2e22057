"""`auto`: the upper bound of averaged regressions; it needs no choosing and no tuning."""

from collections.abc import Mapping, Sequence
from math import sqrt
from typing import Literal, Self

import numpy as np
from pydantic import model_validator

from service.bandits.encoder import Encoder
from service.bandits.heads.averaged import LATE_MEMBER_ARMS
from service.bandits.heads.averaged_informed import InformedHead
from service.bandits.heads.averaged_rows import CROSSES, UNITS
from service.bandits.heads.expansion import MOST_FUNCTIONS
from service.bandits.kinds.base import Exploring, Featured, Sizes
from service.bandits.linalg import Array, Index
from service.bandits.policy import Rule
from service.bandits.rules import highest
from service.bandits.version import LATE_FROM, PACE, Version
from service.features.declaration import INTERCEPT, Features, parts_of
from service.features.view import View

FIRST_DOUBT = 0.5
"""The 1/2 under the root of the width."""

NARROW = 0.8
"""Factor of the width where arms have a context and share nothing. In a trial over 25 data sets,
with 4 in place of 8 as the largest reach, .8 and .6 lost 43.1 and 43.2 percent of uniform choice's
regret in 2,000 visits, 1 lost 45.6."""

FLOOR, FLOOR_FROM = 0.005, 1_000.0
"""Share of uniform choice, and settlements after which it falls as their root."""


class AverageBound(Rule):
    """U_a = mean_a, within the range of rewards, + c width_a sqrt(1/2 + k log(1 + v_a / v)).

    v_a / v: the variance of the arm's row over that of what was shown; k = 1 + 1 / (1 + d) with d
    columns of the context; c = NARROW with context and without features of arms, else 1. As the
    anytime indices of Audibert & Bubeck 2009 and Lattimore 2015.
    """

    explores = True
    draws = 1

    def scores(self, version: Version, rows: Array, phi: Array, arms: Sequence[str]) -> Array:
        return self._bounds(version, phi, arms)

    def batches(self, version: Version) -> bool:
        return True

    def shares(
        self, version: Version, rows: Array, phi: Array, arms: Sequence[str], like: Index
    ) -> Array:
        return highest(self._bounds(version, phi, arms), like)

    def _bounds(self, version: Version, phi: Array, arms: Sequence[str]) -> Array:  # (b, U)
        assert version.head is not None
        mean, width, grown = version.head.spread(phi, arms)
        context, arm, _ = version.view.sides
        if len(context) and not len(arm):
            width = NARROW * width
        doubt = 1.0 + 1.0 / (1.0 + len(context))
        return np.clip(mean, *version.ends) + width * np.sqrt(FIRST_DOUBT + doubt * np.log1p(grown))

    def floor(self, version: Version) -> float:
        return FLOOR * min(1.0, sqrt(FLOOR_FROM / (version.settled + 1.0)))


class Auto(Featured, Exploring):
    in_order = True

    kind: Literal["auto"]

    @model_validator(mode="after")
    def _forgets_by_itself(self) -> "Auto":
        for name in ("gamma", "window", "change"):
            if getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(
                    f"{name}: auto weighs regressions that forget against others that do not; "
                    "leave gamma, window and change out"
                )
        return self

    def completed(self, features: Features, arms: Mapping[str, Mapping[str, object]]) -> Self:
        """Without being told otherwise it tries no arm for its own sake where all that it knows of
        an arm are the arm's own rewards in context: its width does so at less cost."""
        if "min_tries" in self.model_fields_set:
            return self
        seen = {part for name in self.seen(features, arms) for part in parts_of(name)}
        alone = not seen & features.context.keys() or seen & features.arm.keys()
        return self if alone else self.model_copy(update={"min_tries": 0})

    @property
    def per_arm(self) -> bool:
        return True

    @property
    def shares_features(self) -> bool:
        return True

    def seen(self, features: Features, arms: Mapping[str, Mapping[str, object]]) -> list[str]:
        """Crosses of context and arm are its own; those within one side count as features. A
        feature of the arm that repeats its id is left out: it has nothing that arms share."""
        if self.features is not None:
            return self.features
        told = [
            name
            for name in features.arm
            if not arms or any(values.get(name) != arm for arm, values in arms.items())
        ]
        sides = features.context.keys(), set(told)
        within = [
            cross
            for cross in features.crosses
            if any(side >= set(parts_of(cross)) for side in sides)
        ]
        return [INTERCEPT, *features.context, *told, *within]

    def make_rule(self) -> Rule:
        return AverageBound()

    def make_head(self, encoder: Encoder, view: View, key: str, span: float) -> InformedHead:
        return InformedHead(view, key)

    def head_numbers(self, sizes: Sizes) -> float:
        """Matrices of each arm, in stacks that double, and of what arms share."""
        d, f = sizes.columns - sizes.arm_columns, sizes.arm_columns
        if not f:
            own = 4 * d * (d + 2) + 2 * (d + UNITS) * (d + UNITS + 2 if d > 1 else 0)
            if self.remembered(sizes):
                own += (d + MOST_FUNCTIONS) * (d + MOST_FUNCTIONS + 2)
            return float(3 * sizes.heads * own)
        shared = d + f + min((d - 1) * f, CROSSES)
        own = 2 * d * (d + 2) + d * shared
        return float(3 * sizes.heads * own + 3 * 3 * shared**2)

    def remembered(self, sizes: Sizes) -> int:
        """While these are learned again, others come."""
        late = sizes.columns > 1 and not sizes.arm_columns and sizes.heads <= LATE_MEMBER_ARMS
        return LATE_FROM + LATE_FROM // (PACE - 1) if late else 0
