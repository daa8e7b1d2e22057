"""How cost grows: python -m benchmarks.growth [--axes A,B] [--rows N] [--catalogue N].

arms        a decision over 10 to 10,000 arms of 32 columns, a reward before every fifth
columns     the same over 100 arms of 8 to 512 columns
catalogue   a decision that names 50 arms of a catalogue of 1,000 to 1,000,000, also after an arm
            has changed, and one whose arms are found by search (`retrieve`; needs the extra
            `retrieval`). 1,000,000 arms take 4 GB of memory
log         an SQLite log of 10,000 to --rows decisions, with a reward for every fifth: a durable
            commit, a look-up, a page. 1,000,000 decisions take 2 GB on disk; --rows 10000000
            takes 22 GB and a quarter of an hour or more

A figure is the median of interleaved rounds, in microseconds: of the processor, but of the clock
for a commit; behind it stands how many times dearer the same gets when the size doubles: 1 is flat,
2 linear, 4 square. Writes benchmarks/results/growth.json; `python -m benchmarks.http.document`
draws the picture and writes the page.
"""

import argparse
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # read when numpy is imported

from benchmarks.growth.axes import AXES, cells
from benchmarks.growth.catalogue import by_catalogue
from benchmarks.growth.decisions import by_arms, by_columns
from benchmarks.growth.log import by_log
from benchmarks.machine import machine
from benchmarks.tables import Json, keep, parser_of, place
from service.server.allocator import keep_freed_memory
from simulator_client.summary import table

MEASURES: Final[dict[str, Callable[[Sequence[int], int], Json]]] = {
    "arms": by_arms,
    "columns": by_columns,
    "catalogue": by_catalogue,
    "log": by_log,
}


def sizes_of(name: str, most: int | None) -> tuple[int, ...]:
    """Of an axis, those below `most` and `most` itself. Exits where that makes one size."""
    sizes = AXES[name].sizes
    if most is not None:
        sizes = (*(size for size in sizes if size < most), most)
    if len(sizes) < 2:
        raise SystemExit(f"{name}: growth needs a size above {AXES[name].sizes[0]:,}")
    return sizes


def parser() -> argparse.ArgumentParser:
    """The options."""
    options = parser_of("growth", __doc__)
    options.add_argument("--rounds", type=int, default=9, help="default: 9")
    options.add_argument("--axes", default=",".join(AXES), help="default: all of them")
    options.add_argument(
        "--rows", type=int, default=1_000_000, help="most decisions of the log (default: 1,000,000)"
    )
    options.add_argument(
        "--catalogue", type=int, default=1_000_000, help="most arms of it (default: 1,000,000)"
    )
    options.add_argument(
        "--quick", action="store_true", help="two small sizes, one round: does it run?"
    )
    options.add_argument(
        "--out", type=Path, help="default: the kept results; of a part of it, out/growth.json"
    )
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, keep."""
    keep_freed_memory()  # as the service does
    asked = parser().parse_args(arguments)
    names = asked.axes.split(",")
    if unknown := [name for name in names if name not in AXES]:
        raise SystemExit(f"no axis {unknown[0]}; there are: {', '.join(AXES)}")
    most = {"catalogue": asked.catalogue, "log": asked.rows}
    rounds = 1 if asked.quick else asked.rounds
    sizes = {
        name: AXES[name].quick if asked.quick else sizes_of(name, most.get(name)) for name in names
    }
    found = {name: MEASURES[name](sizes[name], rounds) for name in names}
    for name, axis in found.items():
        print(f"\n{AXES[name].title}: us (times dearer when doubled)\n")
        print(table(cells(axis, AXES[name].unit)))
    whole = list(found) == list(AXES) and not asked.quick
    out: Path = asked.out or place("growth", whole=whole)
    kept = {"machine": machine(), "rounds": rounds, "axes": found}
    keep(kept, out)


if __name__ == "__main__":
    main()
