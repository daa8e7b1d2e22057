"""Minutes at 70 percent of saturation: python -m benchmarks.http.steady [--minutes N].

The service on SQLite (`linucb`, arms left out, a reward for every five selects) and a bare ASGI
application are first asked as fast as 64 connections go, in turns. Then selects fall due (Poisson)
at 70 percent of the median of that, for so many minutes in ten parts; a latency counts from when a
select was due. After each part comes a look at the process's memory. Before, between and after the
parts come turns of some seconds: of the bare application at 70 percent of its own saturation, and
of the disk alone, which makes durable what is as long as a commit. What they show too, the machine
did. Where the client was the bottleneck at its saturation
(`client_bound`), it could answer more than that. Server on core 0, client on core 1. Writes
benchmarks/results/steady.json.
"""

import argparse
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks.http.cases import CASES, ECHO, Case, plan
from benchmarks.http.rounds import CLIENT_BUSY, saturated
from benchmarks.http.servers import CLIENT_CORE, Server, started
from benchmarks.http.turns import added, cell, expect_two_cores, figures, turn
from benchmarks.machine import disk, machine, told_ms
from benchmarks.memory import resident_mb
from benchmarks.tables import Json, keep, out_option, parser_of, say
from simulator_client.load_tally import Latencies, Tally
from simulator_client.summary import table

OURS: Final = "sqlite-linucb"
SHARE_OF_SATURATION: Final = 0.7
LOOKS: Final = 10
WARMUP_S: Final = 1.0  # of each part and turn, not counted: connections are made
SHOWN: Final = {"p50 ms": "p50", "p99 ms": "p99", "p99.9 ms": "p99_9", "max ms": "max"}


class Side:
    """One of the two: what it was asked, part by part."""

    def __init__(self, case: Case, server: Server, saturation: Json) -> None:
        self._case, self._server, self._saturation = case, server, saturation
        self._rate = SHARE_OF_SATURATION * median(saturation["per_second"])
        self._tallies: list[Tally] = []
        self.selects = 0

    def ask(self, seconds: float) -> None:
        """At its rate, for so long."""
        asked = plan(
            self._case, self._server.url, seconds=seconds, warmup_s=WARMUP_S, rate=self._rate,
            seed=len(self._tallies) + 1,
        )  # fmt: skip
        (tally,) = turn([asked]).tallies
        self._tallies.append(tally)
        self.selects += sum(tally.seconds["select"])
        told = figures(tally)
        say(
            f"{self._case.name:14} {len(self._tallies):3}  at {self._rate:8,.0f}/s  "
            f"p99 {cell(told['p99'])} ms, max {cell(told['max'])} ms, {told['errors']} errors"
        )

    def figures(self) -> Json:
        """Of all parts, and of each."""
        parts = [figures(tally) for tally in self._tallies]
        return {
            "title": self._case.title,
            "saturation_per_second": self._saturation["per_second"],
            "client_bound": median(self._saturation["client_core"]) >= CLIENT_BUSY,
            "due_per_second": round(self._rate, 1),
            **figures(added(self._tallies)),
            "parts": [{name: part[name] for name in SHOWN.values()} for part in parts],
        }


class Disk:
    """What the disk does by itself, part by part."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._parts: list[Latencies] = []

    def ask(self, seconds: float) -> None:
        """For so long."""
        self._parts.append(disk(self._folder, seconds))

    def figures(self) -> Json:
        """Of all parts, and of each."""
        whole = Latencies()
        for part in self._parts:
            whole.add(part.as_json())
        return {**told_ms(whole), "parts": [told_ms(part) for part in self._parts]}


def run(
    ours: Side, bare: Sequence[Side | Disk], pid: int, part_s: float, bare_s: float
) -> list[tuple[int, float]]:
    """Parts of ours between turns of what is bare; selects so far, and megabytes."""
    looks = [(0, round(resident_mb(pid), 1))]
    for each in bare:
        each.ask(bare_s)
    for _ in range(LOOKS):
        ours.ask(part_s)
        looks.append((ours.selects, round(resident_mb(pid), 1)))
        for each in bare:
            each.ask(bare_s)
    return looks


def rows(results: Json) -> list[list[str]]:
    """Both sides and the disk, over all parts."""
    heads = ["", "due/s", "answered/s", *SHOWN, "errors", "unlogged", "client late p99 ms"]
    return [
        heads,
        *(
            [
                found["title"].replace("`", ""),
                cell(found["due_per_second"], "{:,.0f}"),
                cell(found["per_second"], "{:,.0f}"),
                *(cell(found[name]) for name in SHOWN.values()),
                f"{found['errors']:,}",
                f"{found['unlogged']:,}",
                cell(found["late_p99_ms"]),
            ]
            for found in results["sides"].values()
        ),
        ["the disk alone", "", "", *(cell(results["disk"][name]) for name in SHOWN.values()),
         "", "", ""],
    ]  # fmt: skip


def look_rows(results: Json) -> list[list[str]]:
    """Part by part: memory, and p99 beside those of the bare turns that followed."""
    ours, echo = (results["sides"][name]["parts"] for name in (OURS, ECHO))
    kinds = ("", "bare ", "disk ")
    heads = [f"{kind}{name} ms" for kind in kinds for name in ("p99", "max")]
    cells = [["selects so far", "resident MB", *heads]]
    none = dict.fromkeys(("p99", "max"))
    for (selects, megabytes), *parts in zip(
        results["resident_mb"], [none, *ours], echo, results["disk"]["parts"], strict=True
    ):
        told = [cell(each[name]) for each in parts for name in ("p99", "max")]
        cells.append([f"{selects:,}", cell(megabytes, "{:.1f}"), *told])
    return cells


def parser() -> argparse.ArgumentParser:
    """The options."""
    options = parser_of("http.steady", __doc__)
    options.add_argument("--minutes", type=float, default=10.0, help="of ours (default: 10)")
    options.add_argument(
        "--bare-seconds", type=float, default=10.0, help="of each bare turn (default: 10)"
    )
    options.add_argument("--rounds", type=int, default=5, help="of saturation (default: 5)")
    options.add_argument(
        "--seconds", type=float, default=2.0, help="of a turn at saturation (default: 2)"
    )
    out_option(options, "steady")
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, keep."""
    asked = parser().parse_args(arguments)
    expect_two_cores()
    os.sched_setaffinity(0, {CLIENT_CORE})
    cases = [CASES[ECHO], CASES[OURS]]
    with tempfile.TemporaryDirectory() as place, started(cases, Path(place)) as servers:
        found = saturated(cases, servers, asked.rounds, asked.seconds)
        echo, ours = (Side(case, servers[case.server], found[case.name]) for case in cases)
        pid = servers[CASES[OURS].server].pid
        by_itself = Disk(Path(place))
        part_s = 60 * asked.minutes / LOOKS
        looks = run(ours, [echo, by_itself], pid, part_s, asked.bare_seconds)
    results: Json = {
        "machine": machine(),
        "minutes": asked.minutes,
        "bare_seconds": asked.bare_seconds,
        "share_of_saturation": SHARE_OF_SATURATION,
        "sides": {OURS: ours.figures(), ECHO: echo.figures()},
        "disk": by_itself.figures(),
        "resident_mb": looks,
    }
    print(table(rows(results)))
    print()
    print(table(look_rows(results)))
    keep(results, asked.out)


if __name__ == "__main__":
    main()
