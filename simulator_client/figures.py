"""The figures of one or more runs. Only reports import this: matplotlib costs a second at start."""

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, PercentFormatter
from numpy.typing import NDArray

from simulator_client.course import WINDOW_VISITS, Array, Results, moving_mean, reference_ctr
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

BINS: Final = 40  # of the shares over time
# Tol's light colours, then the same darker.
GROUP_COLOURS: Final = (
    "#77AADD", "#EE8866", "#EEDD88", "#FFAABB", "#44BB99", "#DDDDDD", "#99DDFF", "#AAAA00",
    "#4477AA", "#AA4444", "#997700", "#994455", "#117755", "#777777", "#225588",
)  # fmt: skip


def policies_of(runs: Sequence[Results]) -> list[str]:
    """Every policy of the runs, once, in order."""
    return list(dict.fromkeys(policy for run in runs for policy in run.courses))


def draw(runs: Sequence[Results]) -> dict[str, bytes]:
    """Every figure that the runs have data for, as PNG, by name; each run has a panel of its own.

    Panels share their axes.
    """
    courses = [course for run in runs for course in run.courses.values()]
    with rc_context(STYLE):
        pictures = {
            "cumulative-clicks": _lines(runs, "clicks since the start", _clicks),
            "moving-ctr": _lines(
                runs, f"expected CTR, mean of {WINDOW_VISITS} visits", _moving_ctr
            ),
        }
        if any(course.truth_known for course in courses):
            pictures["cumulative-regret"] = _lines(runs, "expected regret since the start", _regret)
        pictures["arm-shares"] = _shares(runs)
        if any(course.health for course in courses):
            pictures["smallest-eigenvalue"] = _lines(runs, "smallest eigenvalue of A", _eigenvalue)
        pictures["latency"] = _latency(runs)
        return pictures


def _clicks(axes: Axes, results: Results, style: dict[str, Look]) -> None:
    for policy, course in results.courses.items():
        draw_line(axes, *thinned(np.cumsum(course.clicks)), policy, style[policy])
    axes.yaxis.set_major_formatter(thousands)
    if bounds := reference_ctr(results):
        draw_bound(axes, np.cumsum(bounds[0]), "oracle", "--")
        draw_bound(axes, np.cumsum(bounds[1]), "uniform", ":")


def _moving_ctr(axes: Axes, results: Results, style: dict[str, Look]) -> None:
    for policy, course in results.courses.items():
        first = min(WINDOW_VISITS, len(course.clicks)) - 1
        colour = style[policy].colour
        clicked = moving_mean(course.clicks, course.matched)
        axes.plot(*thinned(clicked, first), color=colour, alpha=0.25, linewidth=0.9)
        expected = moving_mean(course.expected, course.matched)
        draw_line(axes, *thinned(expected, first), policy, style[policy])
    if bounds := reference_ctr(results):
        draw_bound(axes, bounds[0], "oracle", "--")
        draw_bound(axes, bounds[1], "uniform", ":")
    if results.reward_range[0] >= 0:
        axes.set_ylim(bottom=0)


def _regret(axes: Axes, results: Results, style: dict[str, Look]) -> None:
    for policy, course in results.courses.items():
        if course.truth_known:
            draw_line(axes, *thinned(course.regret), policy, style[policy])
    axes.set_yscale("symlog", linthresh=10)  # good policies lie a hundredfold below uniform
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(thousands)


def _eigenvalue(axes: Axes, results: Results, style: dict[str, Look]) -> None:
    for policy, course in results.courses.items():
        if course.health:
            visits = np.array([look.visit for look in course.health], float)
            values = np.array([look.smallest_eigenvalue for look in course.health], float)
            draw_line(axes, visits, values, policy, style[policy])
    axes.set_yscale("log")


def group_shares(group: NDArray[np.int64], groups: int, bins: int) -> Array:
    """(bins, groups): which share of the visits of each bin showed each group."""
    counts = [np.bincount(part, minlength=groups) for part in np.array_split(group, bins)]
    shares = np.array(counts, float)
    shares /= shares.sum(axis=1, keepdims=True)
    return shares


def _lines(
    runs: Sequence[Results],
    label: str,
    panel: Callable[[Axes, Results, dict[str, Look]], None],
) -> bytes:
    style = looks(policies_of(runs))
    columns, rows = min(2, len(runs)), -(-len(runs) // 2)
    width, height = 9.0 if columns == 1 else 13.0, rows * height_inches(4.2, len(style))
    figure = Figure(figsize=(width, 0.6 + height), layout="constrained")
    grid: list[Axes] = list(figure.subplots(rows, columns, sharey=True, squeeze=False).flat)
    for axes, results in zip(grid, runs, strict=False):
        panel(axes, results, style)
        visits_axis(axes, results.run.visits, _shock_at(results))
        axes.set_title(_title(results, runs), fontsize=11)
    for axes in grid[::columns]:
        axes.set_ylabel(label)
    for axes in grid[len(runs) :]:
        axes.set_visible(False)
    legend_below(figure, grid)
    return png(figure)


def _shares(runs: Sequence[Results]) -> bytes:
    """A panel per policy (rows) and run (columns): stacked shares of the groups."""
    policies = policies_of(runs)
    columns = len(runs) if len(runs) > 1 else min(3, len(policies))
    rows = len(policies) if len(runs) > 1 else -(-len(policies) // columns)
    figure = Figure(figsize=(max(9.0, 4.3 * columns), 1.0 + 2.2 * rows), layout="constrained")
    grid: list[Axes] = list(figure.subplots(rows, columns, sharey=True, squeeze=False).flat)
    panels = [(policy, results) for policy in policies for results in runs]
    for place, (axes, (policy, results)) in enumerate(zip(grid, panels, strict=False)):
        title = policy if len(runs) == 1 else f"{policy}: {_title(results, runs)}"
        axes.set_title(title, fontsize=11)
        lowest = place + columns >= len(panels)
        visits_axis(axes, results.run.visits, _shock_at(results), label=lowest)
        axes.set_ylim(0, 1)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        if policy not in results.courses:
            continue
        group = results.courses[policy].group
        bins = min(BINS, len(group))
        shares = group_shares(group, len(results.groups), bins)
        edges = np.linspace(0, len(group), bins + 1)
        stairs = np.vstack([shares, shares[-1]]).T
        colours = [GROUP_COLOURS[k % len(GROUP_COLOURS)] for k in range(len(results.groups))]
        axes.stackplot(
            edges, stairs, labels=results.groups, colors=colours, step="post", edgecolor="white",
            linewidth=0.3,
        )  # fmt: skip
    for axes in grid[len(panels) :]:
        axes.set_visible(False)
    figure.supylabel("share of what was shown", fontsize=11)
    legend_below(figure, grid)
    return png(figure)


def _latency(runs: Sequence[Results]) -> bytes:
    """Quantiles on a log scale: a row per policy and run, a panel per call."""
    lines = [(run, p) for p in policies_of(runs) for run in runs if p in run.courses]
    style = looks(policies_of(runs))
    figure = Figure(figsize=(max(9.0, 5.5 * 2), 1.6 + 0.38 * len(lines)), layout="constrained")
    panels: list[Axes] = figure.subplots(1, 2, sharey=True, sharex=True, squeeze=False)[0]
    for axes, call in zip(panels, ("select", "reward"), strict=True):
        for row, (run, policy) in enumerate(lines):
            sample: Array = getattr(run.courses[policy], f"{call}_ms")
            if not len(sample):
                continue  # no visit counted, and so no reward was sent
            quantiles = np.percentile(sample, (50, 90, 99, 99.9))
            colour = style[policy].colour
            axes.plot(quantiles[[0, -1]], [row, row], color=colour, linewidth=1.2)
            for value, marker in zip(quantiles, "os^D", strict=True):
                axes.plot(value, row, marker, color=colour, markersize=6.5)
        axes.set_title(f"POST /{call}", fontsize=11)
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5)))
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_xlabel("milliseconds, as the client sees them")
    names = [p if len(runs) == 1 else f"{p} ({_title(r, runs)})" for r, p in lines]
    panels[0].set_yticks(range(len(lines)), names)
    panels[0].set_ylim(len(lines) - 0.5, -0.5)
    for marker, name in zip("os^D", ("p50", "p90", "p99", "p99.9"), strict=True):
        panels[0].plot([], [], marker, color="#555555", markersize=6.5, label=name)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return png(figure)


def _shock_at(results: Results) -> int | None:
    return results.shock.from_visit if results.shock else None


def _title(results: Results, runs: Sequence[Results]) -> str:
    """How the run went, and its id where that does not tell the runs apart."""
    alike = sum(other.mode == results.mode for other in runs)
    return results.mode if alike == 1 else f"{results.mode}, run {results.run.run}"
