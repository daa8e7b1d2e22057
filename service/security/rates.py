"""Rates: so much in a window of time that slides, in a memory that is bounded."""

from collections import defaultdict
from collections.abc import Callable
from time import monotonic

from limits import RateLimitItem

MOST, SHARED = 100_000, 4_096
"""Who is counted by himself in a window of one length, and of how many counters those beyond share
one: 8 MB a window, of which the last is kept as well. Addresses and units have no end."""


ROUNDING = 1e-6
"""Of a time in seconds, at most: one of 17 must not become 16.999."""


class _Window:
    """What was counted in the window that runs, and in the one before it."""

    def __init__(self) -> None:
        self.index = 0
        self.now: dict[int, int] = {}
        self.before: dict[int, int] = {}

    def turn_to(self, index: int) -> None:
        if index != self.index:
            self.before = self.now if index == self.index + 1 else {}
            self.now, self.index = {}, index


class Rates:
    """Counts costs by who caused them: of the window before, its share that still overlaps the one
    that slides. In this process: a rate is of one replica, so that no request waits for another
    host."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self.clock = clock
        self._windows: dict[tuple[str, int], _Window] = defaultdict(_Window)

    def hit(self, kind: str, rate: RateLimitItem, who: tuple[str, str], cost: int) -> int:
        """Count a cost, or refuse it and count nothing: then in how many seconds it would pass.
        Of a cost above all of the rate, the length of its window.

        kind: of those who are counted, which are counted apart from others
        """
        seconds = rate.get_expiry()
        if cost > rate.amount:
            return seconds
        index, elapsed = divmod(self.clock(), seconds)
        window = self._windows[kind, seconds]
        window.turn_to(int(index))
        key = hash(who)
        if key not in window.now and len(window.now) >= MOST:
            key %= SHARED
        now, before = window.now.get(key, 0), window.before.get(key, 0)
        overlap = 1 - elapsed / seconds
        free = rate.amount - cost - now
        if int(before * overlap) <= free:
            window.now[key] = now + cost
            return 0
        if free >= 0:  # as soon as less of what was before overlaps
            wait = overlap - (free + 1) / before
        else:  # not in this window: what was counted in it will be what was before
            wait = overlap + 1 - min(1.0, (rate.amount - cost + 1) / now)
        return int(wait * seconds + ROUNDING) + 1  # at that very moment, it is still too much

    @property
    def counters(self) -> int:
        """That are kept."""
        return sum(len(each.now) + len(each.before) for each in self._windows.values())
