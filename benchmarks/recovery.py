"""How long a start takes, and how far a second replica is behind: python -m benchmarks.recovery.

tail   a log of 100,000 rewards without a snapshot: from `forage serve` to the first 200 of /readyz
lag    two services on one Redis, 1,000 rewards a second given to one: from its answer to the other
       having folded them, by asking the other's /readyz every few milliseconds

Writes out/benchmarks/recovery.json.
"""

import argparse
import asyncio
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

import httpx
import numpy as np

from benchmarks.outage import CONTEXT, QUIET, milliseconds
from benchmarks.tables import OUT, keep
from service.app import EXAMPLE
from service.definition.experiment import load_definition
from service.definition.features import Schema
from service.log.stores import open_store
from service.log.stores.base import Append
from service.state.events import ExperimentDefined, Rewarded, Settled, encode_event
from tests.support.redis_server import redis_server
from tests.support.service_process import service

PAGE = 1_000
BATCH = 50  # rewards a request
POLICIES = ("linucb", "lints", "linucb_disjoint", "popularity")


async def written(url: str, events: int) -> None:
    """A log of the Zooplus example with so many rewards, of policies in turn."""
    name, definition = load_definition(EXAMPLE)
    schema = Schema(definition.features)
    defined = ExperimentDefined(
        at=0.0, revision=1, schema_version=1, definition=definition.model_dump(mode="json")
    )
    store, rng = open_store(url), np.random.default_rng(1)
    await store.open()
    await store.secret()  # as a service does before it writes
    await store.commit([Append(name, encode_event(defined), {"experiment/1": ""})])
    arms = {arm: schema.encode_arm(features) for arm, features in definition.arms.items()}
    context = schema.encode_context(CONTEXT)
    rows = {arm: [*context.tolist(), *x.tolist()] for arm, x in arms.items()}
    names = list(arms)
    for start in range(0, events, PAGE):
        batch = []
        for number in range(start, min(start + PAGE, events)):
            arm = names[rng.integers(len(names))]
            event = Rewarded(
                at=0.0,
                decision=f"{number:022d}",
                policy=POLICIES[number % len(POLICIES)],
                schema_version=1,
                settled=[Settled(arm, float(rng.random() < 0.3), rows[arm])],
            )
            batch.append(Append(name, encode_event(event), {f"{number}": ""}))
        await store.commit(batch)
    await store.close()


async def tail(folder: Path, events: int) -> dict[str, Any]:
    url = f"sqlite:///{folder / 'tail.db'}"
    await written(url, events)
    start = perf_counter()
    with service(folder, url, **QUIET) as serving:
        seconds = perf_counter() - start
        positions = serving.get("/readyz")["positions"]
    return {
        "tail_events": events,
        "tail_folded": max(positions.values()) - 1,
        "tail_seconds_to_ready": round(seconds, 2),
    }


async def position(client: httpx.AsyncClient) -> int:
    return int(max((await client.get("/readyz")).json()["positions"].values()))


async def tokens(client: httpx.AsyncClient, count: int) -> list[str]:
    found: list[str] = []
    while len(found) < count:
        requests = [{"context": CONTEXT, "policy": "linucb"}] * 200
        answer = (await client.post("/select/batch", json={"requests": requests})).json()
        found += [each["answer"]["decision_id"] for each in answer["results"]]
    return found[:count]


async def lag(folder: Path, store: str, rate: float, seconds: float) -> dict[str, Any]:
    """Times are taken a batch of rewards: from the answer to the last of them being folded."""
    with service(folder, store, **QUIET) as first, service(folder, store, **QUIET) as second:
        async with (
            httpx.AsyncClient(base_url=first.url, timeout=30.0) as own,
            httpx.AsyncClient(base_url=second.url, timeout=30.0) as other,
        ):
            waiting = await tokens(own, int(rate * seconds))
            begin = await position(own)
            answered: list[tuple[int, float]] = []
            behind: list[float] = []

            async def give() -> None:
                start = perf_counter()
                for number in range(0, len(waiting), BATCH):
                    await asyncio.sleep(max(0.0, start + number / rate - perf_counter()))
                    part = waiting[number : number + BATCH]
                    body = {"requests": [{"decision_id": each, "reward": 1.0} for each in part]}
                    await own.post("/reward/batch", json=body)
                    answered.append((begin + number + len(part), perf_counter()))

            giving = asyncio.create_task(give())
            while not giving.done() or len(behind) < len(answered):
                reached, now = await position(other), perf_counter()
                while len(behind) < len(answered) and answered[len(behind)][0] <= reached:
                    behind.append(max(0.0, now - answered[len(behind)][1]))
                await asyncio.sleep(0.002)
            took = answered[-1][1] - answered[0][1]
    return {
        "lag_rewards_a_second": round(BATCH * (len(answered) - 1) / took),
        "lag_batches": len(behind),
        "lag_p50_ms": milliseconds(behind, 0.5),
        "lag_p99_ms": milliseconds(behind, 0.99),
        "lag_max_ms": milliseconds(behind, 1.0),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recovery", description=__doc__)
    parser.add_argument("--events", type=int, default=100_000, help="of the tail")
    parser.add_argument("--rate", type=float, default=1_000.0, help="rewards a second")
    parser.add_argument("--seconds", type=float, default=20.0, help="of rewards")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as place, redis_server(folder := Path(place)) as redis:
        figures = asyncio.run(tail(folder, asked.events))
        figures |= asyncio.run(lag(folder, redis.url, asked.rate, asked.seconds))
    for name, value in figures.items():
        print(f"{name:26} {value}")
    keep(figures, OUT / "recovery.json")


if __name__ == "__main__":
    main()
