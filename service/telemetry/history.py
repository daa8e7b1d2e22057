"""The past of each policy: samples of existing sums, in bounded memory.

No request waits for it: every few seconds it copies the sums of the fold and the running means of
the telemetry.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from service.clock import SYSTEM, Clock
from service.state.fold import State
from service.telemetry.metrics import DecisionStatistics, Statistics, Telemetry

Array = npt.NDArray[np.float64]

SAMPLE_COLUMNS = ("at", "count", "total", "squares", "decisions", "propensity", "entropy", "share")
"""Columns of a sample. at: unix seconds; count, total, squares: of the settled rewards since the
policy was defined; decisions: of this service since its start; propensity, entropy: running means,
NaN before the first decision; share: of the traffic that names no policy."""

STEPS = {5: 720, 300: 2_016}
"""Seconds between two samples, and how many are kept: an hour, and a week."""

MOST_POLICIES = 100
"""Most policies of all experiments together that have a history: 70 MB."""


@dataclass(slots=True)
class _Series:
    """The samples of one policy, by step. begins: the log position from which its sums count."""

    begins: int
    samples: dict[int, deque[tuple[float, ...]]] = field(
        default_factory=lambda: {step: deque(maxlen=kept) for step, kept in STEPS.items()}
    )
    last: dict[int, float] = field(default_factory=dict)


class History:
    def __init__(
        self,
        states: Callable[[], Mapping[str, State]],
        telemetry: Telemetry,
        clock: Clock = SYSTEM,
    ) -> None:
        self._states, self._telemetry = states, telemetry
        self._series: dict[tuple[str, str], _Series] = {}
        self._clock, self.started = clock, clock.time()

    async def run(self) -> None:
        while True:
            self.sample(self._clock.time(), await self._telemetry.statistics())
            await asyncio.sleep(min(STEPS) - self._clock.time() % min(STEPS))

    def sample(self, at: float, decided: Statistics) -> None:
        """Write down the present, in each series whose step has passed."""
        states = self._states()
        for key in [*self._series]:
            name, policy = key
            state = states.get(name)
            tally = state.reward_sums.get(policy) if state else None
            if tally is None or tally.begins != self._series[key].begins:
                del self._series[key]  # it is gone, or another of the same name
        for name, state in states.items():
            for policy in state.learners:
                self._write(at, (name, policy), state, decided.get((name, policy)))

    def _write(
        self, at: float, key: tuple[str, str], state: State, watch: DecisionStatistics | None
    ) -> None:
        tally, share = state.reward_sums[key[1]], state.traffic.chance(key[1])
        series = self._series.get(key)
        if series is None:
            if len(self._series) >= MOST_POLICIES:
                return
            series = self._series[key] = _Series(tally.begins)
        seen = (watch.count, watch.propensity, watch.entropy) if watch else (0, np.nan, np.nan)
        row = (at, tally.count, tally.total, tally.squares, *seen, share)
        for step, samples in series.samples.items():
            if at // step > series.last.get(step, -1.0):
                samples.append(row)
                series.last[step] = at // step

    def samples(self, experiment: str, policy: str, step: int, after: float) -> Array:
        """Return rows of COLUMNS later than `after`, oldest first; none of a policy without
        history."""
        series = self._series.get((experiment, policy))
        found = [] if series is None else [row for row in series.samples[step] if row[0] > after]
        return np.array(found).reshape(-1, len(SAMPLE_COLUMNS))
