"""The start of a service, and the delay of a second replica: python -m benchmarks.recovery.

start  a log of 100,000 rewards without a snapshot: from `forage serve` to the first 200 of /readyz
lag    two services on one Redis, one of which gets 1,000 rewards a second: from its answer until
       the other has folded them, seen by polling the other's /readyz every few milliseconds
"""

import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Final

import httpx
import numpy as np

from benchmarks.tables import Cells, Json, conclude, parser_of, publish_option
from service.app import EXAMPLE
from service.definition.experiment import load_definition
from service.definition.features import Schema
from service.log.stores import open_store
from service.log.stores.base import Append
from service.state.events import ExperimentDefined, Rewarded, Settled, encode_event
from tests.support.redis_server import redis_server
from tests.support.service_process import service

CONTEXT: Final = {"persona": "fish_hobbyist"}
QUIET: Final = {"FORAGE_TRAINER": "off", "FORAGE_LOG_LEVEL": "error"}
POLICIES: Final = ("linucb", "lints", "linucb_disjoint", "popularity")
PAGE: Final = 1_000  # events a commit
BATCH: Final = 50  # rewards a request
POLL_S: Final = 0.002


async def write_log(url: str, events: int) -> None:
    """Write a log of the Zooplus example with this many rewards, for the policies in turn."""
    name, definition = load_definition(EXAMPLE)
    schema, rng = Schema(definition.features), np.random.default_rng(1)
    defined = ExperimentDefined(
        at=0.0, revision=1, schema_version=1, definition=definition.model_dump(mode="json")
    )
    context = schema.encode_context(CONTEXT).tolist()
    arms = {arm: schema.encode_arm(own).tolist() for arm, own in definition.arms.items()}
    names = list(arms)

    def rewarded(number: int) -> Append:
        arm = names[rng.integers(len(names))]
        event = Rewarded(
            at=0.0, decision=f"{number:022d}", policy=POLICIES[number % len(POLICIES)],
            schema_version=1,
            settled=[Settled(arm, float(rng.random() < 0.3), [*context, *arms[arm]])],
        )  # fmt: skip
        return Append(name, encode_event(event), {f"{number}": ""})

    store = open_store(url)
    await store.open()
    await store.secret()  # as a service does before it writes
    await store.commit([Append(name, encode_event(defined), {"experiment/1": ""})])
    for start in range(0, events, PAGE):
        await store.commit([rewarded(n) for n in range(start, min(start + PAGE, events))])
    await store.close()


def start_seconds(folder: Path, events: int) -> float:
    """Return the seconds from `forage serve` to readiness, with that many rewards to fold."""
    url = f"sqlite:///{folder / 'log.db'}"
    asyncio.run(write_log(url, events))
    start = perf_counter()
    with service(folder, url, **QUIET) as serving:
        seconds = perf_counter() - start
        folded = max(serving.get("/readyz")["positions"].values()) - 1
    assert folded == events, folded
    return seconds


async def position(client: httpx.AsyncClient) -> int:
    """Return the log position that a service has folded up to."""
    return int(max((await client.get("/readyz")).json()["positions"].values()))


async def tokens(client: httpx.AsyncClient, count: int) -> list[str]:
    """Return tokens of decisions that await their reward."""
    found: list[str] = []
    while len(found) < count:
        requests = [{"context": CONTEXT, "policy": "linucb"}] * 200
        answer = (await client.post("/select/batch", json={"requests": requests})).json()
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


def tables(results: Json) -> dict[str, Cells]:
    """Return the table of docs/performance.md."""
    lag = results["lag_ms"]
    cells = [
        ["measured", "time"],
        [f"start with {results['events']:,} rewards to fold", f"{results['start_s']:.1f} s"],
        [f"lag of a replica at {results['rate']:,.0f} rewards a second",
         f"p50 {lag['p50']:.0f} ms, p99 {lag['p99']:.0f} ms, longest {lag['max']:.0f} ms"],
    ]  # fmt: skip
    return {"recovery": cells}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print and keep."""
    parser = parser_of("recovery", __doc__)
    parser.add_argument("--events", type=int, default=100_000, help="default: 100000")
    parser.add_argument("--rate", type=float, default=1_000.0, help="rewards a second; 1000")
    parser.add_argument("--seconds", type=float, default=20.0, help="of rewards; default: 20")
    publish_option(parser)
    asked = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as place, redis_server(folder := Path(place)) as redis:
        start_s = start_seconds(folder, asked.events)
        with service(folder, redis.url, **QUIET) as a, service(folder, redis.url, **QUIET) as b:
            found = asyncio.run(lags(a.url, b.url, asked.rate, asked.seconds))
    p50, p99, longest = (round(1e3 * float(np.quantile(found, q)), 1) for q in (0.5, 0.99, 1.0))
    results = {
        "events": asked.events,
        "start_s": round(start_s, 2),
        "rate": asked.rate,
        "lag_ms": {"p50": p50, "p99": p99, "max": longest},
    }
    conclude("recovery", results, tables(results), publish=asked.publish)


if __name__ == "__main__":
    main()
