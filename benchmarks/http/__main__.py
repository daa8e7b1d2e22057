"""The service over HTTP: python -m benchmarks.http [--rounds N] [--seconds S] [--cases A,B].

Server on core 0, client on core 1, 64 connections. In each round every case has its turn; a figure
is the median over the rounds. Then selects fall due at half of a case's own median, and a
latency counts from when one was due. Writes benchmarks/results/http.json, from which
`python -m benchmarks.http.document` writes docs/performance.md.
"""

import argparse
import fnmatch
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.http.cases import CASES, Case
from benchmarks.http.rounds import due, judged, saturated
from benchmarks.http.servers import CLIENT_CORE, started
from benchmarks.http.turns import expect_two_cores
from benchmarks.machine import machine
from benchmarks.tables import keep, parser_of, place
from simulator_client.summary import table


def chosen(words: Sequence[str]) -> list[Case]:
    """The cases of the names or patterns, in the order of the table."""
    found = [
        case for name, case in CASES.items() if any(fnmatch.fnmatch(name, word) for word in words)
    ]
    if not found:
        raise SystemExit(f"no such case; there are: {', '.join(CASES)}")
    return found


def rows(results: dict[str, Any]) -> list[list[str]]:
    """The table on the terminal."""
    cells = [
        ["case", "per second", "of echo", "x best peer", "server us", "p50 ms", "p99 ms", "errors"]
    ]
    for name, kept in results["cases"].items():
        figures = [
            f"{kept['median_per_second']:,.0f}",
            *(
                form.format(kept[figure]) if figure in kept else "-"
                for figure, form in (
                    ("of_echo", "{:.3f}"),
                    ("times_best_peer", "{:.2f}"),
                    ("median_server_us", "{:.0f}"),
                    ("median_p50_ms", "{:.2f}"),
                    ("median_p99_ms", "{:.2f}"),
                )
            ),
            str(kept["errors"]),
        ]
        cells.append([name, *figures])
    return cells


def parser() -> argparse.ArgumentParser:
    """The options."""
    options = parser_of("http", __doc__)
    options.add_argument("--rounds", type=int, default=5, help="default: 5")
    options.add_argument("--seconds", type=float, default=2.0, help="of a turn (default: 2)")
    options.add_argument(
        "--cases", default="*", help="names or patterns, by comma (default: all): 'echo,sqlite-*'"
    )
    options.add_argument(
        "--due-rounds", type=int, default=3, help="of what falls due at a rate (default: 3)"
    )
    options.add_argument(
        "--out", type=Path, help="default: the kept results; of some cases, out/http.json"
    )
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, keep."""
    asked = parser().parse_args(arguments)
    expect_two_cores()
    cases = chosen(asked.cases.split(","))

    os.sched_setaffinity(0, {CLIENT_CORE})
    with tempfile.TemporaryDirectory() as name, started(cases, folder := Path(name)) as servers:
        found = saturated(cases, servers, asked.rounds, asked.seconds)
        by_itself = due(cases, servers, found, asked.due_rounds, asked.seconds, folder)
    results = {
        "machine": machine(),
        "rounds": asked.rounds,
        "due_rounds": asked.due_rounds,
        "seconds": asked.seconds,
        "disk": by_itself,
        "cases": judged(cases, found),
    }
    print(table(rows(results)))
    out: Path = asked.out or place("http", whole=len(cases) == len(CASES))
    keep(results, out)


if __name__ == "__main__":
    main()
