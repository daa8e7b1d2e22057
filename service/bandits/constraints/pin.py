"""Pins come first: they yield only to earlier pins, and where nothing else can take the rest."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from service.bandits.constraints.limits import ROUNDING, Pin
from service.bandits.linalg import Array


class Pinned(NamedTuple):
    """Arms with a pin.

    arms      (n,) whether an arm is pinned
    shares    (n,) of the pinned arms, else 0
    relaxed   rules that yielded
    """

    arms: npt.NDArray[np.bool_]
    shares: Array
    relaxed: set[int]


def pinned(n: int, pins: Sequence[Pin]) -> Pinned:
    """Give pinned arms their shares: the first pin of an arm counts, and a pin gets no more than
    earlier ones leave. Pins of all arms rise in proportion to the sum 1."""
    arms, shares = np.zeros(n, np.bool_), np.zeros(n)
    asked, left = dict[int, Pin](), 1.0
    relaxed = set[int]()
    for pin in pins:
        first = asked.setdefault(pin.arm, pin)
        if first is not pin:
            if pin.share != first.share:
                relaxed.add(pin.rule)
            continue
        arms[pin.arm] = True
        shares[pin.arm] = min(pin.share, left)
        left = max(left - pin.share, 0.0)
        if pin.share > shares[pin.arm] + ROUNDING:
            relaxed.add(pin.rule)
    if len(asked) == n and left > ROUNDING:
        shares = shares / shares.sum() if shares.any() else np.full(n, 1.0 / n)
        relaxed |= {pin.rule for pin in asked.values() if shares[pin.arm] > pin.share + ROUNDING}
    return Pinned(arms, shares, relaxed)
