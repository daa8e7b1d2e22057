"""What a showdown came to: of each figure the mean over the seeds, its interval, its worst."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from scipy.special import stdtrit

from simulator_client.course import Array, Results, reference_ctr
from simulator_client.summary import Figures, figures

CONFIDENCE: Final = 0.95
# Of these more is better; of all other figures less is.
MORE_IS_BETTER: Final = frozenset(
    {
        "visits",
        "matched_visits",
        "ctr",
        "expected_ctr",
        "expected_ctr_last_5000",
        "expected_ctr_before_shock",
        "expected_ctr_after_shock",
        "share_of_optimal",
        "best_arm_share",
    }
)


def comparison(runs: Mapping[int, Results]) -> dict[str, Any]:
    """Return the machine-readable result; null where something is not known.

    A figure that is not known in one seed (a shock that a policy never recovered from) has no mean
    and no worst: it stands in `seeds`.
    """
    first = next(iter(runs.values()))
    run = first.run
    bounds = reference_ctr(first)
    return {
        "world": run.world,
        "data": run.data,
        "world_seed": run.world_seed,
        "visits": run.visits,
        "shock_at": run.shock_at,
        "remark": first.remark,
        "waited_for_training": all(
            r.run.wait_for_training and not r.run.training_timeouts for r in runs.values()
        ),
        "seeds": list(runs),
        "oracle_ctr": float(bounds[0].mean()) if bounds else None,
        "uniform_ctr": float(bounds[1].mean()) if bounds else None,
        "policies": {
            policy: _over_seeds(
                {seed: figures(results.courses[policy], results) for seed, results in runs.items()}
            )
            for policy in run.policies
        },
    }


def _over_seeds(seeds: Mapping[int, Figures]) -> dict[str, Any]:
    means: Figures = {}
    intervals: dict[str, list[float] | None] = {}
    worsts: Figures = {}
    for name in next(iter(seeds.values())):
        values = [of_seed[name] for of_seed in seeds.values()]
        mean = interval = worst = None
        if None not in values:
            mean = float(np.mean(values))
            worst = min(values) if name in MORE_IS_BETTER else max(values)
            half = float(half_width(np.array(values, float)[:, None])[0])
            interval = [mean - half, mean + half] if np.isfinite(half) else None
        means[name], intervals[name], worsts[name] = mean, interval, worst
    by_seed = {str(seed): of_seed for seed, of_seed in seeds.items()}
    return {"mean": means, "interval": intervals, "worst": worsts, "seeds": by_seed}


def half_width(values: Array) -> Array:  # (seeds, n) -> (n,)
    """Half the 95 percent interval of each mean, by Student's t; NaN for a single seed."""
    seeds = len(values)
    if seeds < 2:
        return np.full(values.shape[1], np.nan)
    quantile = float(stdtrit(seeds - 1, (1.0 + CONFIDENCE) / 2.0))
    half: Array = quantile * values.std(axis=0, ddof=1) / np.sqrt(seeds)
    return half


# figure -> heading, how it is written, and in which unit
COLUMNS: Final[dict[str, tuple[str, str, float]]] = {
    "matched_visits": ("matched", "{:,.0f}", 1.0),
    "ctr": ("CTR", "{:.4f}", 1.0),
    "expected_ctr": ("expected CTR", "{:.4f}", 1.0),
    "expected_ctr_before_shock": ("before the shock", "{:.4f}", 1.0),
    "expected_ctr_after_shock": ("after it", "{:.4f}", 1.0),
    "expected_regret": ("regret", "{:,.0f}", 1.0),
    "relative_regret": ("% of uniform's", "{:.1f}", 1.0),
    "share_of_optimal": ("% of optimal", "{:.1f}", 100.0),
    "recovery_visits": ("recovery (visits)", "{:,.0f}", 1.0),
}


# Of these two the one that is left out where the truth is known (False), and where it is not.
UNKNOWN_TRUTH: Final = {False: "ctr", True: "expected_ctr"}


def rows(compared: Mapping[str, Any]) -> list[list[str]]:
    """Return the table's cells: a heading, the policies by expected CTR. A worst value names its
    seed."""
    policies: dict[str, dict[str, Any]] = compared["policies"]
    shown = [name for name in COLUMNS if _has_values(name, compared)]
    heading = ["policy"]
    for name in shown:
        heading += [COLUMNS[name][0], "worst (seed)"]
    ranked = sorted(policies, key=lambda p: -(policies[p]["mean"]["expected_ctr"] or 0.0))
    body = [
        [policy, *(cell for name in shown for cell in _cells(name, policies[policy]))]
        for policy in ranked
    ]
    bounds = [
        [f"({name})", *(_bound(column, value) for n in shown for column in (n, ""))]
        for name, value in (
            ("oracle", compared["oracle_ctr"]),
            ("uniform", compared["uniform_ctr"]),
        )
        if value is not None
    ]
    return [heading, *body, *bounds]


def _has_values(name: str, compared: Mapping[str, Any]) -> bool:
    of_seeds = [f for figures in compared["policies"].values() for f in figures["seeds"].values()]
    if name == "matched_visits":
        return any(of_seed["matched_visits"] < of_seed["visits"] for of_seed in of_seeds)
    if name == "recovery_visits":  # that none ever recovered is worth a column
        name = "expected_ctr_after_shock"
    if name == UNKNOWN_TRUTH[compared["oracle_ctr"] is None]:
        return False
    return any(of_seed[name] is not None for of_seed in of_seeds)


def _cells(name: str, figures: Mapping[str, Any]) -> Sequence[str]:
    """Mean with interval, and the worst seed; of a figure not known in a seed, in how many."""
    _, form, unit = COLUMNS[name]
    seeds: dict[str, Figures] = figures["seeds"]
    missing = [seed for seed, of_seed in seeds.items() if of_seed[name] is None]
    if missing:
        word = "never" if name == "recovery_visits" else "unknown"
        return f"{word} in {len(missing)} of {len(seeds)}", f"{word} ({missing[0]})"
    mean = form.format(figures["mean"][name] * unit)
    if interval := figures["interval"][name]:
        mean += f" ±{form.format((interval[1] - interval[0]) / 2 * unit)}"
    worst = figures["worst"][name]
    seed = next(seed for seed, of_seed in seeds.items() if of_seed[name] == worst)
    return mean, f"{form.format(worst * unit)} ({seed})"


def _bound(column: str, value: float) -> str:
    return COLUMNS[column][1].format(value) if column == "expected_ctr" else ""
