"""Bytes that a log takes for a decision: `python -m benchmarks.log_size [options] URL ...`

Plays the pet shop against each store, which must be empty: visitors of whom a tenth clicks on what
they see, and default rewards for the rest. Snapshots are not counted. Of Redis, whose
`stream-node-max-entries` must be 1, it counts the memory that its data take: MEMORY USAGE adds 240
bytes to each entry of a stream, by a rough guess at its index.

--decisions N   in place of 2,000
--rows          write rows of several sizes, and print what the store adds to each
"""

import asyncio
import sqlite3
from argparse import ArgumentParser
from random import Random

import psycopg
import redis.asyncio

from service.app import EXAMPLE, open_services
from service.definition.experiment import load_definition
from service.definition.reward_request import RewardRequest
from service.definition.select_request import SelectRequest
from service.http.services import Services
from service.log.stores import open_store
from service.log.stores.base import Append, DecisionRow
from service.offline.planning import MEASURED_ROW_BYTES
from service.settings import Settings
from service.tables import aligned

DECISIONS = 2_000
CLICK_RATE = 0.1
TOGETHER = 20
"""Visitors at a time."""

WAIT_S = 1.0


async def played(url: str, decisions: int) -> int:
    """Return the bytes that a store holds more after the decisions than before."""
    settings = Settings(store=url, trainer="off")
    async with open_services(settings) as services:
        await services.log.replicas.follow(0)
        name, definition = load_definition(EXAMPLE)
        reward = definition.reward.model_copy(update={"wait_seconds": WAIT_S})
        await services.admin.define(name, definition.model_copy(update={"reward": reward}), "")
        before = await held(url)
        rng = Random(1)
        for _ in range(decisions // TOGETHER):
            await asyncio.gather(*(visit(services, name, rng) for _ in range(TOGETHER)))
        await asyncio.sleep(2 * WAIT_S)
        while await services.expiry.expire_due():
            pass
        return await held(url) - before


async def row_overheads(url: str) -> list[int]:
    """Return the bytes that a store adds to rows of about each of ROW_BYTES: sizes differ, as those
    of one size may fill a page exactly or waste half of it."""
    added = []
    store, rng = open_store(url), Random(1)
    await store.open()
    await store.commit([Append("zooplus", b"", {})])
    for size in MEASURED_ROW_BYTES:
        before, content = await held(url), 0
        count = DECISIONS if size < 3_000 else DECISIONS // 4
        for number in range(count // TOGETHER):
            rows = []
            for _ in range(TOGETHER):  # ids grow with time, as ours, and are as long
                name = f"{size:06x}{number:06x}{rng.randbytes(5).hex()}"
                payload = rng.randbytes(round(size * rng.uniform(0.8, 1.2)))
                rows.append(DecisionRow("zooplus", name, "linucb", payload))
                content += len(payload)
            await store.commit(rows)
        added.append(round((await held(url) - before - content) / count))
    await store.close()
    return added


async def visit(services: Services, name: str, rng: Random) -> None:
    personas = ["new_puppy_parent", "cat_connoisseur", "budget_shopper", "fish_hobbyist"]
    unit = f"customer-{rng.randrange(1_000)}"
    request = SelectRequest({"persona": rng.choice(personas)}, name, unit=unit)
    answer = await services.selector.select(request)
    if rng.random() < CLICK_RATE:
        await services.settlements.reward(RewardRequest(answer.token, 1.0))


async def held(url: str) -> int:
    """Return the bytes of the records of a log: pages of a file, memory of keys, or relations."""
    match url.partition("://")[0]:
        case "sqlite":
            with sqlite3.connect(url.removeprefix("sqlite:///")) as file:
                pages, free, size = (
                    file.execute(f"PRAGMA {name}").fetchone()[0]
                    for name in ("page_count", "freelist_count", "page_size")
                )
            return int((pages - free) * size)
        case "redis":
            async with redis.asyncio.from_url(url) as server:
                stats = await server.memory_stats()
                index = stats.get("db.0", {}).get("overhead.hashtable.main", 0)
                keys = [key async for key in server.scan_iter("forage:{*")]
                snapshots = [
                    await server.memory_usage(key, samples=0)
                    for key in keys
                    if key.endswith((b":snapshots", b":origin"))
                ]
            return int(stats["dataset.bytes"] + index - sum(size or 0 for size in snapshots))
        case _:
            query = (
                "SELECT sum(pg_total_relation_size(relid))::bigint FROM pg_stat_user_tables "
                "WHERE relname LIKE 'forage\\_%' AND relname <> 'forage_snapshots'"
            )
            async with await psycopg.AsyncConnection.connect(url) as db:
                [size] = await (await db.execute(query)).fetchone() or [0]
            return int(size)


async def main() -> None:
    parser = ArgumentParser(prog="python -m benchmarks.log_size")
    parser.add_argument("--decisions", type=int, default=DECISIONS)
    parser.add_argument("--rows", action="store_true")
    parser.add_argument("urls", nargs="+", metavar="URL")
    options = parser.parse_args()
    if options.rows:
        for url in options.urls:
            print(
                url.partition("://")[0],
                *zip(MEASURED_ROW_BYTES, await row_overheads(url), strict=True),
            )
        return
    rows = [("store", "bytes a decision")]
    for url in options.urls:
        size = await played(url, options.decisions)
        rows.append((url.partition("://")[0], f"{size / options.decisions:,.0f}"))
    print("\n".join(aligned(rows)))


if __name__ == "__main__":
    asyncio.run(main())
