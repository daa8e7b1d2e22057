"""The shared store on PostgreSQL: any number of service processes.

A commit is one transaction in two round trips: the first locks the rows of its experiments and
reads what its entries depend on, the second writes them. The lock orders the commits of an
experiment, so positions and row numbers are dense and grow as a reader sees them.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import count, takewhile
from typing import Self

from service.clock import SYSTEM, Clock
from service.errors import StoreError, StoreUnavailable
from service.log.stores.base import (
    SAMPLE,
    Append,
    Blob,
    CommitResult,
    DecisionRow,
    Entry,
    Erasure,
    Item,
    KeptMark,
    KeptRow,
    LogEnd,
    LogSummary,
    Mark,
    Marks,
    Published,
    ReaderPosition,
    ReaderState,
    Record,
    Removal,
    Removed,
    Secret,
    Snapshot,
    StoreSize,
    Trim,
    expect_origin,
    shared_out,
)
from service.log.stores.batch import EntryName, Transaction
from service.log.stores.postgres_commit import (
    KEPT_ROWS,
    KNOWN_MARKS,
    PUT_MARKS,
    SqlRow,
    ask,
    columns,
    lock,
    run,
    told,
    write,
)
from service.log.stores.postgres_connection import (
    Connection,
    PostgresConnections,
    PostgresTimeouts,
    our_errors,
)
from service.log.stores.store import (
    RECONNECT_S,
    SECRET,
    START,
    Cursor,
    Keyed,
    KeyedValues,
    Ordered,
    Page,
    Store,
)

POSTGRES_TIMEOUTS = PostgresTimeouts()
POSTGRES_POLL_S = 0.5
"""Seconds between two looks at a log whose server tells nothing: its notices may be lost."""
POOLED_POLL_S = 0.1
"""The same where no notices come, since a pooler is in between and nothing leads around it."""
DURABILITY_SETTINGS = ("fsync", "synchronous_commit", "synchronous_standby_names")
SCRUBBED = ", ".join(
    f"forage_{table}" for table in ("events", "marks", "decisions", "due", "snapshots", "blobs")
)

POSTGRES_PAGES: dict[Ordered, tuple[str, Callable[..., object]]] = {
    "events": (
        "SELECT position, payload FROM forage_events WHERE experiment = %s AND position > %s "
        "ORDER BY position LIMIT %s",
        Record,
    ),
    "decisions": (
        "SELECT number, id, payload FROM forage_decisions "
        "WHERE experiment = %s AND number > %s ORDER BY number LIMIT %s",
        lambda number, name, payload: KeptRow(number, name.decode(), payload),
    ),
    "snapshots": (
        "SELECT position, payload, origin FROM forage_snapshots WHERE experiment = %s "
        "ORDER BY position DESC",
        Snapshot,
    ),
    "blobs": (
        "SELECT key FROM forage_blobs WHERE experiment = %s ORDER BY key",
        lambda key: key.decode(),
    ),
}
MARKS_PAGE = (
    "SELECT forage_key(identity), identity, value, position, keep_until FROM forage_marks "
    "WHERE experiment = %s AND forage_key(identity) > %s ORDER BY forage_key(identity) LIMIT %s"
)
POSTGRES_VALUES: dict[Keyed, str] = {
    "marks": KNOWN_MARKS,
    "decisions": KEPT_ROWS,
    "blobs": (
        "SELECT b.experiment, b.key, b.payload "
        "FROM unnest(%b::bytea[], %b::bytea[]) AS k (experiment, name) "
        "JOIN forage_blobs b ON b.experiment = k.experiment AND b.key = k.name"
    ),
    "published": (
        "SELECT p.experiment, p.part, p.payload "
        "FROM unnest(%b::bytea[], %b::bytea[]) AS k (experiment, name) "
        "JOIN forage_published p ON p.experiment = k.experiment AND p.part = k.name"
    ),
}
DUE_ROWS = (
    "SELECT r.payload FROM forage_due d JOIN forage_decisions r "
    "ON r.experiment = d.experiment AND forage_key(r.id) = forage_key(d.decision) "
    "WHERE d.experiment = %s AND d.due <= %s ORDER BY d.due, d.decision LIMIT %s"
)
# A decision settled before its row came is listed until its row is there
POSTGRES_WAITING = (
    "SELECT d.decision, d.due FROM forage_due d WHERE d.experiment = %s AND (d.due IS NOT NULL OR "
    "NOT EXISTS (SELECT 1 FROM forage_decisions r "
    "WHERE r.experiment = d.experiment AND forage_key(r.id) = forage_key(d.decision)))"
)
PAST = (
    "SELECT 1 FROM unnest(%b::bytea[], %s::int8[]) AS w (name, position) "
    "JOIN forage_experiments e ON e.name = w.name AND e.position > w.position LIMIT 1"
)
HEAD = "SELECT position, digest, last_row, trimmed, erased FROM forage_experiments WHERE name = %s"
COUNTS = "SELECT series, decisions FROM forage_decision_counts WHERE experiment = %s"
READER_ROWS = "SELECT reader, position, last_row FROM forage_readers WHERE experiment = %s"
ORIGIN = "SELECT coalesce(max(position), 0) FROM forage_snapshots WHERE experiment = %s AND origin"

TABLE_SIZES = (
    "SELECT relname, pg_total_relation_size(oid) FROM pg_class WHERE relkind = 'r' "
    "AND starts_with(relname, 'forage_') AND pg_table_is_visible(oid)"
)
USUAL_SIZES = (  # of the newest rows and events, and the first event that is left
    "SELECT (SELECT coalesce(avg(pg_column_size(payload)), 0) FROM (SELECT payload FROM "
    "forage_decisions WHERE experiment = %(of)s ORDER BY number DESC LIMIT %(sample)s) AS r)"
    "::float8, (SELECT coalesce(avg(pg_column_size(payload)), 0) FROM (SELECT payload FROM "
    "forage_events WHERE experiment = %(of)s ORDER BY position DESC LIMIT %(sample)s) AS e)"
    "::float8, (SELECT coalesce(min(position), 0) FROM forage_events WHERE experiment = %(of)s)"
)

PUT_SNAPSHOT = (  # none of a process that is behind: it may hold what was erased
    "INSERT INTO forage_snapshots SELECT %(of)s, %(at)s, %(payload)s, %(origin)s WHERE NOT EXISTS "
    "(SELECT 1 FROM forage_snapshots WHERE experiment = %(of)s AND origin AND position > %(at)s) "
    "ON CONFLICT (experiment, position) DO UPDATE SET payload = excluded.payload, "
    "origin = excluded.origin WHERE excluded.origin OR NOT forage_snapshots.origin"
)
ONE_ORIGIN = (
    "UPDATE forage_snapshots SET origin = false WHERE experiment = %(of)s AND origin AND position "
    "< (SELECT max(position) FROM forage_snapshots WHERE experiment = %(of)s AND origin)"
)
LAST_TWO = (
    "DELETE FROM forage_snapshots WHERE experiment = %(of)s AND NOT origin AND position NOT IN "
    "(SELECT position FROM forage_snapshots WHERE experiment = %(of)s "
    "ORDER BY position DESC LIMIT 2)"
)
PROBE = (  # a write, of what is there
    "UPDATE forage_layout SET layout = layout RETURNING extract(epoch FROM now())::float8"
)
ADOPT = "INSERT INTO forage_secret VALUES (%s) ON CONFLICT (one) DO NOTHING RETURNING 1"
END_LOG = "UPDATE forage_experiments SET position = %s, digest = %s WHERE name = %s"
PUT_READER = (
    "INSERT INTO forage_readers VALUES (%s, %s, %s, %s) ON CONFLICT (experiment, reader) "
    "DO UPDATE SET position = excluded.position, last_row = excluded.last_row"
)
STAMP = ""
"""Name of the part that is the stamp of a publication."""
PUBLISH = (
    "INSERT INTO forage_published SELECT * FROM "
    "unnest(%b::bytea[], %b::bytea[], %b::bytea[]) ON CONFLICT (part, experiment) "
    "DO UPDATE SET payload = excluded.payload"
)
ALIVE = (
    "INSERT INTO forage_processes VALUES (%s, %s, now() + make_interval(secs => %s)) "
    "ON CONFLICT (process) DO UPDATE SET doing = excluded.doing, until = excluded.until"
)
BURY = (  # as does another process just now, and neither waits for the other
    "DELETE FROM forage_processes WHERE process IN (SELECT process FROM forage_processes "
    "WHERE until <= now() FOR UPDATE SKIP LOCKED)"
)

TRIM_EVENTS = (
    "WITH gone AS (DELETE FROM forage_events WHERE experiment = %(of)s AND position IN "
    "(SELECT position FROM forage_events WHERE experiment = %(of)s AND position <= %(upto)s "
    "ORDER BY position LIMIT %(limit)s) RETURNING 1) SELECT count(*) FROM gone"
)
TRIM_MARKS = (
    "WITH gone AS (DELETE FROM forage_marks WHERE experiment = %(of)s AND forage_key(identity) IN "
    "(SELECT forage_key(identity) FROM forage_marks WHERE experiment = %(of)s "
    "AND keep_until < %(before)s LIMIT %(limit)s) RETURNING 1) SELECT count(*) FROM gone"
)
OLD_ROWS = (
    "SELECT r.id, d.due IS NOT NULL FROM forage_decisions r LEFT JOIN forage_due d "
    "ON d.experiment = r.experiment AND forage_key(d.decision) = forage_key(r.id) "
    "WHERE r.experiment = %s AND r.number <= %s ORDER BY r.number LIMIT %s"
)
DROP_ROWS = (
    "WITH gone AS (DELETE FROM forage_decisions WHERE experiment = %(of)s AND forage_key(id) IN "
    "(SELECT forage_key(name) FROM unnest(%(ids)b::bytea[]) AS name) RETURNING 1) "
    "UPDATE forage_experiments SET trimmed = trimmed + CASE WHEN %(erased)s THEN 0 ELSE n END, "
    "erased = erased + CASE WHEN %(erased)s THEN n ELSE 0 END "
    "FROM (SELECT count(*) AS n FROM gone) AS counted WHERE name = %(of)s"
)
DROP_DUE = (
    "DELETE FROM forage_due WHERE experiment = %(of)s AND forage_key(decision) IN "
    "(SELECT forage_key(name) FROM unnest(%(ids)b::bytea[]) AS name)"
)
REPLACE_EVENTS = (
    "UPDATE forage_events e SET payload = r.payload "
    "FROM unnest(%b::bytea[], %s::int8[], %b::bytea[]) AS r (experiment, position, payload) "
    "WHERE e.experiment = r.experiment AND e.position = r.position"
)
FORGET_MARKS = (  # 999: the key of a longer name ends in a digest
    "DELETE FROM forage_marks m USING unnest(%b::bytea[], %b::bytea[]) AS f (experiment, prefix) "
    "WHERE m.experiment = f.experiment AND forage_key(m.identity) >= substring(f.prefix, 1, 999) "
    r"AND forage_key(m.identity) < substring(f.prefix, 1, 999) || '\xff'::bytea "
    "AND substring(m.identity, 1, length(f.prefix)) = f.prefix"
)
FORGET_BLOBS = (
    "DELETE FROM forage_blobs b USING unnest(%b::bytea[], %b::bytea[]) AS f (experiment, key) "
    "WHERE b.experiment = f.experiment AND b.key = f.key"
)


class PostgresStore(Store):
    """Store on PostgreSQL.

    readonly   a follower (trainer, audit, export), which neither creates tables nor writes
    listen     URL of the same database for the connection that is told of commits, where that of
               the store leads to a pooler
    """

    shared = True

    def __init__(
        self,
        url: str,
        *,
        readonly: bool = False,
        listen: str | None = None,
        patience: PostgresTimeouts = POSTGRES_TIMEOUTS,
        clock: Clock = SYSTEM,
    ) -> None:
        self._readonly, self._patience, self._clock = readonly, patience, clock
        self.durability = durability({})
        self._connections = PostgresConnections(url, patience)
        self._told = PostgresConnections(listen or url, patience)
        self._listener: asyncio.Task[None] | None = None
        self._waiting: dict[asyncio.Event, frozenset[str]] = {}

    @classmethod
    def from_url(
        cls, url: str, *, readonly: bool = False, listen: str | None = None, clock: Clock = SYSTEM
    ) -> Self:
        return cls(url, readonly=readonly, listen=listen, clock=clock)

    async def open(self) -> None:
        try:
            await self._connections.prepare(create=not self._readonly)
            await self.review()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        if self._listener is not None:
            self._listener.cancel()
            await asyncio.wait([self._listener])
            self._listener = None
        await self._connections.close()

    async def review(self) -> None:
        async with self._connections.use(self._patience.reply_s) as db:
            query = "SELECT name, setting FROM pg_settings WHERE name = ANY(%s)"
            found = await (await db.execute(query, [[*DURABILITY_SETTINGS]])).fetchall()
        self.durability = durability(dict(found))

    async def experiments(self) -> list[str]:
        query = "SELECT name FROM forage_experiments WHERE position > 0 ORDER BY name"
        return [name.decode() for (name,) in await self._read(query)]

    async def _read(
        self, query: str, *values: object, seconds: float | None = None
    ) -> list[SqlRow]:
        async with self._connections.use(seconds or self._patience.reply_s) as db:
            return await (await ask(db, query, *values)).fetchall()

    # -- commit --------------------------------------------------------------------------------

    async def commit(self, entries: Sequence[Entry]) -> list[CommitResult]:
        if not entries:
            await self._probe()
            return []
        marks = [(e.experiment, one) for e in entries if isinstance(e, Append) for one in e.marks]
        rows = [(e.experiment, e.id) for e in entries if isinstance(e, DecisionRow)]
        names = {entry.experiment for entry in entries}
        async with self._write(self._patience.reply_s) as db:
            now = self._clock.time()
            locked = await lock(db, *names)
            found = await ask(db, KNOWN_MARKS, *columns(marks)) if marks else None
            earlier = await ask(db, KEPT_ROWS, *columns(rows)) if rows else None
            heads, numbers = dict[str, tuple[int, str]](), dict[str, Iterator[int]]()
            known, kept = dict[EntryName, Mark](), dict[EntryName, bytes]()
            for name, position, last, row, server_now in await locked.fetchall():
                self.expect_clock(self._connections.name, "PostgreSQL", now - server_now)
                heads[name.decode()] = position, last.decode()
                numbers[name.decode()] = count(row + 1)
            for name, identity, value, position in await found.fetchall() if found else ():
                known[name.decode(), identity.decode()] = Mark(value.decode(), position)
            for name, decision, payload in await earlier.fetchall() if earlier else ():
                kept[name.decode(), decision.decode()] = payload
            batch = Transaction(heads, numbers, known, kept)
            results = batch.decide(entries)
            await write(db, batch)
        return results

    async def _probe(self) -> None:
        """Check that a commit could write. Raises StoreUnavailable."""
        async with self._connections.transaction(self._patience.reply_s) as db:
            now = self._clock.time()
            [(server_now,)] = await (await ask(db, PROBE)).fetchall()
            self.expect_clock(self._connections.name, "PostgreSQL", now - server_now)

    @asynccontextmanager
    async def _write(self, seconds: float | None = None) -> AsyncIterator[Connection]:
        """Yield a connection in a transaction. Raises StoreError where the store is read-only."""
        if self._readonly:
            name = self._connections.name
            raise StoreError(f"{name} is open read-only: only the service writes")
        async with self._connections.transaction(seconds or self._patience.work_s) as db:
            yield db

    # -- news ----------------------------------------------------------------------------------

    async def wait(self, positions: Mapping[str, int], seconds: float) -> None:
        if self._listener is None or (self._listener.done() and not self._told.pooled):
            self._listener = asyncio.create_task(self._listen())
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        moved = asyncio.Event()
        self._waiting[moved] = frozenset(map(told, positions))
        try:
            while not (positions and await self._read(PAST, *columns(positions.items()))):
                left = deadline - loop.time()
                if left <= 0:
                    return
                with suppress(TimeoutError):
                    poll_s = POOLED_POLL_S if self._told.pooled else POSTGRES_POLL_S
                    async with asyncio.timeout(min(poll_s, left)):
                        await moved.wait()
                moved.clear()
        finally:
            del self._waiting[moved]

    async def _listen(self) -> None:
        """Wake those that wait for an experiment, at each commit of it; not behind a pooler."""
        while True:
            try:
                db = await self._told.connect()
                try:
                    if self._told.pooled:
                        return
                    with our_errors(self._told.name):
                        await db.execute("LISTEN forage")
                        self._wake()  # what came before was not heard
                        async for heard in db.notifies(timeout=RECONNECT_S):
                            self._wake(heard.payload)
                finally:
                    await db.close()
            except StoreUnavailable:
                await asyncio.sleep(POSTGRES_POLL_S)

    def _wake(self, of: str | None = None) -> None:
        for moved, names in self._waiting.items():
            if of is None or of in names:
                moved.set()

    async def present(self, process: str, doing: str, seconds: float) -> dict[str, str]:
        async with self._connections.transaction(self._patience.reply_s) as db:
            if seconds > 0:
                await ask(db, ALIVE, process, doing, float(seconds))
            elif not self._readonly:
                await ask(db, "DELETE FROM forage_processes WHERE process = %s", process)
            if not self._readonly:
                await ask(db, BURY)
            query = "SELECT process, doing FROM forage_processes WHERE until > now()"
            live = await (await ask(db, query)).fetchall()
        return {name.decode(): said.decode() for name, said in live}

    # -- read ----------------------------------------------------------------------------------

    async def due(self, experiment: str, now: float, limit: int) -> list[bytes]:
        return [payload for (payload,) in await self._read(DUE_ROWS, experiment, float(now), limit)]

    async def page(self, experiment: str, table: Ordered, after: Cursor, limit: int) -> Page:
        if table == "marks":
            return await self._page_of_marks(experiment, str(after), limit)
        query, kind = POSTGRES_PAGES[table]
        where = (int(after), limit) if table in ("events", "decisions") else ()
        rows = await self._read(query, experiment, *where, seconds=self._patience.work_s)
        return [kind(*row) for row in rows], rows[-1][0] if where and len(rows) == limit else START

    async def _page_of_marks(self, experiment: str, after: str, limit: int) -> Page:
        rows = await self._read(MARKS_PAGE, experiment, bytes.fromhex(after), limit)
        marks = [
            KeptMark(identity.decode(), value.decode(), position, keep_until)
            for _, identity, value, position, keep_until in rows
        ]
        return marks, rows[-1][0].hex() if len(rows) == limit else START

    async def get(self, experiment: str, table: Keyed, keys: Sequence[str]) -> KeyedValues:
        if table == SECRET:
            rows = await self._read("SELECT content FROM forage_secret")
            return {SECRET: rows[0][0]} if rows else {}
        names = columns([(experiment, key) for key in keys])
        rows = await self._read(POSTGRES_VALUES[table], *names, seconds=self._patience.work_s)
        if table == "marks":
            return {name.decode(): Mark(value.decode(), at) for _, name, value, at in rows}
        return {name.decode(): payload for _, name, payload in rows}

    async def stamps(self) -> dict[str, str]:
        query = "SELECT experiment, payload FROM forage_published WHERE part = %s"
        return {name.decode(): own.decode() for name, own in await self._read(query, STAMP)}

    async def describe(self, experiment: str, *, whole: bool = False) -> LogSummary:
        async with self._connections.use(self._patience.work_s) as db, db.pipeline():
            await db.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")  # one moment
            asked = [
                await ask(db, query, experiment)
                for query in (HEAD, COUNTS, READER_ROWS, *([POSTGRES_WAITING] if whole else []))
            ]
            await db.execute("COMMIT")
        heads, counts, readers, *waiting = [await each.fetchall() for each in asked]
        position, last, row, trimmed, erased = heads[0] if heads else (0, b"", 0, 0, 0)
        return LogSummary(
            position,
            row,
            {decision.decode(): due for rows in waiting for decision, due in rows},
            {series.decode(): count for series, count in counts},
            Removed(trimmed, erased),
            {reader.decode(): ReaderPosition(*taken) for reader, *taken in readers},
            last.decode(),
        )

    async def measure(self) -> StoreSize:
        """Measure the tables and their indexes, without snapshots and artifacts, shared out by
        payloads."""
        sizes: dict[str, int] = dict(await self._read(TABLE_SIZES))
        payloads = {}
        for name in await self.experiments():
            described = await self.describe(name)
            async with self._connections.use(self._patience.reply_s) as db:
                asked = await ask(db, USUAL_SIZES, of=name, sample=SAMPLE)
                [(row, event, first)] = await asked.fetchall()
            payloads[name] = described.rows * row + (described.position - first + 1) * event
        beside = ("forage_snapshots", "forage_blobs", "forage_published")
        log = sum(size for table, size in sizes.items() if table not in beside)
        return StoreSize(sum(sizes.values()), None, shared_out(log, payloads))

    # -- write ---------------------------------------------------------------------------------

    async def put(self, experiment: str, item: Item) -> None:
        async with self._write() as db:
            match item:
                case Snapshot(position, payload, origin):
                    await lock(db, experiment)
                    snapshot = {"at": position, "payload": payload, "origin": origin}
                    for query in (PUT_SNAPSHOT, ONE_ORIGIN, LAST_TWO):
                        await ask(db, query, of=experiment, **snapshot)
                case Blob(key, payload):
                    query = "INSERT INTO forage_blobs VALUES (%s, %s, %s) ON CONFLICT DO NOTHING"
                    await ask(db, query, experiment, key, payload)
                case ReaderState():
                    await _put_reader(db, experiment, item)
                case Marks(marks):
                    await lock(db, experiment)
                    rows = {
                        m.identity: (experiment, m.identity, m.value, m.position, m.keep_until)
                        for m in marks
                    }
                    await run(db, PUT_MARKS, rows.values())
                case LogEnd(position, of_last):
                    await lock(db, experiment)
                    await ask(db, END_LOG, position, of_last, experiment)
                case Published(stamp, parts):
                    whole = {**parts, STAMP: stamp.encode()}
                    await run(db, PUBLISH, [(experiment, *each) for each in whole.items()])
                case Secret(content):
                    if not await (await ask(db, ADOPT, content)).fetchall():
                        raise StoreError("the store has a secret of its own already")

    async def remove(self, experiment: str, what: Removal, limit: int) -> int:
        if isinstance(what, Trim):
            async with self._write() as db:
                await _lock_origin(db, experiment, what.position)
                return await _trim(db, experiment, what, limit)
        if isinstance(what, Erasure):
            async with self._write() as db:
                await _lock_origin(db, experiment, what.origin)
                await _erase(db, experiment, what)
        else:
            async with self._connections.use(self._patience.scrub_s) as db:
                # of indexes too: they hold the names
                await db.execute(f"VACUUM (INDEX_CLEANUP ON) {SCRUBBED}")
        return 0


async def _put_reader(db: Connection, experiment: str, reader: ReaderState) -> None:
    if reader.taken is None:
        query = "DELETE FROM forage_readers WHERE experiment = %s AND reader = %s"
        await ask(db, query, experiment, reader.name)
    else:
        taken = reader.taken
        await ask(db, PUT_READER, experiment, reader.name, taken.position, taken.row)


async def _lock_origin(db: Connection, experiment: str, position: int) -> None:
    """Lock an experiment. Raises StoreError where its origin is below a position."""
    await lock(db, experiment)
    [(origin,)] = await (await ask(db, ORIGIN, experiment)).fetchall()
    expect_origin(experiment, origin, position)


async def _trim(db: Connection, experiment: str, cut: Trim, limit: int) -> int:
    at = {"of": experiment, "upto": cut.position, "before": cut.marks_before, "limit": limit}
    counts = [await ask(db, query, **at) for query in (TRIM_EVENTS, TRIM_MARKS)]
    old = await ask(db, OLD_ROWS, experiment, cut.row, limit)
    rows = takewhile(lambda row: not (cut.settles and row[1]), await old.fetchall())
    ids = [decision for decision, _ in rows]
    await _drop(db, experiment, ids, erased=False)
    gone: list[int] = [(await each.fetchall())[0][0] for each in counts]
    return len(ids) + sum(gone)


async def _erase(db: Connection, name: str, erasure: Erasure) -> None:
    events = [(name, position, payload) for position, payload in erasure.events.items()]
    await run(db, REPLACE_EVENTS, events)
    await _drop(db, name, list(erasure.decisions), erased=True)
    await run(db, FORGET_MARKS, [(name, prefix) for prefix in erasure.forget])
    query = "DELETE FROM forage_snapshots WHERE experiment = %s AND position < %s"
    await ask(db, query, name, erasure.origin)
    await run(db, FORGET_BLOBS, [(name, key) for key in erasure.blobs])


async def _drop(db: Connection, experiment: str, ids: Sequence[object], *, erased: bool) -> None:
    """Delete decision rows, count them, and forget when they are due."""
    if ids:
        await ask(db, DROP_ROWS, of=experiment, ids=ids, erased=erased)
        await ask(db, DROP_DUE, of=experiment, ids=ids)


def durability(settings: Mapping[str, str]) -> str:
    """Say what the settings of PostgreSQL mean for an acknowledged write."""
    if not settings:
        return "Unknown: the settings of PostgreSQL have not been read."
    if settings["fsync"] == "off":
        return "Acknowledged writes may be lost, and the log damaged, with the host (fsync off)."
    match settings["synchronous_commit"]:
        case "off":
            return (
                "Up to about 1 s of acknowledged writes are lost when PostgreSQL crashes "
                "(synchronous_commit off)."
            )
        case "on" | "remote_apply" if settings["synchronous_standby_names"]:
            return (
                "An acknowledged write survives kill -9 and power loss of the PostgreSQL host, and "
                "its loss where a synchronous standby takes over."
            )
    return "An acknowledged write survives kill -9 and power loss of the PostgreSQL host."
