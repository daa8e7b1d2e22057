"""Rates over a sliding window of time, counted in bounded memory."""

import re
from collections import defaultdict
from typing import NamedTuple, Self

from service.clock import SYSTEM, Clock

RATE_UNITS = {"second": 1, "minute": 60, "hour": 3_600, "day": 86_400}
"""Seconds in each unit of time of a rate."""

RATE = re.compile(
    rf"(\d{{1,9}})\s*(?:/|per\s)\s*(?:(\d{{1,9}})\s*)?({'|'.join(RATE_UNITS)})s?",
    re.ASCII | re.IGNORECASE,
)

MOST_CALLERS, SHARED_COUNTERS = 100_000, 4_096
"""Most callers with a counter of their own in windows of one length, and the counters that all
further ones share: 8 MB a window and as much for the previous one. Addresses and units have no
end."""

WAIT_ROUNDING_S = 1e-6
"""Most seconds by which a wait is off: 17 must not become 16.999."""


class Rate(NamedTuple):
    """A cost that a window of so many seconds lets through."""

    amount: int
    seconds: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read "100/second", "5000 per hour" or "10 per 2 days". Raises ValueError."""
        found = RATE.fullmatch(text.strip())
        if found is None:
            raise ValueError(
                f'{text!r} is no rate, such as "100/second" or "5000 per 2 hours" '
                f"(units: {', '.join(RATE_UNITS)})"
            )
        amount, count, unit = found.groups()
        rate = cls(int(amount), int(count or 1) * RATE_UNITS[unit.lower()])
        if not all(rate):
            raise ValueError("a rate lets one request through at least")
        return rate

    def __str__(self) -> str:
        unit = next(unit for unit in reversed(RATE_UNITS) if self.seconds % RATE_UNITS[unit] == 0)
        count = self.seconds // RATE_UNITS[unit]
        return f"{self.amount}/{unit}" if count == 1 else f"{self.amount} per {count} {unit}s"


class _Window:
    """The counts of the current window and of the previous one."""

    def __init__(self) -> None:
        self.index = 0
        self.counts: dict[int, int] = {}
        self.previous: dict[int, int] = {}

    def turn_to(self, index: int) -> None:
        if index != self.index:
            self.previous = self.counts if index == self.index + 1 else {}
            self.counts, self.index = {}, index


class Rates:
    """Counts costs by caller; the previous window counts by the share of it that the sliding one
    still overlaps. Each replica has its own rates, so that no request waits for another host.

    workers   of the replica: each lets its part of a rate through, rounded up, or one larger cost
    """

    def __init__(self, clock: Clock = SYSTEM, workers: int = 1) -> None:
        self.clock = clock
        self._workers = workers
        self._windows: dict[tuple[str, int], _Window] = defaultdict(_Window)

    def hit(self, kind: str, rate: Rate, who: tuple[str, str], cost: int) -> int:
        """Count a cost and return 0, or count nothing and return the seconds until it would pass:
        for a cost above the whole rate, the length of the window.

        kind: of the caller; each kind has its own counters
        """
        seconds = rate.seconds
        if cost > rate.amount:
            return seconds
        amount = max(-(-rate.amount // self._workers), cost)
        index, elapsed = divmod(self.clock.monotonic(), seconds)
        window = self._windows[kind, seconds]
        window.turn_to(int(index))
        key = hash(who)
        if key not in window.counts and len(window.counts) >= MOST_CALLERS:
            key %= SHARED_COUNTERS
        now, before = window.counts.get(key, 0), window.previous.get(key, 0)
        overlap = 1 - elapsed / seconds
        free = amount - cost - now
        if int(before * overlap) <= free:
            window.counts[key] = now + cost
            return 0
        if free >= 0:  # as soon as less of what was before overlaps
            wait = overlap - (free + 1) / before
        else:  # not in this window: what was counted in it will be what was before
            wait = overlap + 1 - min(1.0, (amount - cost + 1) / now)
        return (
            int(wait * seconds + WAIT_ROUNDING_S) + 1
        )  # at that very moment, it is still too much

    @property
    def counters(self) -> int:
        return sum(len(each.counts) + len(each.previous) for each in self._windows.values())
