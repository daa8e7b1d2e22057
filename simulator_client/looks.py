"""How figures look: a policy the same in each of them, a picture's parts, PNG."""

from collections.abc import Sequence
from io import BytesIO
from typing import Any, Final, NamedTuple

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from simulator_client.course import Array
from simulator_client.worlds.policies import KINDS, MODIFIERS, named

POINTS: Final = 1500  # of a drawn line; more do not show
MARKERS: Final = 9  # along a line
DPI: Final = 110
ENTRY_INCHES: Final = 0.95  # of a legend: its line and the space around it
CHARACTER_INCHES: Final = 0.095
MOST_COLUMNS: Final = 6
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


class Look(NamedTuple):
    colour: str
    dashes: Any
    marker: str = ""


# The kind gives the colour, after Okabe and Ito and Tol (distinct under the common colour
# blindnesses); what differs from the kind's defaults gives the dashes; how it forgets gives a
# marker.
COLOURS: Final = {
    "auto": "#000000",
    "linucb": "#0072B2",
    "lints": "#009E73",
    "neural_linear_ts": "#D55E00",
    "neural_linucb": "#56B4E9",
    "neural_ucb": "#E69F00",
    "neural_ts": "#999933",
    "neural_glm_ts": "#CC79A7",
    "bootstrap_ensemble": "#332288",
    "mc_dropout": "#44AA99",
    "greedy": "#AA4499",
    "epsilon_greedy": "#882255",
    "squarecb": "#117733",
    "popularity": "#996644",
    "static": "#222222",
    "random": "#8F8F8F",
}
DASHES: Final[dict[str, Any]] = {
    "disjoint": (0, (6, 1.5)),
    "narrow": (0, (3, 1)),
    "last_layer": (0, (8, 2)),
    "diagonal": (0, (6, 1.5, 1, 1.5)),
    "full": (0, (4, 1.5)),
    "thompson": (0, (8, 2)),
    "ucb": (0, (4, 1.5)),
    "linear": (0, (8, 2)),
    "neural": (0, (4, 1.5)),
    "popularity": (0, (1.2, 1)),
}
BASELINES: Final = frozenset({"popularity", "static", "random"})
BASELINE_DASHES: Final = (0, (5, 1.5, 1, 1.5))
MODIFIER_MARKERS: Final = {"change": "o", "forgetting": "s", "window": "^"}
# For policies with other names, in the order of a run.
SPARE_COLOURS: Final = ("#332288", "#117733", "#AA4499", "#44AA99", "#999933", "#CC6677")
SPARE_DASHES: Final = (0, (2, 1))
SPARE_MARKERS: Final = ("", "D", "v", "P", "X")


def looks(policies: Sequence[str]) -> dict[str, Look]:
    found = {policy: look for policy in policies if (look := _known_look(policy))}
    others = [policy for policy in policies if policy not in found]
    for number, policy in enumerate(others):
        marker, colour = divmod(number, len(SPARE_COLOURS))
        found[policy] = Look(
            SPARE_COLOURS[colour], SPARE_DASHES, SPARE_MARKERS[marker % len(SPARE_MARKERS)]
        )
    return found


def _known_look(policy: str) -> Look | None:
    settings = named(policy)
    if settings is None:
        return None
    kind = settings["kind"]
    rest = policy.removeprefix(kind)
    marker = "".join(MODIFIER_MARKERS[m] for m in MODIFIERS if f"_{m}" in rest)[:1]
    variants = [suffix for suffix in KINDS[kind] if f"_{suffix}" in rest]
    dashes: Any = BASELINE_DASHES if kind in BASELINES else "-"
    if variants:
        dashes = (0, tuple(part for v in variants for part in DASHES[v][1]))
    colour = COLOURS[kind]
    return Look(colour, dashes, marker)


def thinned(values: Array, first: int = 0) -> tuple[Array, Array]:
    """Visits and values of at most about POINTS points; values start at visit `first`."""
    step = max(1, len(values) // POINTS)
    at = np.unique(np.append(np.arange(0, len(values), step), len(values) - 1))
    return (at + first + 1).astype(float), values[at]


def height_inches(least: float, policies: int) -> float:
    """Return the height of a panel: more lines need more room."""
    return least + 0.2 * max(0, policies - 6)


def draw_line(axes: Axes, x: Array, y: Array, policy: str, look: Look, **more: Any) -> None:
    """Draw a policy's line; its markers start at different points, so that they do not coincide."""
    every = max(1, len(x) // MARKERS)
    start = (
        list(COLOURS.values()).index(look.colour) if look.colour in COLOURS.values() else 0
    ) % 7
    axes.plot(
        x, y, color=look.colour, linestyle=look.dashes, label=policy,
        marker=look.marker or None, markersize=5, markevery=(start * every // 7, every), **more,
    )  # fmt: skip


def draw_bound(axes: Axes, values: Array, label: str, linestyle: str) -> None:
    """Draw a black line that bounds what can be reached."""
    axes.plot(*thinned(values), color="black", linestyle=linestyle, linewidth=1.1, label=label)


def visits_axis(axes: Axes, visits: int, shock_at: int | None, *, label: bool = True) -> None:
    """Visits from 0; the shock is marked."""
    axes.set_xlim(0, visits)
    axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.xaxis.set_major_formatter(thousands)
    if label:
        axes.set_xlabel("visit")
    if shock_at is not None:
        axes.axvline(shock_at, color="#555555", linewidth=1.0)
        axes.annotate(
            "shock", (shock_at, 0.02), xycoords=("data", "axes fraction"),
            xytext=(4, 0), textcoords="offset points", color="#555555", fontsize=10,
        )  # fmt: skip


def legend_below(figure: Figure, grid: Sequence[Axes]) -> None:
    """Draw one legend for all panels, each entry once, in as many columns as there is room for."""
    entries: dict[str, Artist] = {}
    for axes in grid:
        handles, labels = axes.get_legend_handles_labels()
        entries |= dict(zip(labels, handles, strict=True))
    longest = max(map(len, entries), default=1)
    columns = int(figure.get_figwidth() / (ENTRY_INCHES + longest * CHARACTER_INCHES))
    figure.legend(
        list(entries.values()), list(entries), loc="outside lower center",
        ncols=max(1, min(columns, MOST_COLUMNS)), handlelength=3.2,
    )  # fmt: skip


def thousands(value: float, _: float) -> str:
    return f"{value:,.0f}"


def png(figure: Figure) -> bytes:
    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI)
    return buffer.getvalue()
