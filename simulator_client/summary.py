"""The figures of a run: the machine-readable summary, the table."""

import json
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from simulator_client.course import Array, Course, Results, recovery_visits, reference_ctr

LAST_VISITS: Final = 5000
Figures = dict[str, Any]  # name -> number, or None where it is not known


def summary(results: Results) -> dict[str, Any]:
    """Return the machine-readable summary; null where something is not known."""
    run = results.run
    bounds = reference_ctr(results)
    return {
        "world": run.world,
        "data": run.data,
        "seed": run.seed,
        "world_seed": run.world_seed,
        "visits": run.visits,
        "shock_at": run.shock_at,
        "run": run.run,
        "experiment": run.experiment,
        "waited_for_training": run.wait_for_training and not run.training_timeouts,
        "training_timeouts": run.training_timeouts,
        "reporting": run.reporting,
        "wait_seconds": run.wait_seconds,
        "rate_asked": run.rate,
        "remark": results.remark,
        "oracle_ctr": float(bounds[0].mean()) if bounds else None,
        "uniform_ctr": float(bounds[1].mean()) if bounds else None,
        "policies": {
            policy: figures(course, results) for policy, course in results.courses.items()
        },
    }


def summary_text(results: Results) -> str:
    return json.dumps(summary(results), indent=2) + "\n"


def figures(course: Course, results: Results) -> Figures:
    """Return the figures of one policy's course.

    ctr                 clicks a visit; visits that a replayed log rejected do not count
    expected_*          the same with the true click chance of what was shown: without the luck
    expected_regret     clicks lost against the best arm of each visit, over all visits
    relative_regret     the same in percent of what uniform choice would lose on the same visits
    share_of_optimal    expected clicks in share of the best arms'; for rewards that are never
                        negative
    best_arm_share      share of the visits that were shown the best arm
    recovery_visits     visits from the shock to the end of the first window of 500, wholly after
                        it, whose mean expected CTR is at least 95 percent of the new oracle's
    rate_reached        visits a second that were begun, in a run at a rate
    """
    counts = course.matched
    expected, best = course.expected[counts], course.best[counts]
    regret = _number((best - expected).sum())
    most = _number(best.sum()) if len(best) else None
    before = after = recovered = None
    if shock := results.shock:
        shocked = course.expected[shock.from_visit :]
        before, after = _mean(course.expected[: shock.from_visit]), _mean(shocked)
        recovered = recovery_visits(shocked, shock.oracle_ctr)
    return {
        "visits": len(course.clicks),
        "matched_visits": int(counts.sum()),
        "ctr": _mean(course.clicks[counts]),
        "expected_ctr": _mean(expected),
        "expected_ctr_last_5000": _mean(course.expected[-LAST_VISITS:][counts[-LAST_VISITS:]]),
        "expected_ctr_before_shock": before,
        "expected_ctr_after_shock": after,
        "expected_regret": None if most is None else regret,
        "relative_regret": _ratio(regret, _number((best - course.uniform[counts]).sum()), 100.0),
        "share_of_optimal": (
            None if results.reward_range[0] < 0 else _ratio(_number(expected.sum()), most)
        ),
        "best_arm_share": None if most is None else _mean(expected == best),
        "recovery_visits": recovered,
        "rate_reached": course.rate,
        **_quantiles("select", course.select_ms),
        **_quantiles("reward", course.reward_ms),
        "retries": course.retries,
        "lost_selects": course.lost_selects,
    }


def _number(value: Any) -> float | None:
    return float(value) if np.isfinite(value) else None


def _mean(values: NDArray[Any]) -> float | None:
    return float(values.mean()) if len(values) else None


def _ratio(value: float | None, of: float | None, times: float = 1.0) -> float | None:
    return times * value / of if value is not None and of else None


def _quantiles(call: str, sample: Array) -> Figures:
    p50, p99 = np.percentile(sample, (50, 99)).tolist() if len(sample) else (None, None)
    return {f"{call}_p50_ms": p50, f"{call}_p99_ms": p99}


# heading -> the figures in the column and how each is written
COLUMNS: Final[dict[str, dict[str, str]]] = {
    "visits": {"visits": "{:,}"},
    "matched": {"matched_visits": "{:,}"},
    "CTR": {"ctr": "{:.4f}"},
    "expected CTR": {"expected_ctr": "{:.4f}"},
    "last 5,000": {"expected_ctr_last_5000": "{:.4f}"},
    "regret": {"expected_regret": "{:,.0f}"},
    "% of uniform's": {"relative_regret": "{:.1f}"},
    "of optimal": {"share_of_optimal": "{:.1%}"},
    "best arm": {"best_arm_share": "{:.1%}"},
    "recovery": {"recovery_visits": "{:,}"},
    "visits/s": {"rate_reached": "{:,.1f}"},
    "select p50 / p99 (ms)": {"select_p50_ms": "{:.1f}", "select_p99_ms": "{:.1f}"},
    "reward p50 / p99 (ms)": {"reward_p50_ms": "{:.1f}", "reward_p99_ms": "{:.1f}"},
    "retries": {"retries": "{:,}"},
}


def rows(summed: dict[str, Any]) -> list[list[str]]:
    """Return the table's cells: a heading, the policies by expected CTR, then what bounds them."""
    told: dict[str, Figures] = summed["policies"]
    columns = dict(COLUMNS)
    if all(figures["matched_visits"] == figures["visits"] for figures in told.values()):
        del columns["matched"]
    if summed["shock_at"] is None:
        del columns["recovery"]
    if summed["rate_asked"] is None:
        del columns["visits/s"]
    bounds = [
        [name, *(_cell(forms, {"expected_ctr": bound}, "") for forms in columns.values())]
        for name, bound in (
            ("(oracle)", summed["oracle_ctr"]),
            ("(uniform)", summed["uniform_ctr"]),
        )
        if bound is not None
    ]
    ranked = sorted(told, key=lambda policy: -(told[policy]["expected_ctr"] or 0.0))
    return [
        ["policy", *columns],
        *([policy, *(_cell(form, told[policy]) for form in columns.values())] for policy in ranked),
        *bounds,
    ]


def _cell(forms: dict[str, str], figures: Figures, unknown: str = "-") -> str:
    cells = [
        unknown if figures.get(name) is None else form.format(figures[name])
        for name, form in forms.items()
    ]
    return " / ".join(cells) if any(cells) else ""


def table(cells: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[k]) for row in cells) for k in range(len(cells[0]))]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip()
        for row in cells
    ]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])
