"""Redis goes away under load: python -m benchmarks.outage [--seconds S] [--frozen].

Starts a redis-server and a service of its own, asks for decisions at a fixed rate (open loop: a
request's time counts from when it was due), kills Redis or freezes it, and brings it back. Writes
out/benchmarks/outage-killed.json or outage-frozen.json.
"""

import argparse
import asyncio
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import httpx
import numpy as np

from benchmarks.tables import OUT, keep
from tests.support.redis_server import RedisServer, redis_server
from tests.support.service_process import service

CONTEXT = {"persona": "fish_hobbyist"}
START_S = 20.0
QUIET = {"FORAGE_TRAINER": "off", "FORAGE_LOG_LEVEL": "error"}
POLL_S = 0.02


@contextmanager
def dead(redis: RedisServer) -> Iterator[None]:
    """Killed, until the end of the block."""
    redis.kill()
    try:
        yield
    finally:
        redis.start()


@dataclass
class Seen:
    """Seconds of selects while Redis was there and while it was not; of refused rewards."""

    before: list[float] = field(default_factory=list)
    during: list[float] = field(default_factory=list)
    unlogged: list[str] = field(default_factory=list)
    refused: list[float] = field(default_factory=list)
    statuses: set[int] = field(default_factory=set)
    retry_after: bool = True


async def select(client: httpx.AsyncClient, due: float, times: list[float], seen: Seen) -> None:
    answer = await client.post("/select", json={"context": CONTEXT, "policy": "linucb"})
    times.append(perf_counter() - due)
    answer.raise_for_status()
    if not answer.json()["logged"]:
        seen.unlogged.append(answer.json()["id"])


async def asked(
    client: httpx.AsyncClient, rate: float, seconds: float, times: list[float], seen: Seen
) -> None:
    """Selects at a rate, each when it is due."""
    start, pending = perf_counter(), []
    for number in range(int(rate * seconds)):
        due = start + number / rate
        await asyncio.sleep(max(0.0, due - perf_counter()))
        pending.append(asyncio.create_task(select(client, due, times, seen)))
    await asyncio.gather(*pending)


async def refused(client: httpx.AsyncClient, token: str, seconds: float, seen: Seen) -> None:
    """A reward five times a second."""
    end = perf_counter() + seconds
    while perf_counter() < end:
        start = perf_counter()
        answer = await client.post("/reward", json={"decision_id": token, "reward": 1.0})
        seen.refused.append(perf_counter() - start)
        seen.statuses.add(answer.status_code)
        seen.retry_after &= "retry-after" in answer.headers
        await asyncio.sleep(0.2)


async def ready(client: httpx.AsyncClient) -> float:
    """Seconds until /readyz says so."""
    start = perf_counter()
    while perf_counter() < start + START_S:
        try:
            if (await client.get("/readyz")).status_code == 200:
                return perf_counter() - start
        except httpx.TransportError:
            pass
        await asyncio.sleep(POLL_S)
    raise RuntimeError("the service does not get ready")


async def drill(redis: RedisServer, url: str, rate: float, seconds: float, *, frozen: bool) -> Seen:
    """The whole course; figures are in what is returned and in `report`."""
    seen = Seen()
    limits = httpx.Limits(max_connections=200)
    async with httpx.AsyncClient(base_url=url, timeout=30.0, limits=limits) as client:
        await ready(client)
        first = await client.post("/select", json={"context": CONTEXT, "policy": "linucb"})
        await asked(client, rate, 5.0, seen.before, seen)
        seen.unlogged.clear()
        with redis.frozen() if frozen else dead(redis):
            await asyncio.gather(
                asked(client, rate, seconds, seen.during, seen),
                refused(client, first.json()["decision_id"], seconds, seen),
            )
        cleared = await ready(client)
        found = [await client.get(f"/decisions/{one}") for one in seen.unlogged]
    status = [answer.status_code for answer in found]
    report(seen, cleared, status, rate=rate, seconds=seconds, frozen=frozen)
    return seen


def milliseconds(times: list[float], share: float) -> float:
    return round(1e3 * float(np.quantile(times, share)), 1)


def report(seen: Seen, cleared: float, status: list[int], **asked: Any) -> None:
    """Print it, and keep it."""
    figures = {
        **asked,
        "selects_before": len(seen.before),
        "select_p99_ms_before": milliseconds(seen.before, 0.99),
        "selects_during": len(seen.during),
        "select_p50_ms_during": milliseconds(seen.during, 0.5),
        "select_p99_ms_during": milliseconds(seen.during, 0.99),
        "select_max_ms_during": milliseconds(seen.during, 1.0),
        "unlogged": len(seen.unlogged),
        "unlogged_found_in_the_log_later": status.count(200),
        "reward_statuses": sorted(seen.statuses),
        "reward_retry_after": seen.retry_after,
        "reward_p99_ms": milliseconds(seen.refused, 0.99),
        "reward_max_ms": milliseconds(seen.refused, 1.0),
        "seconds_until_ready": round(cleared, 2),
    }
    for name, value in figures.items():
        print(f"{name:34} {value}")
    path = OUT / f"outage-{'frozen' if asked['frozen'] else 'killed'}.json"
    keep(figures, path)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.outage", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="of the outage (default: 60)")
    parser.add_argument("--rate", type=float, default=100.0, help="selects a second (default: 100)")
    parser.add_argument("--frozen", action="store_true", help="Redis hangs instead of dying")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as place,
        redis_server(folder := Path(place)) as redis,
        service(folder, redis.url, **QUIET) as serving,
    ):
        asyncio.run(drill(redis, serving.url, options.rate, options.seconds, frozen=options.frozen))


if __name__ == "__main__":
    main()
