"""What settling a decision costs, and how many a store takes: python -m benchmarks.settling
[--kinds A,B] [--stores sqlite,redis].

The constants of `service/offline/scaling.py`: processor time of a reward and of a default reward
in one service on SQLite, without the wire, 64 together, in the experiment of `benchmarks.http` with
one policy; and settled decisions a second that one process commits a hundred at a time: a row each,
twenty rewards, and one event of eighty defaults. Each figure is the best of the rounds.
"""

import asyncio
import os
import random
import tempfile
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, Final

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # read when numpy is imported

from benchmarks.following import KINDS, definition_of
from benchmarks.tables import conclude, parser_of
from service.app import open_services
from service.definition.experiment import Definition
from service.definition.reward_request import RewardRequest
from service.definition.select_request import RequestedValues, SelectRequest
from service.http.services import Services
from service.log.stores import open_store
from service.log.stores.base import Append, DecisionRow
from service.settings import Settings
from tests.support.postgres_server import found, postgres_schema
from tests.support.redis_server import redis_server

TOGETHER: Final = 64
ROUNDS: Final = 8
ROW, EVENT = bytes(450), bytes(270)
COMMIT: Final = 100
REWARDS: Final = 20
BLOCK = bytes(173 * (COMMIT - REWARDS))  # what a default takes of an event


async def settle(services: Services, rng: random.Random, *, rewarded: bool) -> float:
    """Settle decisions together. Return the microseconds of one."""
    contexts: list[RequestedValues] = [
        {"hour": rng.randrange(24), "basket": rng.uniform(0, 90), "visits": 3, "on_phone": True}
        for _ in range(TOGETHER)
    ]
    made = await asyncio.gather(
        *(services.selector.select(SelectRequest(one, "bench")) for one in contexts)
    )
    state, start = services.log.replicas.by_name["bench"].state, process_time()
    if rewarded:
        await asyncio.gather(
            *(services.settlements.reward(RewardRequest(one.token, 1.0)) for one in made)
        )
    else:
        await services.expiry.expire(state, *(one.decision for one in made))
    return 1e6 * (process_time() - start) / TOGETHER


async def settling(kind: str, place: Path) -> dict[str, float]:
    """Return microseconds of a reward and of a default."""
    store = open_store(f"sqlite:///{place}/{kind}.db")
    settings = Settings(store="memory://", trainer="off", token_keys=[bytes(32)])
    async with open_services(settings, store, rng=random.Random(2)) as services:
        definition = Definition.model_validate(definition_of(kind))
        await services.admin.define("bench", definition, "")
        rng = random.Random(1)
        for number in range(8):  # scalings are measured by then
            await settle(services, rng, rewarded=number % 2 == 0)
        return {
            name: round(
                min([await settle(services, rng, rewarded=rewarded) for _ in range(ROUNDS)]), 1
            )
            for name, rewarded in (("reward", True), ("default", False))
        }


async def capacity(url: str) -> int:
    """Return settled decisions a second."""
    store, best = open_store(url), float("inf")
    await store.open()
    for number in range(10 * ROUNDS):
        names = [f"{number:08}decision{place:06}" for place in range(COMMIT)]
        entries: list[Append | DecisionRow] = [
            DecisionRow("bench", name, "p", ROW, 2e9) for name in names
        ]
        blocks = [(EVENT, [name]) for name in names[:REWARDS]] + [(BLOCK, names[REWARDS:])]
        for event, settled in blocks:
            marks = {f"{name}#a": "1" for name in settled}
            entries.append(Append("bench", event, marks, settles=settled, keep_until=3e9))
        start = perf_counter()
        await store.commit(entries)
        best = min(best, perf_counter() - start)
    await store.close()
    return round(COMMIT / best)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = parser_of("settling", __doc__)
    parser.add_argument("--kinds", default="linucb,lints,neural_linear_ts,auto")
    parser.add_argument("--stores", default="sqlite,redis,postgresql")
    asked = parser.parse_args(arguments)
    kinds: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as place, redis_server(Path(place)) as redis:
        for kind in asked.kinds.split(","):
            assert kind in KINDS
            kinds[kind] = asyncio.run(settling(kind, Path(place)))
        stores = {"sqlite": f"sqlite:///{place}/capacity.db", "redis": redis.url}
        wanted = asked.stores.split(",")
        measured = {
            name: asyncio.run(capacity(url)) for name, url in stores.items() if name in wanted
        }
        if "postgresql" in wanted and found():
            with postgres_schema() as schema:
                measured["postgresql"] = asyncio.run(capacity(schema.url))
    cells = [["policy", "reward, µs", "default, µs"]]
    cells += [[kind, str(own["reward"]), str(own["default"])] for kind, own in kinds.items()]
    capacities = [["store", "settled a second"], *([name, str(n)] for name, n in measured.items())]
    results = {"kinds": kinds, "stores": measured}
    conclude("settling", results, {"settling": cells, "stores": capacities}, publish=False)


if __name__ == "__main__":
    main()
