"""What an averaged head says of some arms, as forms of a context, which hold until it learns.

Less what an arm's own regression says of it, the shared row of an arm is linear in [1, x]. So the
arm's mean is linear in [1, x], and its variance quadratic:

    mean = [1, x]' w        v = [1, x]' (P + L' P0 L) [1, x]

with P of the arm's own regression, P0 of that which arms share, and L the shared row of each column
of [1, x] less what the own regression says of it. A context then costs m^2 products an arm in place
of m0^2, with m = 1 + d and m0 columns of the shared row. Rounding differs from that of
`Member.predict` by far less than what counts as a tie, so either way gives the same chances.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from service.bandits.heads.averaged_member import LEAST_VARIANCE, MemberForms
from service.bandits.heads.averaged_rows import MemberRows
from service.bandits.linalg import Array, Index

ASKED_ENOUGH = 4
"""Contexts since the head learned from which on forms pay; where [1, x] has more columns, as many
contexts as columns. 50 arms of 5 columns, contexts of 4: forms take as long as two contexts that
are decided alone, or as seven of a batch of 32."""

MOST_PRODUCTS = 2**25
"""Products that making forms may take until the head learns: some 4 ms."""

MOST_SETS = 16
"""Sets of arms that are counted."""


def most_numbers(arms: int, m: int, m0: int) -> float:
    """Bound the numbers of all forms of a head: m * m + m an arm of each of four members, and as
    many for one that forgets; or as many as MOST_PRODUCTS make, for one member at the least."""
    made = MOST_PRODUCTS / (m * m0 * (m + m0))
    return (m * m + m) * min(5.0 * MOST_SETS * arms, 2.0 * made)


def total(weights: Array, found: Array) -> Array:  # (members,), (members, B, K) -> (B, K)
    """Return the sum of what members say, by their weights."""
    return np.asarray(weights @ found.reshape(len(weights), -1)).reshape(found.shape[1:])


class Average(NamedTuple):
    """What makes one mean, width and growth of those of n members that count, for some arms.

    base             mean at which all arms start
    shares           (n,) weights of the members
    noises           (n, 1, K)
    usual_variance   (n,) of what was shown
    """

    base: float
    shares: Array
    noises: Array
    usual_variance: Array

    def __call__(self, mean: Array, v: Array) -> tuple[Array, Array, Array]:
        """Return (B, K) of each. mean: (B, K), averaged; v: (n, B, K), in units of the noise."""
        width = total(self.shares, np.sqrt(v * self.noises))
        return mean + self.base, width, total(self.shares / self.usual_variance, v)


class Forms:
    """Forms of means and variances of some arms.

    linear      (m, K) of the averaged mean
    quadratic   (n + k, m m, K) of n members' variances, and of what those of the k fading ones are
                at most
    fading      (k,) their places
    """

    def __init__(self, found: Sequence[MemberForms], average: Average) -> None:
        self._average = average
        self._linear = np.tensordot(average.shares, [each.linear for each in found], 1).T
        most = [each.most for each in found if each.most is not None]
        self._fading = [place for place, each in enumerate(found) if each.most is not None]
        forms = np.array([*(each.quadratic for each in found), *most])
        count, arms, m, _ = forms.shape
        self._quadratic = np.ascontiguousarray(forms.reshape(count, arms, m * m).swapaxes(1, 2))

    def spread(self, own: Array) -> tuple[Array, Array, Array]:  # (B, m) -> (B, K) each
        """Return what `Average` makes of contexts."""
        squares = (own[:, :, None] * own[:, None, :]).reshape(len(own), -1)
        v = squares @ self._quadratic
        if self._fading:
            members = len(v) - len(self._fading)
            v[self._fading] = np.minimum(v[self._fading], v[members:])
            v = v[:members]
        return self._average(own @ self._linear, np.maximum(v, LEAST_VARIANCE))


class AskedArms:
    """Contexts that some arms were asked for in since the head learned.

    pays    forms cost less from now on
    forms   of the arms, once they are made
    """

    def __init__(self) -> None:
        self.contexts, self.pays = 0, False
        self.forms: Forms | None = None


class Counting:
    """Members that count in decisions, and forms of what they say: until the head learns.

    at       (n,) members that count
    shares   (n,) their weights
    """

    def __init__(self, at: Index, shares: Array) -> None:
        self.at, self.shares = at, shares
        self._asked: dict[bytes, AskedArms] = {}
        self._left = MOST_PRODUCTS

    @property
    def members(self) -> Iterator[tuple[int, float]]:
        """Places of members, and their weights."""
        return zip(self.at.tolist(), self.shares.tolist(), strict=True)

    def asked(self, seen: MemberRows, places: Index, shared_width: int) -> AskedArms | None:
        """Count contexts that arms are asked for in; None: their forms would take too long.
        places: (K,) rows of the arms in the head."""
        count, m = seen.own.shape
        products = len(self.at) * len(places) * m * shared_width * (m + shared_width)
        if products > MOST_PRODUCTS:
            return None
        key = places.tobytes() + seen.arms.tobytes()
        found = self._asked.get(key)
        if found is None:
            if len(self._asked) == MOST_SETS:
                self._asked, self._left = {}, MOST_PRODUCTS
            found = self._asked[key] = AskedArms()
        if not found.pays:
            found.contexts += count
            if found.contexts >= max(ASKED_ENOUGH, m) and products <= self._left:
                self._left -= products
                found.pays = True
        return found
