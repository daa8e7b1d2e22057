"""Twice the load that the service can serve: python -m benchmarks.http.overload [--seconds N].

First the saturation of a policy, with 64 connections. Then selects fall due at twice that rate,
over many connections, for a minute; /healthz is asked meanwhile. Goodput is compared with what is
left of the saturation once each refusal is charged the processor time of a bare echo. Writes
out/benchmarks/overload.json.
"""

import asyncio
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import httpx

from benchmarks.http.cases import CASES, ECHO, plan
from benchmarks.http.servers import CLIENT_CORE, Server, started
from benchmarks.http.turns import expect_two_cores
from benchmarks.machine import machine, resident_mb
from benchmarks.tables import Json, keep, out_option, parser_of
from simulator_client.load import measure
from simulator_client.load_progress import Silent
from simulator_client.load_summary import latency_ms

SATURATION_S: Final = 4.0
HEALTH_S: Final = 0.1
CONNECTIONS: Final = 1_024
POLICY: Final = "linucb"


def _asked(case: str, url: str, seconds: float, rate: float | None) -> Any:
    chosen = replace(CASES[case], rewards="none")
    asked = plan(chosen, url, seconds=seconds, warmup_s=1.0, rate=rate, seed=1)
    return asked if rate is None else replace(asked, connections=CONNECTIONS)


def saturation(case: str, server: Server) -> tuple[float, float]:
    """Answers a second, and processor seconds of one."""
    before = server.cpu_seconds()
    tally = asyncio.run(measure(_asked(case, server.url, SATURATION_S, None), Silent()))
    used_s = server.cpu_seconds() - before
    return tally.answered["select"] / tally.counted_s[0], used_s / sum(tally.seconds["select"])


async def overloaded(server: Server, rate: float, seconds: float) -> tuple[Any, list[float]]:
    """The tally, and the milliseconds in which /healthz answered."""
    health: list[float] = []

    async def ask() -> None:
        async with httpx.AsyncClient(base_url=server.url, timeout=10, trust_env=False) as client:
            while True:
                start = time.perf_counter()
                (await client.get("/healthz")).raise_for_status()
                health.append(1e3 * (time.perf_counter() - start))
                await asyncio.sleep(HEALTH_S)

    asking = asyncio.create_task(ask())
    tally = await measure(_asked(f"sqlite-{POLICY}", server.url, seconds, rate), Silent())
    asking.cancel()
    return tally, health


def measured(seconds: float, folder: Path) -> Json:
    cases = [CASES[ECHO], CASES[f"sqlite-{POLICY}"]]
    with started(cases, folder) as servers:
        _, echo_s = saturation(ECHO, servers[ECHO])
        server = servers["sqlite"]
        capacity, _ = saturation(f"sqlite-{POLICY}", server)
        before = resident_mb(server.pid)
        tally, health = asyncio.run(overloaded(server, 2 * capacity, seconds))
        after = resident_mb(server.pid)
    refused = sum(count for (_, what), count in tally.errors.items() if what == "503")
    good, shed = tally.answered["select"] / tally.counted_s[0], refused / tally.counted_s[0]
    left = capacity * max(0.0, 1 - shed * echo_s)
    health.sort()
    return {
        "capacity": round(capacity), "offered": round(2 * capacity), "goodput": round(good),
        "refused": round(shed), "of_capacity_left": round(good / left, 3),
        "latency_ms": latency_ms(tally.latencies["select"]),
        "sent_late_ms": latency_ms(tally.late),
        "healthz_ms_p99": round(health[int(0.99 * len(health))], 1),
        "healthz_ms_max": round(health[-1], 1),
        "errors": {f"{kind} {what}": count for (kind, what), count in tally.errors.items()},
        "resident_mb": [round(before, 1), round(after, 1)],
    }  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, keep."""
    parser = parser_of("http.overload", __doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="default: 60")
    out_option(parser, "overload", published=False)
    asked = parser.parse_args(arguments)
    expect_two_cores()
    os.sched_setaffinity(0, {CLIENT_CORE})
    with tempfile.TemporaryDirectory() as folder:
        found = measured(asked.seconds, Path(folder))
    for name, value in found.items():
        print(f"{name:20} {value}")
    keep({"machine": machine(), **found}, asked.out)


if __name__ == "__main__":
    main()
