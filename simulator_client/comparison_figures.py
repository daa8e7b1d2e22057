"""The figures of a showdown: means over the seeds with their bands, and each seed as a dot."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from simulator_client.comparison import half_width
from simulator_client.course import (
    RECOVERED,
    WINDOW_VISITS,
    Array,
    Course,
    Results,
    moving_mean,
    reference_ctr,
)
from simulator_client.looks import (
    STYLE,
    Look,
    draw_bound,
    draw_line,
    height_inches,
    legend_below,
    looks,
    png,
    thinned,
    thousands,
    visits_axis,
)
from simulator_client.summary import figures

BAND_ALPHA: Final = 0.15
BANDS_ALPHA: Final = 0.8  # of all together, so that many bands leave the lines to be seen
TINY: Final = 1e-12  # an eigenvalue of zero, but for rounding
SPREAD: Final = 0.25  # of the dots of a policy about its line
Runs = Mapping[int, Results]


def draw(runs: Runs) -> dict[str, bytes]:
    """Every figure that the runs have data for, as PNG, by name."""
    first = next(iter(runs.values()))
    style = looks(first.run.policies)
    courses = [course for results in runs.values() for course in results.courses.values()]
    truth = all(course.truth_known for course in courses)
    with rc_context(STYLE):
        pictures = {"expected-ctr": _lines(runs, style, _ctr)}
        if truth:
            pictures["cumulative-regret"] = _lines(runs, style, _regret)
        pictures["seeds"] = _seeds(runs, style, truth)
        if first.shock:
            pictures["recovery"] = _recovery(runs, style)
        if any(course.health for course in courses):
            pictures["smallest-eigenvalue"] = _lines(runs, style, _eigenvalues)
        return pictures


def _lines(
    runs: Runs, style: Mapping[str, Look], panel: Callable[[Axes, Runs, Mapping[str, Look]], None]
) -> bytes:
    first = next(iter(runs.values()))
    figure = Figure(figsize=(10.0, height_inches(5.2, len(style))), layout="constrained")
    axes = figure.subplots()
    panel(axes, runs, style)
    visits_axis(axes, first.run.visits, first.shock.from_visit if first.shock else None)
    legend_below(figure, [axes])
    return png(figure)


def _ctr(axes: Axes, runs: Runs, style: Mapping[str, Look]) -> None:
    for policy in style:
        means = _stacked(runs, policy, lambda c: moving_mean(c.expected, c.matched))
        first = min(WINDOW_VISITS, len(_courses(runs, policy)[0].clicks)) - 1
        _banded(axes, means, policy, style, first)
    first_run = next(iter(runs.values()))
    if bounds := reference_ctr(first_run):
        draw_bound(axes, bounds[0], "oracle", "--")
        draw_bound(axes, bounds[1], "uniform", ":")
    if first_run.reward_range[0] >= 0:
        axes.set_ylim(bottom=0)
    label = "expected CTR" if first_run.references else "CTR of matched visits"
    axes.set_ylabel(f"{label}, mean of {WINDOW_VISITS} visits")


def _regret(axes: Axes, runs: Runs, style: Mapping[str, Look]) -> None:
    for policy in style:
        _banded(axes, _stacked(runs, policy, lambda c: c.regret), policy, style)
    axes.set_yscale("symlog", linthresh=10)  # good policies lie a hundredfold below uniform
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(thousands)
    axes.set_ylabel("expected regret since the start")


def _eigenvalues(axes: Axes, runs: Runs, style: Mapping[str, Look]) -> None:
    """The geometric mean over the seeds, each seed as a faint line."""
    for policy, look in style.items():
        of_seeds = [
            {h.visit: h.smallest_eigenvalue for h in course.health}
            for course in _courses(runs, policy)
        ]
        visits = sorted(set.intersection(*(set(seen) for seen in of_seeds)))
        if not visits:
            continue
        values = np.array([[seen[visit] for visit in visits] for seen in of_seeds], float)
        x = np.array(visits, float)
        for line in values:
            axes.plot(x, line, color=look.colour, alpha=0.2, linewidth=0.8)
        draw_line(axes, x, np.exp(np.log(np.maximum(values, TINY)).mean(axis=0)), policy, look)
    axes.set_yscale("log")
    axes.set_ylabel("smallest eigenvalue of A")


def _seeds(runs: Runs, style: Mapping[str, Look], truth: bool) -> bytes:
    """A row per policy, a dot per seed, a bar at the mean."""
    panels = {"expected_ctr": "expected CTR" if truth else "CTR of matched visits"}
    if truth:
        panels["relative_regret"] = "regret, % of uniform's"
    figure = Figure(figsize=(11.0, 1.4 + 0.42 * len(style)), layout="constrained")
    grid: list[Axes] = list(figure.subplots(1, len(panels), sharey=True, squeeze=False)[0])
    for axes, (name, label) in zip(grid, panels.items(), strict=True):
        _dots(axes, _of_seeds(runs, style, name), style)
        axes.set_xlabel(label)
        if name == "relative_regret" and axes.get_xlim()[0] > 0:
            axes.set_xscale("log")
            axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
            axes.xaxis.set_minor_formatter(NullFormatter())
    return png(figure)


def _recovery(runs: Runs, style: Mapping[str, Look]) -> bytes:
    """The click rate after the shock in share of the new oracle's, and when it was back."""
    first = next(iter(runs.values()))
    assert first.shock, "drawn where there was a shock"
    shock, oracle = first.shock.from_visit, first.shock.oracle_ctr
    after = first.run.visits - shock
    figure = Figure(figsize=(13.0, height_inches(5.2, len(style))), layout="constrained")
    left, right = figure.subplots(1, 2)
    if after >= WINDOW_VISITS:
        for policy in style:
            shares = _stacked(
                runs, policy, lambda c: moving_mean(c.expected[shock:], c.matched[shock:]) / oracle
            )
            _banded(left, shares, policy, style, WINDOW_VISITS - 1)
    left.axhline(RECOVERED, color="black", linestyle="--", linewidth=1.1)
    left.set_xlim(0, after)
    left.xaxis.set_major_formatter(thousands)
    left.set_ylim(bottom=0)
    left.set_xlabel("visits after the shock")
    left.set_ylabel(f"expected CTR of {WINDOW_VISITS} visits, share of the new oracle's")
    found = _of_seeds(runs, style, "recovery_visits")
    never = 1.08 * after
    _dots(right, {p: np.where(np.isnan(v), never, v) for p, v in found.items()}, style, mean=False)
    right.axvline(after, color="#555555", linewidth=1.0)
    right.set_xlim(0, 1.14 * after)
    ticks = [t for t in right.get_xticks() if t < 0.97 * after]
    right.set_xticks([*ticks, never], [*(thousands(t, 0) for t in ticks), "never"])
    right.set_xlabel("visits to recover, a dot per seed")
    legend_below(figure, [left])
    return png(figure)


def _dots(
    axes: Axes, of_seeds: Mapping[str, Array], style: Mapping[str, Look], *, mean: bool = True
) -> None:
    for row, (policy, values) in enumerate(of_seeds.items()):
        known = values[np.isfinite(values)]
        offsets = np.linspace(-SPREAD, SPREAD, len(known)) if len(known) > 1 else np.zeros(1)
        if len(known):
            axes.plot(
                known, row + offsets, "o", color=style[policy].colour, alpha=0.8, markersize=6
            )
            if mean:
                axes.plot(
                    [known.mean()] * 2, [row - 0.38, row + 0.38], color="black", linewidth=1.2
                )
    axes.set_yticks(range(len(of_seeds)), list(of_seeds))
    axes.set_ylim(len(of_seeds) - 0.5, -0.5)


def _of_seeds(runs: Runs, style: Mapping[str, Look], name: str) -> dict[str, Array]:
    """A figure of each policy, an entry per seed; NaN where it is not known."""
    return {
        policy: np.array([figures(r.courses[policy], r)[name] for r in runs.values()], float)
        for policy in style
    }


def _banded(
    axes: Axes, values: Array, policy: str, style: Mapping[str, Look], first: int = 0
) -> None:
    """The mean over the seeds with its 95 percent interval."""
    mean = values.mean(axis=0)
    x, y = thinned(mean, first)
    look, policies = style[policy], len(style)
    draw_line(axes, x, y, policy, look)
    if len(values) > 1:
        _, half = thinned(half_width(values), first)
        alpha = min(BAND_ALPHA, BANDS_ALPHA / policies)
        axes.fill_between(x, y - half, y + half, color=look.colour, alpha=alpha, linewidth=0)


def _stacked(runs: Runs, policy: str, line: Callable[[Course], Array]) -> Array:
    """(seeds, n): a line of each seed's course."""
    return np.array([line(course) for course in _courses(runs, policy)])


def _courses(runs: Runs, policy: str) -> Sequence[Course]:
    """A policy's course in each seed."""
    return [results.courses[policy] for results in runs.values()]
