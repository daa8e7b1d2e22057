"""Resident memory of a serving process over many requests: python -m benchmarks.memory.

A service on SQLite takes selects as fast as 64 connections go, one reward for every five, contexts
that never repeat; each part of them is followed by a look at the process. Writes
benchmarks/results/memory.json.
"""

import asyncio
import os
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from benchmarks.http.cases import CASES, plan
from benchmarks.http.servers import CLIENT_CORE, QUIET, SERVER_CORE, on_core
from benchmarks.machine import machine
from benchmarks.tables import keep, out_option, parser_of
from simulator_client.load import measure
from simulator_client.load_progress import Silent
from tests.support.service_process import service

LOOKS: Final = 10
PART_S: Final = 3.0


def resident_mb(pid: int) -> float:
    """What the process holds of memory now."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith("VmRSS:")]
    return int(line.split()[1]) / 1024


def run(policy: str, most: int, folder: Path) -> list[tuple[int, float]]:
    """Selects so far, and megabytes."""
    case = CASES[f"sqlite-{policy}"]
    store = f"sqlite:///{folder / 'forage.db'}"
    found: list[tuple[int, float]] = []
    with ExitStack() as stack:
        with on_core(SERVER_CORE):
            one = stack.enter_context(service(folder, store, **QUIET))
        selects, next_at, seed = 0, 0, 0
        while True:
            if selects >= next_at:
                found.append((selects, round(resident_mb(one.pid), 1)))
                print(f"{selects:>10,} selects  {found[-1][1]:7.1f} MB", flush=True)
                next_at += most // LOOKS
            if selects >= most:
                return found
            seed += 1
            asked = plan(case, one.url, seconds=PART_S, warmup_s=0.0, rate=None, seed=seed)
            tally = asyncio.run(measure(asked, Silent()))
            selects += sum(tally.seconds["select"])


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, keep."""
    parser = parser_of("memory", __doc__)
    parser.add_argument("--selects", type=int, default=1_000_000, help="default: 1,000,000")
    parser.add_argument("--policy", default="lints", help="default: lints")
    out_option(parser, "memory")
    asked = parser.parse_args(arguments)
    os.sched_setaffinity(0, {CLIENT_CORE})
    with tempfile.TemporaryDirectory() as place:
        found = run(asked.policy, asked.selects, Path(place))
    results: dict[str, Any] = {
        "machine": machine(), "policy": asked.policy, "resident_mb": found
    }  # fmt: skip
    keep(results, asked.out)


if __name__ == "__main__":
    main()
