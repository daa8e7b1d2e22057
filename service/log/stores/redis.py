"""The shared store: Redis 7 streams, any number of service processes.

A commit is one round trip; for each experiment in it Redis runs one script, alone and whole. What
that leaves in Redis is told in `redis_scripts`.
"""

import asyncio
import logging
import math
import re
import secrets
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any, Self
from urllib.parse import urlsplit

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from service.errors import ConfigurationError, LogTooNew, StoreError, StoreUnavailable
from service.log.stores import redis_keeping as keeping
from service.log.stores import redis_restoring as restoring
from service.log.stores import redis_tables as tables
from service.log.stores.base import (
    CommitResult,
    Cut,
    Entry,
    Erasure,
    Instant,
    KeptRow,
    Part,
    Record,
    Removal,
)
from service.log.stores.redis_fitness import durability, unfit
from service.log.stores.redis_scripts import (
    EXPERIMENTS,
    LAYOUT,
    Command,
    commits,
    key_of,
    mark,
    outcomes,
)
from service.log.stores.store import START, Cursor, Keyed, Ordered, Store

logger = logging.getLogger(__name__)

CONNECTIONS = 16  # one commits and the others read; more would only queue inside Redis
WAITERS = 4
WAIT_MS = 1_000  # for replicas of Redis: below `Patience.reply_s`
REWRITE_TRIES, REWRITE_WAIT_S = 100, 0.1
SCAN_COUNT = 1_000  # keys looked at by one SCAN: a fraction of a millisecond


@dataclass(frozen=True, slots=True)
class Patience:
    """How long the store waits for Redis, in seconds.

    connect_s   a live host in the same region answers in milliseconds
    reply_s     above the fsync stalls of a busy disk, below the patience of a caller
    block_s     of one XREAD; its socket waits `reply_s` longer, or it would cut it short
    """

    connect_s: float = 0.5
    reply_s: float = 2.0
    block_s: float = 5.0


PATIENCE = Patience()


class RedisStore(Store):
    """replicas    of Redis that must hold a commit before it counts as durable
    restoring   it is loaded, or has been in part: nobody else opens it
    """

    shared = True

    def __init__(
        self,
        url: str,
        *,
        replicas: int = 0,
        restoring: bool = False,
        patience: Patience = PATIENCE,
    ) -> None:
        self.durability = durability({})
        self._replicas, self._patience = replicas, patience
        self._restoring, self._restore = restoring, secrets.token_hex(8)
        try:
            parts = urlsplit(url)
            self._name = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
            if parts.scheme != "unix":
                int(parts.path.strip("/") or 0)  # a name would silently be database 0
            self._client = _client(url, CONNECTIONS, patience.connect_s, patience.reply_s)
            waits_s = patience.block_s + patience.reply_s
            self._waiter = _client(url, WAITERS, patience.connect_s, waits_s)
        except ValueError:  # its text may hold a part of the password
            raise ConfigurationError(
                "FORAGE_STORE: not a Redis URL; use redis://[[user]:password@]host[:port][/db]"
            ) from None

    @classmethod
    def from_url(cls, url: str, *, replicas: int = 0) -> Self:
        return cls(url, replicas=replicas)

    async def open(self) -> None:
        try:
            await self._do("PING")
            info = await self._told("INFO")
            if reason := unfit(info):
                raise StoreError(f"{self._name}: {reason}")
            if not self._restoring:
                await restoring.check_whole(self._do, self._name)
            await self._do("SET", "forage:layout", LAYOUT, "NX")
            layout = int(await self._do("GET", "forage:layout"))
            if layout > LAYOUT:
                raise LogTooNew(
                    f"{self._name} has layout {layout}, written by a newer Forage; "
                    f"this one knows {LAYOUT}"
                )
            if layout < LAYOUT:
                await self._do("SET", "forage:layout", LAYOUT)
            self.durability = durability(await self._told("CONFIG GET", "append*"), self._replicas)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        await self._client.aclose()
        await self._waiter.aclose()

    async def experiments(self) -> list[str]:
        names = sorted(name.decode() for name in await self._do("SMEMBERS", EXPERIMENTS))
        exist = await self._all([("EXISTS", key_of(name, "events")) for name in names])
        return [name for name, exists in zip(names, exist, strict=True) if exists]

    async def commit(self, entries: Sequence[Entry]) -> list[CommitResult]:
        if not entries:
            await self._keep([("SET", "forage:probe", 1)])  # a write, of what nobody reads
            return []
        batch: dict[str, list[Entry]] = {}
        for entry in entries:
            batch.setdefault(entry.experiment, []).append(entry)
        # The names first: one without an event is skipped, an event without one would be lost.
        _, *replies = await self._keep([("SADD", EXPERIMENTS, *batch), *commits(batch)])
        decided = {
            name: outcomes(batch[name], reply) for name, reply in zip(batch, replies, strict=True)
        }
        return [next(decided[entry.experiment]) for entry in entries]

    async def wait(self, positions: Mapping[str, int], seconds: float) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        streams = [key_of(experiment, "events") for experiment in positions]
        after = [f"0-{position}" for position in positions.values()]
        if not positions:
            await asyncio.sleep(seconds)
        while positions and (left := deadline - loop.time()) > 0:
            block_ms = math.ceil(1000 * min(left, self._patience.block_s))
            with self._ours():
                if await self._waiter.execute_command(
                    "XREAD", "COUNT", 1, "BLOCK", block_ms, "STREAMS", *streams, *after
                ):
                    return

    async def due(self, experiment: str, now: float, limit: int) -> list[bytes]:
        due = await self._do(
            "ZRANGE", key_of(experiment, "due"), "-inf", now, "BYSCORE", "LIMIT", 0, limit
        )
        return list((await self._decisions(experiment, [one.decode() for one in due])).values())

    async def page(
        self, experiment: str, table: Ordered, after: Cursor, limit: int
    ) -> tuple[list[Any], Cursor]:
        match table:
            case "events":
                return await self._events(experiment, int(after), limit), START
            case "decisions":
                found = await self._range(experiment, "decisions", int(after), limit)
                return [
                    KeptRow(number, fields.get(b"i", b"").decode(), fields[b"p"])
                    for number, fields in found
                ], START
            case "marks":
                return await tables.list_marks(self._do, self._all, experiment, after, limit)
            case "snapshots":
                replies = await self._all(tables.snapshot_commands(experiment))
                return tables.snapshots(*replies), START
            case "blobs":
                return await tables.blob_keys(self._do, experiment), START

    async def _events(self, experiment: str, after: int, limit: int) -> list[Record]:
        found = await self._range(experiment, "events", after, limit)
        if found and found[-1][0] != after + len(found):
            stones = await self._do(*tables.stones_between(experiment, after, found[-1][0]))
            if stones := stones[:limit]:
                payloads = await self._do("HMGET", key_of(experiment, "tombstones"), *stones)
                found = tables.merge(found, stones, payloads, limit)
        return [Record(position, fields[b"p"]) for position, fields in found]

    async def get(self, experiment: str, table: Keyed, keys: Sequence[str]) -> dict[str, Any]:
        if not keys:
            return {}
        if table == "decisions":
            return await self._decisions(experiment, keys)
        found = await self._do("MGET", *(tables.place_of(experiment, table, key) for key in keys))
        known = {key: value for key, value in zip(keys, found, strict=True) if value is not None}
        if table == "marks":
            return {identity: mark(text.decode()) for identity, text in known.items()}
        return known

    async def describe(self, experiment: str, *, whole: bool) -> Instant:
        commands = tables.describe_commands(experiment, whole=whole)
        return tables.described(await self._all(commands, transaction=True))

    async def put(self, experiment: str, part: Part) -> None:
        if part.secret is not None:
            if not await self._do("SET", "forage:secret", part.secret, "NX"):
                raise StoreError("the store has a secret of its own already")
            return
        commands = list(tables.written(experiment, part))
        if self._restoring:
            await self._all([restoring.HOLD, *commands])
        elif part.marks:
            await self._keep(commands)
        elif commands:
            await self._all(commands)
        if part.rows:  # the id of an entry is Redis's to say
            at = await self._all(tables.added_rows(experiment, part.rows))
            pairs = zip((row.id for row in part.rows), at, strict=True)
            await self._do("HSET", key_of(experiment, "decision_at"), *chain.from_iterable(pairs))

    async def remove(self, experiment: str, what: Removal, limit: int) -> int:
        if isinstance(what, Cut):
            count: int = await self._do(*keeping.trim(experiment, what, limit))
            return count
        if isinstance(what, Erasure):
            await self._erase(what)
        else:
            await self._scrub()
        return 0

    async def _erase(self, erasure: Erasure) -> None:
        await self._keep(list(keeping.erasures(erasure)))
        if not erasure.forget:
            return
        async for marks in self._marks_of(erasure.experiment):
            if gone := keeping.begins_with(marks, erasure.forget):
                keys = [key_of(erasure.experiment, "mark", identity) for identity in gone]
                await self._keep([("UNLINK", *keys)])

    async def _scrub(self) -> None:
        """The append-only file is written anew, in the background. A node of a stream keeps what
        was deleted from it until all of the node is: nodes of one entry keep nothing."""
        nodes = (await self._told("CONFIG GET", "stream-node-max-entries")).values()
        if list(nodes) != ["1"]:
            logger.warning(
                "%s: bytes of what was erased stay beside what was not; set "
                "stream-node-max-entries 1 in its configuration",
                self._name,
            )
        if (await self._told("CONFIG GET", "appendonly")).get("appendonly") != "yes":
            return
        for _ in range(REWRITE_TRIES):  # one that is under way began before the erasure
            if not (await self._told("INFO", "persistence")).get("aof_rewrite_in_progress"):
                await self._told("BGREWRITEAOF")
                return
            await asyncio.sleep(REWRITE_WAIT_S)
        raise StoreUnavailable(f"{self._name}: its append-only file is being written anew")

    async def _marks_of(self, experiment: str) -> AsyncIterator[list[str]]:
        """Identities of all marks, a page at a time; none that is there throughout is left out."""
        prefix, cursor = key_of(experiment, "mark", ""), None
        pattern = re.sub(r"([][*?\\^])", r"\\\1", prefix) + "*"
        while cursor != 0:
            cursor, keys = await self._do(
                "SCAN", cursor or 0, "MATCH", pattern, "COUNT", SCAN_COUNT
            )
            cursor = int(cursor)
            yield [key.decode().removeprefix(prefix) for key in keys]

    async def present(self, process: str, doing: str, seconds: float) -> dict[str, str]:
        return keeping.doing(await self._do(*keeping.present(process, doing, seconds)))

    # -- a restore -----------------------------------------------------------------------------

    async def begin_restore(self) -> None:
        """Keep everybody out; what a restore that was cut off has left goes. Raises
        ConfigurationError where the database holds an experiment."""
        await restoring.begin(self._do, self._restore, self._name)

    async def end_restore(self) -> None:
        """Let others in."""
        await restoring.end(self._do, self._restore, self._name)

    async def leave_restore(self) -> None:
        """Let another restore begin at once; nothing where this one has ended."""
        await restoring.leave(self._do, self._restore)

    # ------------------------------------------------------------------------------------------

    async def _range(
        self, experiment: str, stream: str, after: int, limit: int
    ) -> list[tuple[int, dict[bytes, bytes]]]:
        """Entries of a stream: number and fields."""
        key = key_of(experiment, stream)
        found = await self._do("XRANGE", key, f"(0-{after}", "+", "COUNT", limit)
        return [(int(entry.partition(b"-")[2]), fields) for entry, fields in found]

    async def _decisions(self, experiment: str, ids: Sequence[str]) -> dict[str, bytes]:
        if not ids:
            return {}
        rows = await self._do("HMGET", key_of(experiment, "decision_at"), *ids)
        known = [(one, at) for one, at in zip(ids, rows, strict=True) if at]
        stream = key_of(experiment, "decisions")
        found = await self._all([("XRANGE", stream, at, at) for _, at in known])
        entries = zip(known, found, strict=True)
        return {one: entry[1][b"p"] for (one, _), of_one in entries for entry in of_one}

    async def _told(self, *command: str) -> dict[str, Any]:
        """What an administrator's command says, or nothing where it is refused (hosted Redis)."""
        with self._ours():
            try:
                told: dict[str, Any] = await self._client.execute_command(*command)
            except ResponseError:
                return {}
        return told

    async def _do(self, *command: Any) -> Any:
        with self._ours():
            return await self._client.execute_command(*command)

    async def _keep(self, commands: Sequence[Command]) -> list[Any]:
        """Writes, once as many replicas of Redis hold them as have to."""
        if not self._replicas:
            return await self._all(commands)
        wait = ("WAIT", self._replicas, WAIT_MS)
        *replies, held = await self._all([*commands, wait])
        if held < self._replicas:
            raise StoreUnavailable(
                f"{self._name}: {held} of {self._replicas} replicas of Redis hold the last commit"
            )
        return replies

    async def _all(self, commands: Sequence[Command], *, transaction: bool = False) -> list[Any]:
        """One round trip, in order. If any is refused, they all count as failed."""
        pipeline = self._client.pipeline(transaction=transaction)
        for command in commands:
            pipeline.execute_command(*command)
        with self._ours():
            # not raise_on_error: its message repeats the command, payload included
            replies: list[Any] = await pipeline.execute(raise_on_error=False)
            for reply in replies:
                if isinstance(reply, Exception):
                    raise reply
        return replies

    @contextmanager
    def _ours(self) -> Iterator[None]:
        """Down, slow, out of memory, read-only, loading: to a caller all are the same."""
        try:
            yield
        except (RedisConnectionError, RedisTimeoutError, ResponseError) as error:
            raise StoreUnavailable(f"{self._name}: {error}") from error
        except RuntimeError as error:
            if "handler is closed" not in str(error):  # uvloop: it was lost before the write
                raise
            raise StoreUnavailable(f"{self._name}: the connection was lost") from error


def _client(url: str, connections: int, connect_s: float, reply_s: float) -> Any:
    """A `Redis`; Any, for its execute_command has no types."""
    return Redis.from_pool(
        BlockingConnectionPool.from_url(
            url,
            max_connections=connections,
            timeout=connect_s,
            socket_connect_timeout=connect_s,
            socket_timeout=reply_s,
            # a lost reply may belong to a done append: only a caller with identities may repeat it
            retry=Retry(NoBackoff(), 0),
            protocol=2,
        )
    )
