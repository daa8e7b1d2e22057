"""The figures of runs, a line for each policy. Imported last: matplotlib costs a second.

A group of runs shares a panel: a single run, or the runs of a showdown, one for each seed. Lines
of several seeds are means, with the 95 percent interval of the mean as a band.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter
from numpy.typing import NDArray

from simulator_client.comparison import half_width
from simulator_client.course import (
    WINDOW_VISITS,
    Array,
    Course,
    Results,
    moving_mean,
    reference_ctr,
)
from simulator_client.health import Health
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

Group = Sequence[Results]
Looks = Mapping[str, Look]
BINS: Final = 40  # of the shares over time
BAND_ALPHA: Final = 0.15
BANDS_ALPHA: Final = 0.8  # of all bands together, so that the lines stay visible
TINY: Final = 1e-12  # an eigenvalue of zero but for rounding
# Tol's light colours, then the same darker.
GROUP_COLOURS: Final = (
    "#77AADD", "#EE8866", "#EEDD88", "#FFAABB", "#44BB99", "#DDDDDD", "#99DDFF", "#AAAA00",
    "#4477AA", "#AA4444", "#997700", "#994455", "#117755", "#777777", "#225588",
)  # fmt: skip


def draw(groups: Sequence[Group]) -> dict[str, bytes]:
    """Draw every figure that the runs have data for: PNG by name."""
    runs = [run for group in groups for run in group]
    courses = [course for run in runs for course in run.courses.values()]
    with rc_context(STYLE):
        label = "expected CTR" if any(run.references for run in runs) else "CTR of matched visits"
        pictures = {
            "expected-ctr": _lines(groups, f"{label}, mean of {WINDOW_VISITS} visits", _ctr)
        }
        if any(course.truth_known for course in courses):
            label = "expected regret since the start"
            pictures["cumulative-regret"] = _lines(groups, label, _regret)
        if any(course.health for course in courses):
            pictures["effective-rank"] = _lines(groups, "effective rank", _rank)
            label = "smallest eigenvalue of A"
            pictures["smallest-eigenvalue"] = _lines(groups, label, _eigenvalue)
        if all(len(group) == 1 for group in groups):
            pictures["arm-shares"] = _shares(runs)
        return pictures


def _policies(runs: Group) -> list[str]:
    return list(dict.fromkeys(policy for run in runs for policy in run.courses))


def _courses(group: Group, policy: str) -> list[Course]:
    return [run.courses[policy] for run in group if policy in run.courses]


def _lines(
    groups: Sequence[Group], label: str, panel: Callable[[Axes, Group, Looks], None]
) -> bytes:
    """Draw a panel for each group, with shared axes."""
    style = looks(_policies([run for group in groups for run in group]))
    columns, rows = min(2, len(groups)), -(-len(groups) // 2)
    width, height = 10.0 if columns == 1 else 13.0, rows * height_inches(4.6, len(style))
    figure = Figure(figsize=(width, height), layout="constrained")
    shared = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    grid: list[Axes] = list(shared.flat)
    for place, (axes, group) in enumerate(zip(grid, groups, strict=False)):
        panel(axes, group, style)
        visits_axis(axes, group[0].run.visits, _shock_at(group[0]))
        if len(groups) > 1:
            axes.set_title(_title(group[0], groups), fontsize=11)
        if place % columns == 0:
            axes.set_ylabel(label)
    for axes in grid[len(groups) :]:
        axes.set_visible(False)
    legend_below(figure, grid)
    return png(figure)


def _ctr(axes: Axes, group: Group, style: Looks) -> None:
    for policy, look in style.items():
        courses = _courses(group, policy)
        if not courses:
            continue
        first = min(WINDOW_VISITS, len(courses[0].clicks)) - 1
        if len(courses) == 1:
            clicked = moving_mean(courses[0].clicks, courses[0].matched)
            axes.plot(*thinned(clicked, first), color=look.colour, alpha=0.25, linewidth=0.9)
        means = [moving_mean(course.expected, course.matched) for course in courses]
        _banded(axes, np.array(means), policy, style, first)
    if bounds := reference_ctr(group[0]):
        draw_bound(axes, bounds[0], "oracle", "--")
        draw_bound(axes, bounds[1], "uniform", ":")
    if group[0].reward_range[0] >= 0:
        axes.set_ylim(bottom=0)


def _regret(axes: Axes, group: Group, style: Looks) -> None:
    for policy in style:
        courses = [course for course in _courses(group, policy) if course.truth_known]
        if courses:
            _banded(axes, np.array([course.regret for course in courses]), policy, style)
    axes.set_yscale("symlog", linthresh=10)  # good policies lie a hundredfold below uniform
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(thousands)


def _eigenvalue(axes: Axes, group: Group, style: Looks) -> None:
    """Draw the geometric mean over the seeds."""
    for policy in style:
        _over_looks(
            axes,
            group,
            policy,
            style,
            lambda look: look.smallest_eigenvalue,
            lambda values: np.exp(np.log(np.maximum(values, TINY)).mean(axis=0)),
        )
    axes.set_yscale("log")


def _rank(axes: Axes, group: Group, style: Looks) -> None:
    """Draw the mean over the seeds."""
    for policy in style:
        _over_looks(
            axes,
            group,
            policy,
            style,
            lambda look: look.effective_rank,
            lambda values: values.mean(axis=0),
        )
    axes.set_ylim(bottom=0)


def _over_looks(
    axes: Axes,
    group: Group,
    policy: str,
    style: Looks,
    read: Callable[[Health], float],
    mean: Callable[[Array], Array],
) -> None:
    """Draw a figure of a policy's head: its mean over the seeds, and each seed as a faint line."""
    seeds = [
        {look.visit: read(look) for look in course.health} for course in _courses(group, policy)
    ]
    visits = sorted(set[int]().union(*seeds).intersection(*seeds))
    if not visits:
        return
    values = np.array([[seen[visit] for visit in visits] for seen in seeds], float)
    x = np.array(visits, float)
    for line in values if len(seeds) > 1 else ():
        axes.plot(x, line, color=style[policy].colour, alpha=0.2, linewidth=0.8)
    draw_line(axes, x, mean(values), policy, style[policy])


def _banded(axes: Axes, values: Array, policy: str, style: Looks, first: int = 0) -> None:
    """Draw the mean of (seeds, n) values, which start at visit `first`, and its interval."""
    x, y = thinned(values.mean(axis=0), first)
    draw_line(axes, x, y, policy, style[policy])
    if len(values) > 1:
        _, half = thinned(half_width(values), first)
        alpha, colour = min(BAND_ALPHA, BANDS_ALPHA / len(style)), style[policy].colour
        axes.fill_between(x, y - half, y + half, color=colour, alpha=alpha, linewidth=0)


def group_shares(group: NDArray[np.int64], groups: int, bins: int) -> Array:
    """Return (bins, groups): the share of the visits of each bin that showed each group."""
    counts = [np.bincount(part, minlength=groups) for part in np.array_split(group, bins)]
    shares = np.array(counts, float)
    shares /= shares.sum(axis=1, keepdims=True)
    return shares


def _shares(runs: Group) -> bytes:
    """Draw a panel per policy (rows) and run (columns): stacked shares of the groups."""
    policies = _policies(runs)
    columns = len(runs) if len(runs) > 1 else min(3, len(policies))
    rows = len(policies) if len(runs) > 1 else -(-len(policies) // columns)
    figure = Figure(figsize=(max(9.0, 4.3 * columns), 1.0 + 2.2 * rows), layout="constrained")
    grid: list[Axes] = list(figure.subplots(rows, columns, sharey=True, squeeze=False).flat)
    panels = [(policy, run) for policy in policies for run in runs]
    for place, (axes, (policy, run)) in enumerate(zip(grid, panels, strict=False)):
        title = policy if len(runs) == 1 else f"{policy}: {_title(run, [runs])}"
        axes.set_title(title, fontsize=11)
        visits_axis(axes, run.run.visits, _shock_at(run), label=place + columns >= len(panels))
        axes.set_ylim(0, 1)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        if policy not in run.courses:
            continue
        group = run.courses[policy].group
        bins = min(BINS, len(group))
        shares = group_shares(group, len(run.groups), bins)
        colours = [GROUP_COLOURS[k % len(GROUP_COLOURS)] for k in range(len(run.groups))]
        axes.stackplot(
            np.linspace(0, len(group), bins + 1), np.vstack([shares, shares[-1]]).T,
            labels=run.groups, colors=colours, step="post", edgecolor="white", linewidth=0.3,
        )  # fmt: skip
    for axes in grid[len(panels) :]:
        axes.set_visible(False)
    figure.supylabel("share of the shown arms", fontsize=11)
    legend_below(figure, grid)
    return png(figure)


def _shock_at(run: Results) -> int | None:
    return run.shock.from_visit if run.shock else None


def _title(run: Results, groups: Sequence[Group]) -> str:
    """Return the mode of a run, and its id if other runs have the same mode."""
    alike = sum(other.mode == run.mode for group in groups for other in group)
    return run.mode if alike == 1 else f"{run.mode}, run {run.run.run}"
