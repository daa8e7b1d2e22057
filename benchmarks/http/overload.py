"""Twice the load that the service can serve: python -m benchmarks.http.overload [--seconds N].

First the saturation of a policy, with 64 connections. Then selects fall due at twice that rate,
over many connections, while /healthz is asked. Goodput is compared with the rest of the saturation
after each refusal has cost the processor time of a bare echo.
"""

import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any, Final

import httpx

from benchmarks.http.cases import CASES, ECHO, plan
from benchmarks.http.servers import Server, pin_client, started
from benchmarks.machine import machine, resident_mb
from benchmarks.tables import Cells, Json, conclude, parser_of
from simulator_client.load import SELECT, Plan, Tally, run
from simulator_client.load_summary import latency_ms

SATURATION_S: Final = 4.0
HEALTH_S: Final = 0.1
CONNECTIONS: Final = 1_024
OURS: Final = replace(CASES["sqlite-linucb"], rewards="none")


def saturation(asked: Plan, server: Server) -> tuple[float, float]:
    """Return the answers per second, and the processor seconds of one."""
    tally, used_s = server.under(asked)
    return tally.answered[SELECT] / tally.counted_s, used_s / tally.total(SELECT)


def overloaded(server: Server, asked: Plan) -> tuple[Tally, list[float]]:
    """Return the counts, and the milliseconds in which /healthz answered, in order of size."""
    health: list[float] = []
    over = Event()

    def ask() -> None:  # in a thread: the event loop of the load has other work
        with httpx.Client(base_url=server.url, timeout=10, trust_env=False) as client:
            while not over.wait(HEALTH_S):
                start = time.perf_counter()
                client.get("/healthz").raise_for_status()
                health.append(1e3 * (time.perf_counter() - start))

    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(ask)
        tally = run(asked)
        over.set()
        asking.result()
    return tally, sorted(health)


def measured(seconds: float, folder: Path) -> Json:
    """Return the figures of the service under twice its saturation."""
    with started([CASES[ECHO], OURS], folder) as servers:
        echo, server = servers[ECHO], servers["sqlite"]
        asked: dict[str, Any] = {"seconds": SATURATION_S, "warmup_s": 1.0}
        _, echo_s = saturation(plan(CASES[ECHO], echo.url, **asked), echo)
        capacity, _ = saturation(plan(OURS, server.url, **asked), server)
        before = resident_mb(server.pid)
        asked |= {"seconds": seconds, "rate": 2 * capacity, "connections": CONNECTIONS}
        tally, health = overloaded(server, plan(OURS, server.url, **asked))
        after = resident_mb(server.pid)
    goodput, refused = (
        count / tally.counted_s for count in (tally.answered[SELECT], tally.errors[SELECT, "503"])
    )
    left = capacity * max(1e-9, 1 - refused * echo_s)
    return {
        "capacity": round(capacity), "offered": round(2 * capacity), "goodput": round(goodput),
        "refused": round(refused), "of_capacity_left": round(goodput / left, 3),
        "latency_ms": latency_ms(tally.latencies[SELECT]),
        "sent_late_ms": latency_ms(tally.late),
        "healthz_ms_p99": round(health[int(0.99 * len(health))], 1),
        "healthz_ms_max": round(health[-1], 1),
        "errors": {f"{kind} {reason}": count for (kind, reason), count in tally.errors.items()},
        "resident_mb": [round(before, 1), round(after, 1)],
    }  # fmt: skip


def tables(results: Json) -> dict[str, Cells]:
    """Return the figures, a row each."""
    rows = [[name, str(value)] for name, value in results.items() if name != "machine"]
    return {"overload": [["figure", "value"], *rows]}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and keep the results."""
    parser = parser_of("http.overload", __doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="default: 60")
    asked = parser.parse_args(arguments)
    pin_client()
    with tempfile.TemporaryDirectory() as folder:
        results = {"machine": machine(), **measured(asked.seconds, Path(folder))}
    conclude("overload", results, tables(results), publish=False)


if __name__ == "__main__":
    main()
