"""The picture of the page on growth. Imported last: matplotlib costs a second."""

from itertools import cycle
from typing import Any, Final

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from benchmarks.growth.axes import AXES
from simulator_client.looks import COLOURS, SPARE_COLOURS, STYLE, png

MARKERS: Final = ("o", "s", "^", "D", "v", "P")
LINEAR: Final = "#BBBBBB"
LABEL: Final = 0.12  # of the width of a panel, that a label takes
LONG: Final = 24  # characters of a name in the legend
UNITS: Final = {1.0: "1 µs", 10.0: "10 µs", 100.0: "100 µs", 1e3: "1 ms", 1e4: "10 ms",
                1e5: "100 ms", 1e6: "1 s", 1e7: "10 s"}  # fmt: skip
MILLION: Final = 1_000_000


def picture(results: dict[str, Any]) -> bytes:
    """PNG: a panel an axis, cost by size, both on a scale of powers."""
    with rc_context(STYLE):
        engine = ConstrainedLayoutEngine(hspace=0.06, wspace=0.05)
        figure = Figure(figsize=(13.0, 11.5), layout=engine)
        for axes, (name, axis) in zip(
            figure.subplots(2, 2).flat, results["axes"].items(), strict=True
        ):
            _draw(axes, axis)
            axes.set_title(AXES[name].title, loc="left", fontsize=12)
            axes.set_xlabel(AXES[name].unit)
            axes.set_ylabel("time of each")
        return png(figure)


def _draw(axes: Axes, axis: dict[str, Any]) -> None:
    sizes = axis["sizes"]
    spare = iter(SPARE_COLOURS)
    for marker, (name, series) in zip(cycle(MARKERS), axis["series"].items(), strict=False):
        colour = COLOURS.get(name) or next(spare)
        label = name.replace("`", "")
        axes.plot(sizes, series["us"], marker + "-", color=colour, markersize=6, label=label)
    costs = [us for series in axis["series"].values() for us in series["us"]]
    low, high = min(costs) / 1.6, max(costs) * 1.6
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(sizes[0] / 1.25, sizes[-1] * 1.25)
    axes.set_ylim(low, high)
    _guides(axes, low, high, sizes)
    ticks = _apart(sizes)
    axes.set_xticks(ticks, list(map(_label, ticks)))
    axes.set_xticks([], minor=True)
    axes.yaxis.set_major_locator(LogLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda us, _: UNITS.get(us, f"{us:g} µs")))
    axes.yaxis.set_minor_formatter(NullFormatter())
    longest = max(map(len, axis["series"]))
    axes.legend(
        loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=2 if longest > LONG else 3,
        fontsize=10,
    )  # fmt: skip


def _label(size: int) -> str:
    return f"{size / MILLION:g} million" if size >= MILLION else f"{size:,}"


def _apart(sizes: list[int]) -> list[int]:
    """Those of the sizes whose labels do not touch."""
    found = [sizes[0]]
    for size in sizes[1:]:
        if np.log(size / found[-1]) > LABEL * np.log(sizes[-1] / sizes[0]):
            found.append(size)
    return found


def _guides(axes: Axes, low: float, high: float, sizes: list[int]) -> None:
    """Dotted lines along which twice the size is twice the cost."""
    reach = np.array([sizes[0] / 1.25, sizes[-1] * 1.25])
    first, last = np.floor(np.log10(low / reach[1])), np.ceil(np.log10(high / reach[0]))
    for slope in 10 ** np.arange(first, last):
        axes.plot(
            reach, slope * reach, ":", color=LINEAR, linewidth=1.0, zorder=0,
            label="linear" if slope == 10**first else None,
        )  # fmt: skip
