"""Figures that are taken in turn: in each round every one has its turn, so that what slows the
machine down for a while slows all of them, and a figure is the median over the rounds.

What computes and waits for nothing is measured by the processor time of its thread: what other
programs take of the core meanwhile does not count. With both cores taken by others, a decision of
350 us took 1,200 by the clock and 750 by its processor time (the rest is theirs of the caches)."""

from collections.abc import Callable, Mapping
from statistics import median
from time import perf_counter, thread_time
from typing import Final, TypeVar

from benchmarks.floors import SELECTS, Work
from benchmarks.tables import say

K = TypeVar("K")
Turn = Callable[[], float]
"""Works for a while; seconds a call."""

TURN_S: Final = 0.05  # at least one batch


def turn_of(work: Work, calls: int = SELECTS) -> Turn:
    """Processor time, in batches of so many calls, in which all happens that does not happen at
    each of them."""
    work()

    def turn() -> float:
        batches: list[float] = []
        end = perf_counter() + TURN_S
        while perf_counter() < end or not batches:
            start = thread_time()
            for _ in range(calls):
                work()
            batches.append(thread_time() - start)
        return median(batches) / calls

    return turn


def medians_us(turns: Mapping[K, Turn], rounds: int, name: str) -> dict[K, float]:
    """Microseconds a call of each. name: of these figures, as progress tells it."""
    found: dict[K, list[float]] = {key: [] for key in turns}
    for number in range(rounds):
        for key, turn in turns.items():
            found[key].append(1e6 * turn())
        say(f"{name}: round {number + 1} of {rounds}")
    return {key: median(each) for key, each in found.items()}
