"""What grows along an axis, and by how much from one size to the next."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import log2
from typing import Final, NamedTuple

from benchmarks.tables import Json


class Axis(NamedTuple):
    """What grows, as the page and the picture say it, and its sizes, each held against the one
    before. quick: those of a run that is only to show that it runs."""

    title: str
    unit: str
    sizes: tuple[int, ...]
    quick: tuple[int, ...]


AXES: Final = {
    "arms": Axis(
        "A decision by its arms (32 columns)",
        "arms of the request",
        (10, 30, 100, 300, 1_000, 3_000, 10_000),
        (10, 30),
    ),
    "columns": Axis(
        "A decision by its columns (100 arms)",
        "columns",
        (8, 16, 32, 64, 128, 256, 512),
        (8, 16),
    ),
    "catalogue": Axis(
        "A decision by the catalogue behind it",
        "arms in the catalogue",
        (1_000, 10_000, 20_000, 100_000, 1_000_000),
        (100, 1_000),
    ),
    "log": Axis(
        "The log in SQLite by its rows",
        "decisions in the log",
        (10_000, 100_000, 1_000_000),
        (5_000, 10_000),
    ),
}


def when_doubled(sizes: Sequence[int], costs: Sequence[float]) -> list[float]:
    """How many times dearer it is when the size doubles, from each size to the next: 1 where it
    stays the same, 2 where it is linear, 4 where it goes by the square."""
    pairs = zip(pairwise(sizes), pairwise(costs), strict=True)
    return [(dear / cheap) ** (1 / log2(many / few)) for (few, many), (cheap, dear) in pairs]


def kept(sizes: Sequence[int], found: Mapping[tuple[str, int], float]) -> Json:
    """Series by name, in the order in which they were measured. found: microseconds by series and
    size."""
    names = dict.fromkeys(name for name, _ in found)
    series = {}
    for name in names:
        costs = [found[name, size] for size in sizes]
        series[name] = {"us": costs, "times_when_doubled": when_doubled(sizes, costs)}
    return {"sizes": list(sizes), "series": series}


def cells(axis: Json, unit: str) -> list[list[str]]:
    """A row a series: microseconds, and in brackets how many times dearer it is when the size
    doubles."""
    rows = [[unit, *(f"{size:,}" for size in axis["sizes"])]]
    for name, series in axis["series"].items():
        first, *rest = series["us"]
        steps = zip(rest, series["times_when_doubled"], strict=True)
        rows.append([name, figure(first), *(f"{figure(us)} ({times:.1f})" for us, times in steps)])
    return rows


def figure(us: float) -> str:
    """Two digits at least."""
    return f"{us:,.0f}" if us >= 10 else f"{us:.1f}"
