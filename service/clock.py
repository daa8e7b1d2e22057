"""The clocks of a process. What needs the time is given a `Clock`; asyncio has the event loop's."""

import time
from datetime import UTC, datetime
from typing import Final

_BOOT: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock:
    """The clocks of the operating system. A subclass gives a service another time."""

    def time(self) -> float:
        """Unix seconds, by a clock that people and hosts may set."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds since some moment, by a clock that nobody sets. On Linux it goes on while the
        host is suspended."""
        return time.clock_gettime(_BOOT)

    def cpu(self) -> float:
        """Seconds of processor time that the calling thread has used."""
        return time.thread_time()


SYSTEM: Final = Clock()


def iso(at: float) -> str:
    """Unix seconds as ISO 8601, in UTC."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")
