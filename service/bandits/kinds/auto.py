"""`auto`: the upper bound of averaged regressions; it needs no choosing and no tuning.

    score_a = mean_a + c width_a sqrt(1/2 + k log(1 + v_a / v))

    mean_a, width_a   of regressions, weighed by how well they predicted (`heads/averaged.py`)
    v_a / v           variance of the arm's row over that of what was shown
    k                 1 + 1 / (1 + d), with d columns of the context
    c                 NARROW with context and without features of arms, else 1

The arm of the largest score is chosen. Raftery, Karny, Ettler 2010 (Technometrics 52), equations 10
to 16; the root as in the anytime indices of Audibert, Bubeck 2009 and Lattimore 2015.
"""

from collections.abc import Mapping, Sequence
from math import sqrt
from typing import Literal, Self

import numpy as np
from pydantic import model_validator

from service.bandits.kinds import fields
from service.bandits.kinds.base import Featured
from service.bandits.linalg import Array, Index
from service.bandits.makers import Averaged
from service.bandits.policy import Policy, Rule
from service.bandits.rules import highest
from service.bandits.version import Version
from service.features.declaration import INTERCEPT, Features, parts_of

AUTO_OPTIMISM = 0.5
"""The 1/2 under the root of the width."""

NARROW = 0.8
"""Factor of the width where arms have a context and share nothing. In a trial over 25 data sets,
with 4 in place of 8 as the largest prior deviation, .8 and .6 lost 43.1 and 43.2 percent of uniform
choice's regret in 2,000 visits, 1 lost 45.6."""

FLOOR, FLOOR_FROM = 0.005, 1_000.0
"""Share of uniform choice, and settlements after which it falls as their root."""


class AverageBound(Rule):
    """The score above, of any head, with the mean within the range of rewards."""

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
        optimism = 1.0 + 1.0 / (1.0 + len(context))
        return np.clip(mean, *version.ends) + width * np.sqrt(
            AUTO_OPTIMISM + optimism * np.log1p(grown)
        )

    def floor(self, version: Version) -> float:
        return FLOOR * min(1.0, sqrt(FLOOR_FROM / (version.settled + 1.0)))


class Auto(Featured):
    kind: Literal["auto"]
    min_tries: fields.MinTries = 3

    def policy(self) -> Policy:
        return Policy(head=Averaged(), rule=AverageBound(), in_order=True, min_tries=self.min_tries)

    @model_validator(mode="after")
    def _forgets_by_itself(self) -> Self:
        window = self.window is not None
        for name, given in {
            "gamma": self.gamma < 1,
            "window": window,
            "change": self.change,
        }.items():
            if given:
                raise ValueError(
                    f"{name}: auto weighs regressions that forget against others that do not; "
                    "leave gamma, window and change out"
                )
        return self

    def completed(self, features: Features, arms: Mapping[str, Mapping[str, object]]) -> Self:
        """Try no arm for its own sake, unless told otherwise, where all that it knows of an arm are
        the arm's own rewards in context: its width does so at less cost."""
        if "min_tries" in self.model_fields_set:
            return self
        seen = {part for name in self.seen(features, arms) for part in parts_of(name)}
        alone = not seen & features.context.keys() or seen & features.arm.keys()
        return self if alone else self.model_copy(update={"min_tries": 0})

    def seen(self, features: Features, arms: Mapping[str, Mapping[str, object]]) -> list[str]:
        """Return the features that it sees. Crosses of context and arm are its own; those within
        one side count as features. A feature of the arm that repeats its id is left out: it has
        nothing that arms share."""
        if self.features is not None:
            return self.features
        known = [
            name
            for name in features.arm
            if not arms or any(values.get(name) != arm for arm, values in arms.items())
        ]
        sides = features.context.keys(), set(known)
        within = [
            cross
            for cross in features.crosses
            if any(side >= set(parts_of(cross)) for side in sides)
        ]
        return [INTERCEPT, *features.context, *known, *within]
