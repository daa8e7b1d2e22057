"""The report's figures. Only the report imports this: matplotlib costs a second at start."""

from collections.abc import Callable, Sequence
from io import BytesIO
from typing import Any, Final

import numpy as np
from matplotlib import rc_context
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import (
    LogLocator,
    MaxNLocator,
    NullFormatter,
    PercentFormatter,
)
from numpy.typing import NDArray

from simulator_client.summary import Array, Results, reference_ctr

MOVING_VISITS: Final = 500
POINTS: Final = 1500  # of a drawn line; more do not show
BINS: Final = 40  # of the shares over time
DPI: Final = 110

# Okabe and Ito's colours (distinct under the common colour blindnesses), a dash pattern each for
# those who print in grey; a policy looks the same in every figure and every report.
LOOKS: Final[dict[str, tuple[str, Any]]] = {
    "linucb": ("#0072B2", "-"),
    "lints": ("#009E73", "-"),
    "neural_linear_ts": ("#D55E00", "-"),
    "neural_ucb": ("#E69F00", "-"),
    "linucb_disjoint": ("#56B4E9", (0, (6, 1.5))),
    "epsilon_greedy": ("#CC79A7", (0, (6, 1.5))),
    "popularity": ("#882255", (0, (4, 1.5, 1, 1.5))),
    "random": ("#7F7F7F", (0, (4, 1.5, 1, 1.5))),
}
# For policies with other names, in the order of a run.
SPARE_LOOKS: Final[tuple[tuple[str, Any], ...]] = tuple(
    (colour, (0, (2, 1)))
    for colour in ("#332288", "#117733", "#AA4499", "#44AA99", "#999933", "#CC6677")
)
GROUP_COLOURS: Final = ("#77AADD", "#EE8866", "#EEDD88", "#FFAABB", "#44BB99", "#DDDDDD")
STYLE: Final[Any] = {
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#E5E5E5",
    "axes.axisbelow": True,
    "figure.facecolor": "white",
    "lines.linewidth": 1.8,
    "legend.frameon": False,
}


def looks(policies: Sequence[str]) -> dict[str, tuple[str, Any]]:
    """Colour and line style per policy."""
    others = [policy for policy in policies if policy not in LOOKS]
    spare = {p: SPARE_LOOKS[k % len(SPARE_LOOKS)] for k, p in enumerate(others)}
    return {policy: LOOKS.get(policy) or spare[policy] for policy in policies}


def policies_of(runs: Sequence[Results]) -> list[str]:
    """Every policy of the runs, once, in order."""
    return list(dict.fromkeys(policy for run in runs for policy in run.courses))


def draw(runs: Sequence[Results]) -> dict[str, bytes]:
    """Every figure as PNG, by name; each run has a panel of its own on shared axes."""
    with rc_context(STYLE):
        return {
            "cumulative-clicks": _lines(runs, "clicks since the start", _clicks),
            "moving-ctr": _lines(
                runs, f"expected CTR, mean of {MOVING_VISITS} visits", _moving_ctr
            ),
            "cumulative-regret": _lines(runs, "expected regret since the start (clicks)", _regret),
            "arm-shares": _shares(runs),
            "latency": _latency(runs),
        }


def _clicks(axes: Axes, results: Results, style: dict[str, tuple[str, Any]]) -> None:
    for policy, course in results.courses.items():
        _line(axes, np.cumsum(course.clicks), policy, style[policy])
    oracle, uniform = reference_ctr(results)
    axes.yaxis.set_major_formatter(_thousands)
    _bound(axes, np.cumsum(oracle), "oracle", "--")
    _bound(axes, np.cumsum(uniform), "uniform", ":")


def _moving_ctr(axes: Axes, results: Results, style: dict[str, tuple[str, Any]]) -> None:
    for policy, course in results.courses.items():
        first = min(MOVING_VISITS, len(course.clicks)) - 1
        colour = style[policy][0]
        clicked = moving_mean(course.clicks)
        axes.plot(*_thinned(clicked, first), color=colour, alpha=0.25, linewidth=0.9)
        _line(axes, moving_mean(course.expected), policy, style[policy], first)
    oracle, uniform = reference_ctr(results)
    _bound(axes, oracle, "oracle", "--")
    _bound(axes, uniform, "uniform", ":")
    axes.set_ylim(bottom=0)


def _regret(axes: Axes, results: Results, style: dict[str, tuple[str, Any]]) -> None:
    for policy, course in results.courses.items():
        _line(axes, np.cumsum(course.best - course.expected), policy, style[policy])
    axes.set_yscale("symlog", linthresh=10)  # good policies lie a hundredfold below uniform
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(_thousands)


def moving_mean(values: Array) -> Array:
    """Mean of the last MOVING_VISITS values, or of all where there are fewer; one per window."""
    width = min(MOVING_VISITS, len(values))
    sums = np.concatenate([[0.0], np.cumsum(values)])
    means: Array = (sums[width:] - sums[:-width]) / width
    return means


def group_shares(group: NDArray[np.int64], groups: int, bins: int) -> Array:
    """(bins, groups): which share of the visits of each bin showed each group."""
    counts = [np.bincount(part, minlength=groups) for part in np.array_split(group, bins)]
    shares = np.array(counts, float)
    shares /= shares.sum(axis=1, keepdims=True)
    return shares


def _thinned(values: Array, first: int = 0) -> tuple[Array, Array]:
    """Visits and values of at most about POINTS points; values start at visit `first`."""
    step = max(1, len(values) // POINTS)
    at = np.unique(np.append(np.arange(0, len(values), step), len(values) - 1))
    return (at + first + 1).astype(float), values[at]


def _line(axes: Axes, values: Array, policy: str, look: tuple[str, Any], first: int = 0) -> None:
    axes.plot(*_thinned(values, first), color=look[0], linestyle=look[1], label=policy)


def _bound(axes: Axes, values: Array, label: str, linestyle: str) -> None:
    axes.plot(*_thinned(values), color="black", linestyle=linestyle, linewidth=1.1, label=label)


def _lines(
    runs: Sequence[Results],
    label: str,
    panel: Callable[[Axes, Results, dict[str, tuple[str, Any]]], None],
) -> bytes:
    style = looks(policies_of(runs))
    columns, rows = min(2, len(runs)), -(-len(runs) // 2)
    figure = Figure(figsize=(9.0 if columns == 1 else 13.0, 0.6 + 4.2 * rows), layout="constrained")
    grid: list[Axes] = list(figure.subplots(rows, columns, sharey=True, squeeze=False).flat)
    for axes, results in zip(grid, runs, strict=False):
        panel(axes, results, style)
        _visits_axis(axes, results)
        axes.set_title(_title(results, runs), fontsize=11)
    for axes in grid[::columns]:
        axes.set_ylabel(label)
    for axes in grid[len(runs) :]:
        axes.set_visible(False)
    entries: dict[str, Artist] = {}
    for axes in grid:
        handles, labels = axes.get_legend_handles_labels()
        entries |= dict(zip(labels, handles, strict=True))
    figure.legend(list(entries.values()), list(entries), loc="outside lower center", ncols=5)
    return _png(figure)


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
        _visits_axis(axes, results, label=place + columns >= len(panels))
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
    filled = next(axes for axes in grid if axes.get_legend_handles_labels()[0])
    figure.legend(*filled.get_legend_handles_labels(), loc="outside lower center", ncols=6)
    return _png(figure)


def _latency(runs: Sequence[Results]) -> bytes:
    """Quantiles on a log scale: a row per policy and run, a panel per call."""
    lines = [(run, p) for p in policies_of(runs) for run in runs if p in run.courses]
    style = looks(policies_of(runs))
    figure = Figure(figsize=(max(9.0, 5.5 * 2), 1.6 + 0.38 * len(lines)), layout="constrained")
    panels: list[Axes] = figure.subplots(1, 2, sharey=True, sharex=True, squeeze=False)[0]
    for axes, call in zip(panels, ("select", "reward"), strict=True):
        for row, (run, policy) in enumerate(lines):
            sample: Array = getattr(run.courses[policy], f"{call}_ms")
            quantiles = np.percentile(sample, (50, 90, 99, 99.9))
            colour = style[policy][0]
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
    return _png(figure)


def _visits_axis(axes: Axes, results: Results, *, label: bool = True) -> None:
    axes.set_xlim(0, results.run.visits)
    axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.xaxis.set_major_formatter(_thousands)
    if label:
        axes.set_xlabel("visit")
    for reference in results.references[1:]:
        axes.axvline(reference.from_visit, color="#555555", linewidth=1.0)
        axes.annotate(
            "shock", (reference.from_visit, 0.02), xycoords=("data", "axes fraction"),
            xytext=(4, 0), textcoords="offset points", color="#555555", fontsize=10,
        )  # fmt: skip


def _thousands(value: float, _: float) -> str:
    return f"{value:,.0f}"


def _title(results: Results, runs: Sequence[Results]) -> str:
    """How the run went, and its id where that does not tell the runs apart."""
    alike = sum(other.mode == results.mode for other in runs)
    return results.mode if alike == 1 else f"{results.mode}, run {results.run.run}"


def _png(figure: Figure) -> bytes:
    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI)
    return buffer.getvalue()
