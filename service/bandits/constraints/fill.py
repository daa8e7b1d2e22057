"""Scores become chances within bounds: what the bounds leave goes to the best arms first.

Of each posterior draw an arm gets its least share; then groups get what their floors lack, in
order; then the arms get the rest, in the order of their scores. Each takes what its bounds allow.
Equal scores get equal amounts. The chances are the mean over the draws.
"""

from collections.abc import Sequence
from math import inf

import numpy as np

from service.bandits import rules
from service.bandits.constraints.bounds import Bounds
from service.bandits.constraints.limits import Constrained, Group
from service.bandits.linalg import Array, Index
from service.bandits.rules import TIE

CLOSED = 1e-14
"""Room of an arm or a group, or share to hand out, that rounding has left of 0."""


def fill(rows: Array, bounds: Bounds) -> Constrained:  # (M, n)
    """Return the chances of arms by their scores, one row a posterior draw. Raises
    FloatingPointError where scores are no numbers."""
    if bounds.free:
        return Constrained(rules.win_shares(rows, np.ones(rows.shape[1], np.intp)), ())
    p = _OneDraw(rows[0], bounds).filled() if len(rows) == 1 else _Draws(rows, bounds).filled()
    return Constrained(p, bounds.violated(p))


class _OneDraw:
    """Chances by one row of scores: loops over the few arms that get most of the sum take less time
    than calls of numpy.

    order    arms, the best first
    q        of each arm, so far; left: what is left of 1
    rooms    what each cap of a group leaves; caps_of: the caps of each arm
    """

    def __init__(self, scores: Array, bounds: Bounds) -> None:
        self._order: list[int] = (-scores).argsort(kind="stable").tolist()
        self._scores: list[float] = scores.tolist()
        begin = bounds.begin
        self._high, self._caps_of, self._floors = begin.high, begin.caps_of, begin.floors
        self._q, self._rooms, self._left = begin.low.copy(), begin.rooms.copy(), begin.left

    def filled(self) -> Array:  # (n,)
        if self._scores[self._order[-1]] != self._scores[self._order[-1]]:
            raise FloatingPointError("scores of a decision are no numbers")
        for share, members in self._floors:
            missing = share - sum([self._q[arm] for arm in members])
            if missing > CLOSED:
                self._hand_out(missing, [arm for arm in self._order if arm in members])
        self._hand_out(self._left, self._order)
        for number in reversed(range(len(self._rooms))):
            if self._left <= CLOSED:
                break
            self._rooms[number] = inf
            self._hand_out(self._left, self._order)
        return np.array(self._q)

    def _closed(self, arm: int) -> bool:
        if self._high[arm] - self._q[arm] <= CLOSED:
            return True
        return any(self._rooms[cap] <= CLOSED for cap in self._caps_of[arm])

    def _hand_out(self, amount: float, order: Sequence[int]) -> None:
        """Give an amount, but no more than is left, to arms in an order."""
        amount, place = min(amount, self._left), 0
        while amount > CLOSED:
            while place < len(order) and self._closed(order[place]):
                place += 1
            if place == len(order):
                return
            amount -= self._give(amount, self._tied(order, place))

    def _tied(self, order: Sequence[int], place: int) -> list[int]:
        """Return the arm at a place, and those behind it that equal it and can take more."""
        best = self._scores[order[place]]
        least = best - TIE * abs(best)
        end = place + 1
        while end < len(order) and self._scores[order[end]] >= least:
            end += 1
        return [order[place], *(arm for arm in order[place + 1 : end] if not self._closed(arm))]

    def _give(self, amount: float, arms: Sequence[int]) -> float:
        """Give equal amounts to arms, until one or a group of them is full; return the sum."""
        step = min(amount / len(arms), *[self._high[arm] - self._q[arm] for arm in arms])
        takers = [0] * len(self._rooms)
        for arm in arms:
            for cap in self._caps_of[arm]:
                takers[cap] += 1
        for cap, count in enumerate(takers):
            if count:
                step = min(step, self._rooms[cap] / count)
        for arm in arms:
            self._q[arm] += step
        for cap, count in enumerate(takers):
            self._rooms[cap] -= step * count
        self._left -= step * len(arms)
        return step * len(arms)


class _Draws:
    """Chances by many rows of scores, all at once; draws are columns, so that the best arm of each
    is found along the memory.

    scores   (n, M)
    room     (n, M) what each arm can take yet
    left     (M,) what is left of 1
    """

    def __init__(self, rows: Array, bounds: Bounds) -> None:
        self._bounds = bounds
        self._scores = np.ascontiguousarray(rows.T)
        self._room = np.repeat((bounds.high - bounds.low)[:, None], len(rows), axis=1)
        self._left = np.full(len(rows), 1 - bounds.low.sum())

    def filled(self) -> Array:  # (n,)
        caps = self._bounds.caps
        for floor in self._bounds.floors:
            missing = floor.share - self._sum(floor)
            outside = np.flatnonzero(floor.member == 0)
            self._hand_out(missing, caps, outside)
        for kept in range(len(caps), -1, -1):
            self._hand_out(self._left, caps[:kept])
            if self._left.max() <= CLOSED:
                break
        else:
            raise FloatingPointError("scores of a decision are no numbers")
        given = self._bounds.high - self._room.mean(axis=1)
        return np.asarray(np.maximum(given, self._bounds.low))

    def _hand_out(
        self, amount: Array, caps: Sequence[Group], excluded: Index | None = None
    ) -> None:
        """Give an amount of each draw, but no more than is left, to arms by their scores; all that
        tie for the best get the same, until one or a group of them is full."""
        amount, scores = np.minimum(amount, self._left), self._scores.copy()
        if excluded is not None:
            scores[excluded] = -inf
        rooms = [cap.share - self._sum(cap) for cap in caps]
        while True:
            scores[self._room <= CLOSED] = -inf
            for cap, room in zip(caps, rooms, strict=True):
                full = np.flatnonzero(room <= CLOSED)
                if len(full):
                    scores[np.ix_(cap.arms, full)] = -inf
            best = scores.max(axis=0)
            going = (amount > CLOSED) & (best > -inf)
            if not going.any():
                return
            tied = ((scores >= best - TIE * np.abs(best)) & going).astype(np.float64)
            count = np.maximum(tied.sum(axis=0), 1.0)
            step = np.where(tied, self._room, inf).min(axis=0)
            step = np.where(going, np.minimum(step, amount / count), 0.0)
            takers = [cap.member @ tied for cap in caps]
            for room, of_cap in zip(rooms, takers, strict=True):
                step = np.where(of_cap, np.minimum(step, room / np.maximum(of_cap, 1.0)), step)
            for room, of_cap in zip(rooms, takers, strict=True):
                room -= step * of_cap
            self._room -= tied * step
            amount = amount - step * count
            self._left -= step * count

    def _sum(self, group: Group) -> Array:  # (M,)
        """Return what the arms of a group have."""
        return np.asarray(group.member.dot(self._bounds.high) - group.member @ self._room)
