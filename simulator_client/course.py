"""A run as it stands on disk, as arrays: one course of visits per policy."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from simulator_client.errors import UsageError
from simulator_client.health import Health, looks
from simulator_client.journal import Record, Run, load_run, records, world_of
from simulator_client.reporting import in_words
from simulator_client.worlds import Reference

WINDOW_VISITS: Final = 500  # of the moving means, and of the recovery from a shock
RECOVERED: Final = 0.95  # of the oracle after the shock
Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Course:
    """One policy's visits, in order, one entry per visit; NaN where something is not known."""

    clicks: Array
    expected: Array
    best: Array
    uniform: Array
    matched: NDArray[np.bool_]  # whether the visit counts
    group: NDArray[np.int64]  # index into the world's groups
    select_ms: Array
    reward_ms: Array
    begun_s: Array
    retries: int
    lost_selects: int
    health: list[Health]

    @property
    def truth_known(self) -> bool:
        """Whether there is a best to compare with."""
        return bool(np.isfinite(self.best[self.matched]).all() and self.matched.any())

    @property
    def rate(self) -> float | None:
        """Visits a second that were begun; None where the run had no rate to keep."""
        took_s = self.begun_s[-1] - self.begun_s[0]
        return float((len(self.begun_s) - 1) / took_s) if took_s > 0 else None

    @property
    def regret(self) -> Array:
        lost: Array = np.cumsum(self.best - self.expected)
        return lost


@dataclass(frozen=True, slots=True)
class Results:
    """A run as it stands on disk; policies may be at different visits if it was interrupted."""

    run: Run
    groups: tuple[str, ...]
    remark: str  # what the world has to say of how it is played
    references: list[Reference]
    reward_range: tuple[float, float]
    courses: dict[str, Course]

    @property
    def mode(self) -> str:
        """Way in which visits were reported, or whether versions were waited for, in words."""
        if self.run.rate is not None:
            return f"{in_words(self.run)}, {self.run.rate:g} visits/s"
        if not self.run.wait_for_training:
            return "free-running"
        if self.run.training_timeouts:
            return f"waited for training; waits that ran out: {self.run.training_timeouts}"
        return "waited for training"

    @property
    def shock(self) -> Reference | None:
        """The bounds from the shock on; None where there was none within the visits."""
        return self.references[1] if len(self.references) > 1 else None


def load(folder: Path) -> Results:
    """Read a run; UsageError where there is none, or none of its visits is finished."""
    run = load_run(folder)
    world = world_of(run)
    courses = {}
    for policy in run.policies:
        visits = list(records(folder, policy))[: run.visits]
        if visits:
            courses[policy] = _course(visits, world.groups, list(looks(folder, policy)))
    if not courses:
        raise UsageError(f"the run in {folder} has no finished visit yet")
    references = world.references(run.visits)
    return Results(run, world.groups, world.remark, references, world.reward_range, courses)


def _course(visits: list[Record], groups: Sequence[str], health: list[Health]) -> Course:
    index = {group: k for k, group in enumerate(groups)}
    return Course(
        clicks=np.array([v.clicks for v in visits], float),
        expected=np.array([v.expected for v in visits], float),
        best=np.array([v.best for v in visits], float),
        uniform=np.array([v.uniform for v in visits], float),
        matched=np.array([v.matched for v in visits], bool),
        group=np.array([index[v.group] for v in visits]),
        select_ms=np.array([v.select_ms for v in visits], float),
        reward_ms=np.array([v.reward_ms for v in visits if v.reward_ms is not None], float),
        begun_s=np.array([v.begun_s for v in visits], float),
        retries=sum(v.retries for v in visits),
        lost_selects=sum(v.lost_selects for v in visits),
        health=health,
    )


def reference_ctr(results: Results) -> tuple[Array, Array] | None:
    """Return the expected CTR of the oracle and of uniform showing at each visit; None: not
    known."""
    if not results.references:
        return None
    starts = [reference.from_visit for reference in results.references] + [results.run.visits]
    lengths = np.diff(starts)
    oracle = np.repeat([reference.oracle_ctr for reference in results.references], lengths)
    uniform = np.repeat([reference.uniform_ctr for reference in results.references], lengths)
    return oracle, uniform


def moving_mean(values: Array, counts: NDArray[np.bool_] | None = None) -> Array:
    """Mean of the last WINDOW_VISITS values, or of all where there are fewer; one per window.

    counts: which of the values are meant; a window without any has no mean (NaN).
    """
    width = min(WINDOW_VISITS, len(values))
    if counts is None or counts.all():
        return _moving_sum(values, width) / width
    number = _moving_sum(counts.astype(float), width)
    means = np.full_like(number, np.nan)
    np.divide(_moving_sum(np.where(counts, values, 0.0), width), number, means, where=number > 0)
    return means


def _moving_sum(values: Array, width: int) -> Array:
    sums = np.concatenate([[0.0], np.cumsum(values)])
    moved: Array = sums[width:] - sums[:-width]
    return moved


def recovery_visits(expected: Array, oracle_ctr: float) -> int | None:
    """Visits from the shock to the end of the first whole window back at 95 percent of the oracle.

    expected starts at the shock. None: not within it.
    """
    if len(expected) < WINDOW_VISITS:
        return None
    back = np.flatnonzero(moving_mean(expected) >= RECOVERED * oracle_ctr)
    return int(back[0]) + WINDOW_VISITS if len(back) else None
