"""Log time: the time by which decisions fall due, rewards are accepted and marks are forgotten.

The log time of an experiment is the largest `at` of its events (`State.log_time`). It is durable
and never runs back, so no wall clock decides whether a reward counts once:

- a mark is forgotten only once log time has passed its `keep_until`;
- a token is accepted only before its `accept_until`, by a clock that is never behind log time.

So a token whose mark may be forgotten has expired at every process that has folded the log,
whatever the wall clocks did in between.
"""

from math import inf

from service.clock import SYSTEM, Clock
from service.state.fold import State

SLEW = 0.05
"""Share by which the line of `LogClock` may go faster or slower than the monotonic clock: it takes
twenty minutes to follow a wall clock that jumps by one."""

WALL_CLOCK_SECONDS = 0.01
"""Seconds between two looks at the wall clock: `now` is asked for by every select and reward."""


class LogClock:
    """Unix seconds for all that goes into the logs of one process.

    All are seconds ahead of the monotonic clock:
    line    follows the wall clock so slowly that a jump counts for nothing
    log     the largest log time met
    ahead   the present time
    """

    def __init__(self, clock: Clock = SYSTEM) -> None:
        self._clock = clock
        self._looked = clock.monotonic()
        self._line = self._ahead = clock.time() - self._looked
        self._log = -inf

    def now(self, state: State) -> float:
        """Never before the experiment's log time. A wall clock that jumps ahead counts for nothing,
        one that runs behind only down to the log time."""
        read = self._clock.monotonic()
        if read - self._looked >= WALL_CLOCK_SECONDS:
            self._follow(read)
        now = self._ahead + read
        if now >= state.log_time:
            return now
        self._log = self._ahead = state.log_time - read
        return state.log_time

    def _follow(self, read: float) -> None:
        slack = SLEW * (read - self._looked)
        self._looked, wall = read, self._clock.time() - read
        self._line = min(max(wall, self._line - slack), self._line + slack)
        self._log -= slack
        self._ahead = max(min(wall, self._line), self._log)
