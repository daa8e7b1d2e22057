"""The delay of a second replica, and the start of a service: python -m benchmarks.recovery.

lag    two services on one Redis, one of which gets 1,000 rewards a second: from its answer until
       the other has folded them, seen by polling the other's /readyz every few milliseconds
start  the other is killed and started again without a snapshot: from `forage serve` to the first
       200 of /readyz, with all of these rewards to fold; and the processor time of that
"""

import asyncio
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Final

import httpx
import numpy as np

from benchmarks.tables import Cells, Json, conclude, parser_of, publish_option
from tests.support.redis_server import redis_server
from tests.support.service_process import service

ASK: Final = {"context": {"persona": "fish_hobbyist"}, "policy": "linucb"}
SETTINGS: Final = {
    "FORAGE_TRAINER": "off",
    "FORAGE_LOG_LEVEL": "error",
    "FORAGE_SNAPSHOT_EVERY_EVENTS": "1000000000",
}
BATCH: Final = 50  # rewards a request
POLL_S: Final = 0.002


async def position(client: httpx.AsyncClient) -> int:
    """Return the log position that a service has folded up to."""
    return int(max((await client.get("/readyz")).json()["positions"].values()))


async def tokens(client: httpx.AsyncClient, count: int) -> list[str]:
    """Return tokens of decisions that await their reward."""
    found: list[str] = []
    while len(found) < count:
        answer = (await client.post("/select/batch", json={"requests": [ASK] * 200})).json()
        found += [each["answer"]["decision_id"] for each in answer["results"]]
    return found[:count]


async def lags(first: str, second: str, rate: float, seconds: float) -> list[float]:
    """Return seconds for each batch: from its answer until the second service has folded it."""
    async with (
        httpx.AsyncClient(base_url=first, timeout=30.0) as own,
        httpx.AsyncClient(base_url=second, timeout=30.0) as other,
    ):
        waiting = await tokens(own, int(rate * seconds))
        begin = await position(own)
        answered: list[tuple[int, float]] = []
        found: list[float] = []

        async def give() -> None:
            start = perf_counter()
            for number in range(0, len(waiting), BATCH):
                await asyncio.sleep(max(0.0, start + number / rate - perf_counter()))
                part = waiting[number : number + BATCH]
                body = {"requests": [{"decision_id": each, "reward": 1.0} for each in part]}
                (await own.post("/reward/batch", json=body)).raise_for_status()
                answered.append((begin + number + len(part), perf_counter()))

        giving = asyncio.create_task(give())
        while not giving.done() or len(found) < len(answered):
            reached, now = await position(other), perf_counter()
            while len(found) < len(answered) and answered[len(found)][0] <= reached:
                found.append(max(0.0, now - answered[len(found)][1]))
            await asyncio.sleep(POLL_S)
        await giving
    return found


def processor_seconds(pid: int) -> float:
    """Return the processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def tables(results: Json) -> dict[str, Cells]:
    """Return the table of docs/performance.md."""
    rate, rewards, lag = results["rate"], results["rewards"], results["lag_ms"]
    cells = [
        ["", "wall clock", "processor"],
        [f"lag of a replica at {rate:,.0f} rewards a second",
         f"p50 {lag['p50']:.0f} ms, p99 {lag['p99']:.0f} ms, longest {lag['max']:.0f} ms", ""],
        [f"start with {rewards:,} rewards to fold",
         f"{results['start_s']:.1f} s", f"{results['start_processor_s']:.1f} s"],
    ]  # fmt: skip
    return {"recovery": cells}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print and keep."""
    parser = parser_of("recovery", __doc__)
    parser.add_argument("--rate", type=float, default=1_000.0, help="rewards a second; 1000")
    parser.add_argument("--seconds", type=float, default=60.0, help="of rewards; default: 60")
    publish_option(parser)
    asked = parser.parse_args(arguments)
    with (
        tempfile.TemporaryDirectory() as place,
        redis_server(folder := Path(place)) as redis,
        service(folder, redis.url, **SETTINGS) as first,
        service(folder, redis.url, **SETTINGS) as second,
    ):
        found = asyncio.run(lags(first.url, second.url, asked.rate, asked.seconds))
        second.kill()
        begin = perf_counter()
        second.start()
        start_s, processor_s = perf_counter() - begin, processor_seconds(second.pid)
    p50, p99, longest = (round(1e3 * float(np.quantile(found, q)), 1) for q in (0.5, 0.99, 1.0))
    results = {
        "rate": asked.rate,
        "rewards": BATCH * len(found),
        "lag_ms": {"p50": p50, "p99": p99, "max": longest},
        "start_s": round(start_s, 2),
        "start_processor_s": round(processor_s, 2),
    }
    conclude("recovery", results, tables(results), publish=asked.publish)


if __name__ == "__main__":
    main()
