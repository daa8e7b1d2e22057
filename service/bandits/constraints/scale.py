"""The chances nearest to given ones within bounds: all are scaled alike, and clipped.

q_a = clip(c p_a, low_a, high_a) minimises the Kullback-Leibler divergence of q from p on the box,
with c such that q has the wanted sum.
"""

from collections.abc import Sequence
from math import inf

import numpy as np

from service.bandits.constraints.limits import ROUNDING, Group
from service.bandits.linalg import Array
from service.bandits.rules import TINY

EXACT = 1e-14
"""Distance from the wanted sum at which the search for c ends."""


def scaled(
    p: Array, low: Array, high: Array, total: float, c: float = 1.0
) -> tuple[Array, float]:  # (n,), (n,), (n,) -> (n,)
    """Return q = clip(c p, low, high) with the sum `total`, or the nearest sum within the bounds,
    and c. Arms without a chance rise above low only when all others are at high, and evenly.

    c: a first guess. Each step goes where the sum would be right if no further arm met a bound. A
    step that would leave what is known of c goes to the middle one of the c at which arms do.
    """
    least, most = -1.0, inf
    while True:
        wanted = c * p
        q = np.minimum(np.maximum(wanted, low), high)
        missing = total - float(q.sum())
        if abs(missing) <= EXACT:
            return q, c
        if missing > 0:
            least, moves = c, (wanted >= low) & (wanted < high)
        else:
            most, moves = c, (wanted > low) & (wanted <= high)
        slope = float(p.dot(moves))
        # Not c + missing / slope: chances of 1e-200 would leave no digit of the difference.
        c = (total - float(q.dot(~moves))) / slope if slope > TINY else inf
        if not least < c < most:
            met = _scales_at_bounds(p, low, high)
            met = met[(met > least) & (met < most)]
            middle = len(met) // 2
            c = float(np.partition(met, middle)[middle]) if len(met) else (least + most) / 2
            if not least < c < most:
                break
    without = p <= TINY
    if missing > ROUNDING and (without & (q < high)).any():
        return scaled(without.astype(np.float64), q, high, total)[0], inf
    return q, least if missing > 0 else most


def _scales_at_bounds(p: Array, low: Array, high: Array) -> Array:  # (n,) thrice -> (2 k,)
    """Return the c at which arms with a chance leave low or reach high."""
    some = p > TINY
    return np.concatenate([low[some] / p[some], high[some] / p[some]])


def raised(
    p: Array, low: Array, high: Array, total: float, caps: Sequence[Group]
) -> Array:  # (n,), (n,), (n,) -> (n,)
    """Return q = clip(c p, low, high) with the sum `total`, where c grows until then and the arms
    of a group stay where they are once their sum is at its cap. The sum is lower where no arm can
    take more."""
    q, c = scaled(p, low, high, total)
    while True:
        full = [group for group in caps if group.member.dot(q) > group.share + ROUNDING]
        if not full:
            return q
        first, stopped, at = full[0], q, inf
        for group in full:
            arms = group.arms
            kept, scale = scaled(p[arms], low[arms], high[arms], group.share, _guess(c))
            if scale <= at:
                first, stopped, at = group, kept, scale
        caps = [group for group in caps if group is not first]
        low, high = low.copy(), high.copy()
        low[first.arms] = high[first.arms] = stopped
        q, c = scaled(p, low, high, total, _guess(c))


def _guess(c: float) -> float:
    return c if c < inf else 1.0
