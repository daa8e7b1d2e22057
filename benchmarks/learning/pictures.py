"""The page of a comparison, with its pictures. Imported last: matplotlib costs a second."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.learning.course import Array
from benchmarks.learning.tables import Standing, cells, notes
from simulator_client import page
from simulator_client.journal import write_whole
from simulator_client.looks import (
    STYLE,
    Look,
    draw_line,
    legend_below,
    looks,
    png,
    thousands,
    visits_axis,
)

SHOWN: Final = 8  # of each side in a picture: the best
SMOOTHED: Final = 5  # points of a course that a share is taken over
# A library's explorers share their dashes.
PEER_LOOKS: Final = {
    "vw_squarecb": Look("#0072B2", "-"),
    "vw_regcb": Look("#56B4E9", "-"),
    "vw_regcbopt": Look("#009E73", "-"),
    "vw_bag5": Look("#332288", "-"),
    "vw_squarecb_unit": Look("#0072B2", (0, (4, 1))),
    "vw_regcbopt_unit": Look("#009E73", (0, (4, 1))),
    "vw_bag5_unit": Look("#332288", (0, (4, 1))),
    "mabwiser_linucb": Look("#D55E00", (0, (6, 1.5))),
    "mabwiser_lints": Look("#E69F00", (0, (6, 1.5))),
    "book_linucb_disjoint": Look("#882255", (0, (2, 1))),
    "book_neural_linucb": Look("#CC79A7", (0, (2, 1))),
    "book_neural_ucb": Look("#AA4499", (0, (2, 1))),
    "tabular_thompson": Look("#222222", (0, (5, 1.5, 1, 1.5))),
    "uniform": Look("#8F8F8F", (0, (5, 1.5, 1, 1.5))),
}
CAPTION: Final = (
    "Left our policies and the best peer, right the peers and the best of ours; the eight best of "
    "each. Above, expected reward lost so far against the best choice; below, the expected reward "
    "of what was shown, as a share of the best choice's. Lines are means over the streams, bands "
    "their range."
)
ABOUT: Final = (
    "Every agent meets the same visits, and the same uniforms decide what comes of its choices. "
    "Expected rewards are the true ones of what was shown, and so leave out the luck of the "
    "clicks. Our policies run through the service's own code in one process, without its wire; "
    "visits/s hold for one core and count world, choice, learning and training."
)


def write(standings: Sequence[Standing], path: Path) -> Path:
    """One page, complete in itself."""
    played = [standing for standing in standings if standing.runs]
    parts = [page.note(ABOUT)]
    named = {standing.case.name: picture(standing) for standing in played}
    for standing in played:
        parts += [page.section(standing.case.title), page.cells(cells(standing))]
        parts += [page.note(line) for line in (standing.verdict, *notes(standing))]
        name = standing.case.name
        parts += page.pictures({name: named[name]}, {name: ("Over the visits", CAPTION)})
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, page.page("Forage: learning compared", "Learning compared", parts))
    return path


def picture(standing: Standing) -> bytes:
    """PNG of a case's courses, ours beside the peers'."""
    sides, told = _sides(standing)
    style = PEER_LOOKS | looks([agent for agent in standing.ranked if agent not in PEER_LOOKS])
    with rc_context(STYLE):
        figure = Figure(figsize=(13.0, 9.5), layout="constrained")
        grid = figure.subplots(2, 2, sharex=True, sharey="row")
        panels = [
            ("regret", "expected regret since the start"),
            ("share", "share of the best choice"),
        ]
        for row, (course, label) in zip(grid, panels, strict=True):
            row[0].set_ylabel(label)
            for axes, agents, more in zip(row, sides, ([], told), strict=True):
                for agent in [*agents, *more]:
                    _draw(axes, standing, agent, course, style[agent])
        for place, axes in enumerate(grid.flat):
            visits_axis(axes, standing.case.visits, standing.case.shock_at, label=place >= 2)
        grid[0, 0].set_yscale("symlog", linthresh=10)
        grid[0, 0].set_ylim(bottom=0)
        grid[0, 0].yaxis.set_major_formatter(thousands)
        negative = standing.case.make().reward_range[0] < 0
        grid[1, 0].set_ylim(-1 if negative else 0, 1.02)
        grid[0, 0].set_title("Forage")
        grid[0, 1].set_title("peers")
        legend_below(figure, list(grid.flat))
        return png(figure)


def _sides(standing: Standing) -> tuple[list[list[str]], list[str]]:
    """The agents of the left and of the right, and those that know the world's structure."""
    ours, peers = standing.side(peers=False), standing.side(peers=True)
    told = [agent for agent in standing.ranked if agent not in ours + peers]
    return [ours[:SHOWN] + peers[:1], peers[:SHOWN] + ours[:1]], told


def shown(standing: Standing) -> set[str]:
    """The agents in the picture of a case."""
    sides, told = _sides(standing)
    return {agent for agents in (*sides, told) for agent in agents}


def bands_of(standing: Standing, agent: str) -> dict[str, dict[str, list[float]]]:
    """Mean and range of an agent's courses over its streams, to six digits."""
    if agent in standing.bands:
        return standing.bands[agent]
    found = {}
    for name, course in COURSES.items():
        drawn = [course(run["curve"]) for run in standing.runs[agent]]
        x, y = drawn[0][0], np.array([values for _, values in drawn])
        parts = {"visit": x, "mean": y.mean(axis=0), "low": y.min(axis=0), "high": y.max(axis=0)}
        found[name] = {
            part: [float(f"{value:.6g}") for value in values] for part, values in parts.items()
        }
    return found


def _draw(axes: Axes, standing: Standing, agent: str, course: str, look: Look) -> None:
    band = bands_of(standing, agent)[course]
    draw_line(axes, np.array(band["visit"]), np.array(band["mean"]), agent, look)
    if len(standing.runs[agent]) > 1:
        axes.fill_between(
            band["visit"], band["low"], band["high"], color=look.colour, alpha=0.1, linewidth=0
        )


def _regret(curve: dict[str, list[float]]) -> tuple[Array, Array]:
    return np.array(curve["visit"], float), np.array(curve["best"]) - np.array(curve["expected"])


def _share(curve: dict[str, list[float]]) -> tuple[Array, Array]:
    """Over the last SMOOTHED points each, fewer at the beginning."""
    best, expected = (np.array([0.0, *curve[name]]) for name in ("best", "expected"))
    start = np.maximum(np.arange(1, len(best)) - SMOOTHED, 0)
    gained = best[1:] - best[start]
    share = (expected[1:] - expected[start]) / np.where(gained > 0, gained, np.nan)
    return np.array(curve["visit"], float), share


COURSES: Final[dict[str, Callable[[dict[str, list[float]]], tuple[Array, Array]]]] = {
    "regret": _regret,
    "share": _share,
}
