"""What a service does beside answering: python -m benchmarks.parts [--parts A,B] [--events N].

folding    rewards a second into the head of each kind of policy that learns from them, beside the
           plain numpy update of the same head
snapshots  taken, saved in SQLite, loaded and put in place, by the size of the heads
recovery   rewards a second at a start, from the log alone and from a snapshot with a tenth of the
           log behind it (`benchmarks.recovery` has the start of a whole process)
training   steps a second of the trainer, and seconds to train a version and to publish it, by the
           window of rewards

Floors of folding, of a row of numbers and a reward:

ridge      A += x x^T, b += r x, and the sums for the noise
net        first what such a head sees of the row: the features of the trained net, 128-64-32, and
           of its untrained twin, the row and a constant
ridges     ten ridge heads, each of which sees a reward Poisson(1) times
logistic   A += x x^T, and a Newton step every 16 rewards
counts     a click or a miss more of an arm

What follows from a head is made when a decision asks for it: that is in `benchmarks.scoring`. A
figure is the median of interleaved rounds: of the processor's time for folding and encoding, of
the clock for the rest. Writes benchmarks/results/parts.json; `python -m benchmarks.http.document`
writes the page.
"""

import argparse
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # read when numpy is imported

from benchmarks.machine import machine
from benchmarks.parts import folding, recovering, snapshots
from benchmarks.parts.tables import TABLES
from benchmarks.tables import keep, parser_of, place
from service.server.allocator import keep_freed_memory
from simulator_client.summary import table

QUICK_EVENTS: Final = 200


def _training(rounds: int, *, quick: bool) -> Any:
    from benchmarks.parts import training  # with torch, which costs seconds

    return training.measured(rounds, (300,) if quick else training.WINDOWS)


def measures(events: int, *, quick: bool) -> dict[str, Callable[[int], Any]]:
    """By name: rounds -> figures."""
    heads = dict(list(snapshots.CASES.items())[: 2 if quick else None])
    columns = folding.COLUMNS[: 1 if quick else None]
    return {
        "folding": lambda rounds: folding.measured(rounds, columns),
        "snapshots": lambda rounds: snapshots.measured(rounds, heads),
        "recovery": lambda rounds: recovering.measured(rounds, events),
        "training": lambda rounds: _training(rounds, quick=quick),
    }


def parser() -> argparse.ArgumentParser:
    """The options."""
    options = parser_of("parts", __doc__)
    options.add_argument("--rounds", type=int, default=7, help="default: 7")
    options.add_argument("--parts", default=",".join(TABLES), help="default: all of them")
    options.add_argument(
        "--events", type=int, default=50_000, help="of a log to recover (default: 50,000)"
    )
    options.add_argument(
        "--quick", action="store_true", help="small, and one round: does it run?"
    )  # fmt: skip
    options.add_argument(
        "--out", type=Path, help="default: the kept results; of some parts, out/parts.json"
    )
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, keep."""
    keep_freed_memory()  # as the service does
    asked = parser().parse_args(arguments)
    names = asked.parts.split(",")
    if unknown := [name for name in names if name not in TABLES]:
        raise SystemExit(f"no part {unknown[0]}; there are: {', '.join(TABLES)}")
    rounds, events = (1, QUICK_EVENTS) if asked.quick else (asked.rounds, asked.events)
    measure = measures(events, quick=asked.quick)
    found = {name: measure[name](rounds) for name in names}
    for name, figures in found.items():
        print(f"\n{name}\n")
        print(table(TABLES[name](figures)))
    whole = list(found) == list(TABLES) and not asked.quick
    out: Path = asked.out or place("parts", whole=whole)
    kept = {"machine": machine(), "rounds": rounds, "parts": found}
    keep(kept, out)


if __name__ == "__main__":
    main()
