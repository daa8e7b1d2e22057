"""Chances in closed form become the nearest ones within bounds."""

import numpy as np

from service.bandits.constraints.bounds import Bounds
from service.bandits.constraints.limits import ROUNDING, Constrained
from service.bandits.constraints.scale import raised
from service.bandits.linalg import Array


def clip(p: Array, bounds: Bounds) -> Constrained:  # (n,)
    """Return q within the bounds of the least Kullback-Leibler divergence from p.

    First the floors of groups, in order: their arms rise together. Then all arms do, to the sum 1,
    but those of a group at its cap. This is the projection where groups share no arm or lie within
    one another.
    """
    if bounds.free:
        return Constrained(p, ())
    q = bounds.low
    for floor in bounds.floors:
        held = float(floor.member.dot(q))
        missing = min(floor.share - held, 1 - float(q.sum()))
        if missing > ROUNDING:
            high = np.where(floor.member > 0, bounds.high, q)
            q = raised(p, q, high, float(q.sum()) + missing, bounds.caps)
    for kept in range(len(bounds.caps), -1, -1):
        q = raised(p, q, bounds.high, 1.0, bounds.caps[:kept])
        if q.sum() > 1 - ROUNDING:
            break
    return Constrained(q, bounds.violated(q))
