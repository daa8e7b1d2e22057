"""A decision without the wire, by its arms and by its columns."""

from collections.abc import Sequence
from typing import Final

from benchmarks.growth.axes import kept
from benchmarks.medians import medians_us, turn_of
from benchmarks.scoring import decision
from benchmarks.tables import Json

POLICIES: Final = (
    "linucb",
    "lints",
    "neural_linear_ts",
    "neural_ucb",
    "bootstrap_ensemble",
    "popularity",
)
COLUMNS: Final = 32  # where arms grow
ARMS: Final = 100  # where columns do


def by_arms(sizes: Sequence[int], rounds: int) -> Json:
    """All arms of a catalogue that stays as it is; every fifth decision comes after a reward."""
    turns = {
        (kind, size): turn_of(decision(kind, size, COLUMNS)) for kind in POLICIES for size in sizes
    }
    return kept(sizes, medians_us(turns, rounds, "arms"))


def by_columns(sizes: Sequence[int], rounds: int) -> Json:
    """The same with few arms and longer rows; of policies that look at them."""
    kinds = [kind for kind in POLICIES if kind != "popularity"]
    turns = {
        (kind, size): turn_of(decision(kind, ARMS, size)) for kind in kinds for size in sizes
    }  # fmt: skip
    return kept(sizes, medians_us(turns, rounds, "columns"))
