"""Plots of a case. Import this module late: matplotlib costs a second."""

from io import BytesIO
from pathlib import Path
from typing import Final

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure
from PIL import Image

from benchmarks.learning.peers import PEERS
from benchmarks.learning.standing import Standing
from benchmarks.pictured import keep
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

SHOWN: Final = 8  # best agents of each side
COLOURS: Final = 256  # of a file: git keeps it
# Explorers of one library share their dashes.
PEER_LOOKS: Final = {
    "vw_greedy": Look("#44AA99", "-"),
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
    "linucb_alpha_.1": Look("#882255", (0, (1, 1))),
    "linucb_alpha_.3": Look("#882255", (0, (3, 1))),
    "linucb_alpha_1": Look("#882255", (0, (6, 1.5))),
    "book_neural_linucb": Look("#CC79A7", (0, (2, 1))),
    "book_neural_ucb": Look("#AA4499", (0, (2, 1))),
    "fixed_arm": Look("#8F8F8F", "-"),
    "skyline": Look("#222222", "-"),
    "tabular_thompson": Look("#222222", (0, (5, 1.5, 1, 1.5))),
    "uniform": Look("#8F8F8F", (0, (5, 1.5, 1, 1.5))),
}


def shown(standing: Standing) -> list[str]:
    """Return the agents of the plots."""
    left, right = sides(standing)
    return [*left, *right]


def sides(standing: Standing) -> tuple[list[str], list[str]]:
    """Return our best policies and the best peer; and the best peers, our best one, marks."""
    ours, peers, informed = (
        [agent for agent in agents if standing.entries[agent].bands]
        for agents in (
            standing.ours,
            standing.peers,
            [agent for agent in standing.ranked if agent in PEERS and PEERS[agent].informed],
        )
    )
    return ours[:SHOWN] + peers[:1], peers[:SHOWN] + ours[:1] + informed


def draw(standing: Standing, path: Path) -> None:
    """Write the plots of a case: ours beside the peers, regret above share of the best choice."""
    style = PEER_LOOKS | looks([agent for agent in standing.ranked if agent not in PEER_LOOKS])
    with rc_context(STYLE):
        figure = Figure(figsize=(13.0, 9.5), layout="constrained")
        grid = figure.subplots(2, 2, sharex=True, sharey="row")
        for row, course in zip(grid, ("regret", "share"), strict=True):
            for axes, agents in zip(row, sides(standing), strict=True):
                for agent in agents:
                    entry = standing.entries[agent]
                    band = {name: np.array(each) for name, each in entry.bands[course].items()}
                    look = style[agent]
                    draw_line(axes, band["visit"], band["mean"], agent, look)
                    axes.fill_between(
                        band["visit"], band["low"], band["high"], color=look.colour, alpha=0.1,
                        linewidth=0,
                    )  # fmt: skip
        for place, axes in enumerate(grid.flat):
            visits_axis(axes, standing.case.visits, standing.case.shock_at, label=place >= 2)
        grid[0, 0].set_yscale("symlog", linthresh=10)
        grid[0, 0].set_ylim(bottom=0)
        grid[0, 0].yaxis.set_major_formatter(thousands)
        grid[0, 0].set_ylabel("expected regret since the start")
        negative = standing.case.make().reward_range[0] < 0
        grid[1, 0].set_ylim(-1 if negative else 0, 1.02)
        grid[1, 0].set_ylabel("share of the best choice")
        grid[0, 0].set_title("Forage")
        grid[0, 1].set_title("peers")
        legend_below(figure, list(grid.flat))
        image = Image.open(BytesIO(png(figure))).convert("RGB")
    keep(image.quantize(COLOURS), path)
