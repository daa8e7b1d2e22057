"""What a run came to: arrays per policy, the summary of `--json`, the table."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from simulator_client.errors import UsageError
from simulator_client.journal import Run, load_run, records
from simulator_client.worlds import Reference, make_world

LAST_VISITS: Final = 5000
Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Course:
    """One policy's visits, in order, one entry per visit."""

    clicks: Array
    expected: Array
    best: Array
    group: NDArray[np.int64]  # index into the world's groups
    select_ms: Array
    reward_ms: Array
    retries: int
    lost_selects: int


@dataclass(frozen=True, slots=True)
class Results:
    """A run as it stands on disk; policies may be at different visits if it was interrupted."""

    run: Run
    groups: tuple[str, ...]
    references: list[Reference]
    courses: dict[str, Course]

    @property
    def mode(self) -> str:
        """Whether versions were waited for, in words."""
        if not self.run.wait_for_training:
            return "free-running"
        if self.run.training_timeouts:
            return f"waited for training; waits that ran out: {self.run.training_timeouts}"
        return "waited for training"


def load(folder: Path) -> Results:
    """Read a run; UsageError where there is none, or none of its visits is finished."""
    run = load_run(folder)
    world = make_world(run.world, run.world_seed, run.shock_at)
    courses = {}
    for policy in run.policies:
        visits = list(records(folder, policy))[: run.visits]
        if visits:
            courses[policy] = Course(
                clicks=np.array([v.clicks for v in visits], float),
                expected=np.array([v.expected for v in visits], float),
                best=np.array([v.best for v in visits], float),
                group=np.array([world.groups.index(v.group) for v in visits]),
                select_ms=np.array([v.select_ms for v in visits], float),
                reward_ms=np.array([v.reward_ms for v in visits], float),
                retries=sum(v.retries for v in visits),
                lost_selects=sum(v.lost_selects for v in visits),
            )
    if not courses:
        raise UsageError(f"the run in {folder} has no finished visit yet")
    return Results(run, world.groups, world.references(run.visits), courses)


def reference_ctr(results: Results) -> tuple[Array, Array]:
    """Expected CTR of the oracle and of uniform showing at each visit."""
    starts = [reference.from_visit for reference in results.references] + [results.run.visits]
    lengths = np.diff(starts)
    oracle = np.repeat([reference.oracle_ctr for reference in results.references], lengths)
    uniform = np.repeat([reference.uniform_ctr for reference in results.references], lengths)
    return oracle, uniform


def summary(results: Results) -> dict[str, Any]:
    """The machine-readable summary.

    `ctr` counts clicks; `expected_*` take the true click chance of what was shown, which is the
    same figure without the luck of the clicks. `expected_regret` is in clicks, over all visits.
    """
    run = results.run
    oracle, uniform = reference_ctr(results)
    return {
        "world": run.world,
        "seed": run.seed,
        "world_seed": run.world_seed,
        "visits": run.visits,
        "shock_at": run.shock_at,
        "run": run.run,
        "experiment": run.experiment,
        "waited_for_training": run.wait_for_training and not run.training_timeouts,
        "training_timeouts": run.training_timeouts,
        "oracle_ctr": float(oracle.mean()),
        "uniform_ctr": float(uniform.mean()),
        "policies": {policy: _figures(course) for policy, course in results.courses.items()},
    }


def _figures(course: Course) -> dict[str, Any]:
    select_p50, select_p99 = np.percentile(course.select_ms, (50, 99))
    reward_p50, reward_p99 = np.percentile(course.reward_ms, (50, 99))
    return {
        "visits": len(course.clicks),
        "ctr": float(course.clicks.mean()),
        "expected_ctr": float(course.expected.mean()),
        "expected_ctr_last_5000": float(course.expected[-LAST_VISITS:].mean()),
        "expected_regret": float((course.best - course.expected).sum()),
        "share_of_optimal": float((course.expected == course.best).mean()),
        "select_p50_ms": float(select_p50),
        "select_p99_ms": float(select_p99),
        "reward_p50_ms": float(reward_p50),
        "reward_p99_ms": float(reward_p99),
        "retries": course.retries,
        "lost_selects": course.lost_selects,
    }


# heading -> how a policy's figures fill the column
COLUMNS: Final = {
    "visits": "{visits:,}",
    "CTR": "{ctr:.4f}",
    "expected CTR": "{expected_ctr:.4f}",
    "last 5,000": "{expected_ctr_last_5000:.4f}",
    "regret (clicks)": "{expected_regret:,.0f}",
    "best arm": "{share_of_optimal:.1%}",
    "select p50 / p99 (ms)": "{select_p50_ms:.1f} / {select_p99_ms:.1f}",
    "reward p50 / p99 (ms)": "{reward_p50_ms:.1f} / {reward_p99_ms:.1f}",
    "retries": "{retries:,}",
}


def rows(summed: dict[str, Any]) -> list[list[str]]:
    """The table's cells: a heading, the policies by expected CTR, then what bounds them."""
    ranked = sorted(summed["policies"].items(), key=lambda item: -item[1]["expected_ctr"])
    blank = [""] * (len(COLUMNS) - 3)
    return [
        ["policy", *COLUMNS],
        *([policy, *(form.format(**f) for form in COLUMNS.values())] for policy, f in ranked),
        ["(oracle)", "", "", f"{summed['oracle_ctr']:.4f}", *blank],
        ["(uniform)", "", "", f"{summed['uniform_ctr']:.4f}", *blank],
    ]


def table(cells: Sequence[Sequence[str]]) -> str:
    """Cells as text: the first column to the left, figures to the right."""
    widths = [max(len(row[k]) for row in cells) for k in range(len(cells[0]))]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip()
        for row in cells
    ]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])
