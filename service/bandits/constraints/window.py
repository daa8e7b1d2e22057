"""Shares over a window of decisions are paced: a bound follows what was shown so far.

    u_a = clip(k + g (k - s_a), 0, 1)                                  of a cap k
    l_a = max(clip(f + g (1.1 f - s_a), f / 4, 1/2), missing_a / left)  of a floor f

    s_a        share of the decisions of the window so far that showed the arm
    missing_a  showings that it needs yet, f W - n_a, of the W decisions of the window; left: those
               that are left of it. Only a window of a number of decisions has these
    g          GAIN

In a window of W decisions a cap stops an arm before it would pass k W; in one of time, after the
first decisions, before its share would pass k by OVER. The bounds depend on the log before the
decision alone, so that chances within them are exact.
"""

import numpy as np

from service.bandits.constraints.limits import ROUNDING
from service.bandits.linalg import Array, Index

GAIN = 4.0
"""How much a bound moves for a share that is off by as much."""

AHEAD, SLOWEST, FASTEST = 1.1, 0.25, 0.5
"""The share, in floors, that a floor aims at; its least bound, in floors; and its largest one while
there is time. A switch between 0 and 1 put every window over its cap, and a bound that stays where
it is left half of the windows under their floor."""

OVER, BEGUN = 1.02, 50
"""The share, in caps, that a window of time does not pass once it has so many decisions."""


def paced_cap(share: float, shown: Index, decisions: int, length: int | None) -> Array:  # (m,)
    """Return the bounds of arms, or groups, that were shown so often in a window so far. length: of
    the window, in decisions; None: it is one of time."""
    most = np.clip(share + GAIN * (share - shown / max(decisions, 1)), 0.0, 1.0)
    if length is not None:
        most[shown + 1 > share * length + ROUNDING] = 0.0
    elif decisions >= BEGUN:
        most[shown + 1 > OVER * share * (decisions + 1)] = 0.0
    return np.asarray(most)


def paced_floor(share: float, shown: Index, decisions: int, length: int | None) -> Array:  # (m,)
    """Return the bounds of arms, or groups. As for `paced_cap`."""
    behind = AHEAD * share - shown / max(decisions, 1)
    least = np.clip(share + GAIN * behind, SLOWEST * share, max(FASTEST, share))
    if length is not None:
        missing = share * length - shown
        least = np.clip(np.maximum(least, missing / (length - decisions)), 0.0, 1.0)
    return np.asarray(least)


def affordable(paced: Array, shares: Array, room: float) -> Array:  # (m,), (m,) -> (m,)
    """Return paced floors whose sum is at most `room`: what they have above their shares is scaled
    down alike, then the shares themselves."""
    if paced.sum() <= room:
        return paced
    least = np.minimum(paced, shares)
    above = room - least.sum()
    if above >= 0:
        return np.asarray(least + (paced - least) * (above / (paced - least).sum()))
    return np.asarray(least * (room / least.sum()))
