"""Twice the load that the service can serve: python -m benchmarks.http.overload [--seconds N].

First the saturation of a policy, with 64 connections. Then selects fall due at twice that rate,
over many connections, while /healthz is asked; last, the saturation again.
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

from benchmarks.http.cases import CASES, plan
from benchmarks.http.servers import Server, pin_client, started
from benchmarks.machine import machine, resident_mb
from benchmarks.tables import Cells, Json, conclude, parser_of, publish_option
from simulator_client.load import SELECT, Plan, Tally, run
from simulator_client.load_summary import latency_ms

SATURATION_S: Final = 8.0
HEALTH_S: Final = 0.1
CONNECTIONS: Final = 2_048
"""Enough that no request that is due waits for one: that would bound the load."""
OURS: Final = replace(CASES["sqlite-linucb"], rewards="none")


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
    with started([OURS], folder) as servers:
        server = servers["sqlite"]
        alone = plan(OURS, server.url, seconds=SATURATION_S, warmup_s=1.0)
        capacity = per_second(server.under(alone)[0])
        before = resident_mb(server.pid)
        asked: dict[str, Any] = {"rate": 2 * capacity, "connections": CONNECTIONS}
        tally, health = overloaded(server, plan(OURS, server.url, seconds=seconds, **asked))
        after = resident_mb(server.pid)
        again = per_second(server.under(alone)[0])
    refused = tally.errors[SELECT, "503"]
    return {
        "seconds": seconds,
        "capacity": [round(capacity), round(again)],
        "offered": round(2 * capacity),
        "goodput": round(per_second(tally)),
        "goodput_of_capacity": round(2 * per_second(tally) / (capacity + again), 2),
        "refused": round(refused / tally.counted_s),
        "other_errors": tally.errors.total() - refused,
        "latency_ms": latency_ms(tally.latencies[SELECT]),
        "sent_late_ms": latency_ms(tally.late),
        "healthz_ms": {
            "p99": round(health[int(0.99 * len(health))], 1),
            "max": round(health[-1], 1),
        },
        "resident_mb": [round(before, 1), round(after, 1)],
    }


def per_second(tally: Tally) -> float:
    """Return the decisions per second."""
    return tally.answered[SELECT] / tally.counted_s


def tables(results: Json) -> dict[str, Cells]:
    """Return the table of the page."""
    before, after = results["capacity"]
    first, last = results["resident_mb"]
    latency = results["latency_ms"]
    rows = [
        ["capacity before and after, decisions/s", f"{before}, {after}"],
        [f"offered for {results['seconds']:g} s, requests/s", str(results["offered"])],
        ["decided, per second", str(results["goodput"])],
        ["decided, of the mean capacity", f"{results['goodput_of_capacity']:.2f}"],
        ["refused with 503, per second", str(results["refused"])],
        ["latency of a decision, p50 and p99, ms", f"{latency['p50']:.0f}, {latency['p99']:.0f}"],
        ["latency of `/healthz`, p99, ms", f"{results['healthz_ms']['p99']:.0f}"],
        ["memory before and after, MB", f"{first:.0f}, {last:.0f}"],
    ]
    return {"overload": [["", ""], *rows]}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and keep the results."""
    parser = parser_of("http.overload", __doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="default: 60")
    publish_option(parser)
    asked = parser.parse_args(arguments)
    pin_client()
    with tempfile.TemporaryDirectory() as folder:
        results = {"machine": machine(), **measured(asked.seconds, Path(folder))}
    conclude("overload", results, tables(results), publish=asked.publish)


if __name__ == "__main__":
    main()
