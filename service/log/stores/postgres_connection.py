"""The connections to PostgreSQL, with the errors of `service.errors`, and the tables there.

Texts of callers are bytea in UTF-8: PostgreSQL's text holds no NUL, and its database may have
another encoding. To read them in psql: convert_from(name, 'UTF8').
"""

import asyncio
import os
import select
import socket
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from psycopg import AsyncConnection, conninfo, errors
from psycopg import Error as PostgresError

from service.errors import (
    ConfigurationError,
    Damaged,
    NoTables,
    StoreError,
    StoreUnavailable,
)
from service.log.stores.store import RECONNECT_S, expect_layout

POSTGRES_LAYOUT = 3
"""Number of the layout of the tables below. Raise it with every change of them."""
LEAST_VERSION = 13
CREATING = 0x466F7267  # "Forg": the advisory lock of whoever creates the tables

VACUUMED_SHARE = 0.01
"""Share of a table's rows that may be dead before PostgreSQL makes their place free for later ones:
of the log, of which as many rows go as come. Its own default is a fifth
(docs/decisions/19-deleted-rows-on-postgresql.md)."""

POSTGRES_TABLES = f"""
-- The key of a name in an index, which takes 2,700 bytes. Those with one beginning lie together.
CREATE FUNCTION forage_key(name bytea) RETURNS bytea LANGUAGE sql IMMUTABLE PARALLEL SAFE AS
    'SELECT CASE WHEN length($1) <= 1000 THEN $1 ELSE substring($1, 1, 1000) || sha256($1) END';
CREATE TABLE forage_experiments (
    name bytea PRIMARY KEY,
    position bigint NOT NULL DEFAULT 0, digest bytea NOT NULL DEFAULT '',  -- of the last event
    last_row bigint NOT NULL DEFAULT 0,  -- trimmed or not, as the last event
    trimmed bigint NOT NULL DEFAULT 0, erased bigint NOT NULL DEFAULT 0  -- decision rows
);
CREATE TABLE forage_events (
    experiment bytea, position bigint, payload bytea NOT NULL, PRIMARY KEY (experiment, position)
) WITH (autovacuum_vacuum_scale_factor = {VACUUMED_SHARE});
CREATE TABLE forage_marks (
    experiment bytea NOT NULL, identity bytea NOT NULL,
    value bytea NOT NULL, position bigint NOT NULL, keep_until float8
) WITH (autovacuum_vacuum_scale_factor = {VACUUMED_SHARE});
CREATE UNIQUE INDEX forage_marks_by_identity ON forage_marks (experiment, forage_key(identity));
CREATE INDEX forage_marks_by_age ON forage_marks (experiment, keep_until)
    WHERE keep_until IS NOT NULL;
CREATE TABLE forage_decisions (
    experiment bytea, number bigint, id bytea NOT NULL, payload bytea NOT NULL,
    PRIMARY KEY (experiment, number)
) WITH (autovacuum_vacuum_scale_factor = {VACUUMED_SHARE});
CREATE UNIQUE INDEX forage_decisions_by_id ON forage_decisions (experiment, forage_key(id));
CREATE TABLE forage_decision_counts (
    experiment bytea, series bytea, decisions bigint NOT NULL, PRIMARY KEY (experiment, series)
);
CREATE TABLE forage_due (
    experiment bytea NOT NULL, decision bytea NOT NULL,
    due float8  -- NULL: settled before its row came, so never due
) WITH (autovacuum_vacuum_scale_factor = {VACUUMED_SHARE});
CREATE UNIQUE INDEX forage_due_by_decision ON forage_due (experiment, forage_key(decision));
CREATE INDEX forage_due_by_time ON forage_due (experiment, due) WHERE due IS NOT NULL;
CREATE TABLE forage_snapshots (
    experiment bytea, position bigint, payload bytea NOT NULL,
    origin boolean NOT NULL,  -- of the newest alone
    PRIMARY KEY (experiment, position)
);
CREATE TABLE forage_blobs (
    experiment bytea, key bytea, payload bytea NOT NULL, PRIMARY KEY (experiment, key)
);
CREATE TABLE forage_readers (
    experiment bytea, reader bytea, position bigint NOT NULL, last_row bigint NOT NULL,
    PRIMARY KEY (experiment, reader)
);
CREATE TABLE forage_processes (
    process bytea PRIMARY KEY, doing bytea NOT NULL, until timestamptz NOT NULL
);
CREATE UNLOGGED TABLE forage_published (  -- what deciders decide by
    experiment bytea, part bytea, payload bytea NOT NULL, PRIMARY KEY (part, experiment)
);
CREATE TABLE forage_secret (content bytea NOT NULL, one boolean PRIMARY KEY DEFAULT true);
CREATE TABLE forage_layout (layout integer NOT NULL);
"""

# Every statement finds its rows by a key. A plan that was made while a table was small, and reads
# all of it, would be kept while it grows. Behind a pooler no plan is kept.
PLANS = "SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off"
POSTGRES_CONNECTIONS = 8  # one commits and the others read
REFUSED_CONNECTIONS = (
    "authentication failed",
    "does not exist",
    "no pg_hba.conf entry",
    "no password supplied",
    "not permitted",
)
"""Parts of what a server says at the start of a connection, without a code, where a setting is
wrong. In another language these count as an outage."""

WRONG_POSTGRES_URL = (
    "FORAGE_STORE: not a PostgreSQL URL; use postgresql://[user[:password]@]host[:port]/database, "
    "with libpq's options after '?' (sslmode=verify-full, options=-csearch_path=schema)"
)

Connection = AsyncConnection[tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class PostgresTimeouts:
    """Seconds that the store waits for PostgreSQL.

    connect_s   for a connection: a process of its own there, TLS and a password
    reply_s     for a commit or a page of the log: above the fsync stalls of a busy disk
    work_s      for a snapshot, an artifact, a trim or an erasure, which may be large
    scrub_s     for VACUUM of the largest tables
    """

    connect_s: float = 3.0
    reply_s: float = 5.0
    work_s: float = 60.0
    scrub_s: float = 3_600.0


class PostgresConnections:
    """Connections in autocommit, which are kept for the next caller.

    pooled   a pooler such as pgbouncer is in between, which may give each transaction another
             session of the server: settings, prepared statements and notices of a session are of
             no use then, and reach other clients. None: there was no connection yet
    """

    pooled: bool | None = None

    def __init__(self, url: str, patience: PostgresTimeouts) -> None:
        self._settings = settings_of(url)
        self.name = name_of(self._settings)
        self._patience = patience
        self._idle: list[tuple[Connection, float]] = []  # and when they were made
        self._free = asyncio.Semaphore(POSTGRES_CONNECTIONS)

    async def close(self) -> None:
        while self._idle:
            db, _ = self._idle.pop()
            await db.close()

    @asynccontextmanager
    async def use(self, seconds: float) -> AsyncIterator[Connection]:
        """Yield a connection of the caller's own, which is cut after some seconds.

        After a fault the next call connects again, since the address may lead to another server by
        then.
        """
        async with self._free:
            (db, made), loop = await self._take(), asyncio.get_running_loop()
            watch = loop.call_later(seconds, _cut, db)
            try:
                with our_errors(self.name):
                    yield db
            except BaseException as error:
                await db.close()  # its transaction may be open
                if isinstance(error, StoreUnavailable):
                    await self.close()
                if isinstance(error, StoreUnavailable) and watch.when() <= loop.time():
                    raise StoreUnavailable(f"{self.name}: no reply in {seconds:g} s") from error
                raise
            finally:
                watch.cancel()
            self._idle.append((db, made))

    @asynccontextmanager
    async def transaction(self, seconds: float) -> AsyncIterator[Connection]:
        """Yield a connection in a transaction. Statements wait for no reply until one is read."""
        async with self.use(seconds) as db, db.pipeline():
            await db.execute("BEGIN ISOLATION LEVEL READ COMMITTED")
            yield db
            await db.execute("COMMIT")

    async def _take(self) -> tuple[Connection, float]:
        now = asyncio.get_running_loop().time()
        while self._idle:
            db, made = self._idle.pop()
            if made + RECONNECT_S > now and _quiet(db):
                return db, made
            await db.close()
        return await self.connect(), now

    async def connect(self) -> Connection:
        """Return a connection that is not kept."""
        seconds = self._patience.connect_s
        with our_errors(self.name):
            try:
                async with asyncio.timeout(seconds):
                    db = await AsyncConnection.connect(**self._settings, autocommit=True)
                    try:
                        await self._begin(db)
                    except BaseException:
                        await db.close()
                        raise
                    return db
            except TimeoutError as error:
                raise StoreUnavailable(f"{self.name}: no connection in {seconds:g} s") from error

    async def _begin(self, db: Connection) -> None:
        """Ready a session of our own. A pooler names another process than the one that answers."""
        if self.pooled is None:
            asked = await db.execute("SELECT pg_backend_pid()", prepare=False)
            self.pooled = await asked.fetchone() != (db.info.backend_pid,)
        if self.pooled:
            db.prepare_threshold = None
        else:
            await db.execute(PLANS)

    async def prepare(self, *, create: bool) -> None:
        """See to the tables.

        Raises ConfigurationError where the server refuses this user, database or schema,
        UnknownSchema for tables of another layout, NoTables where there are none and none may be
        created.
        """
        try:
            async with self.use(self._patience.work_s) as db:
                await self._prepare(db, create=create)
        except StoreUnavailable as error:
            cause = error.__cause__
            if isinstance(cause, errors.ProgrammingError) or any(
                said in str(cause) for said in REFUSED_CONNECTIONS
            ):
                raise ConfigurationError(f"FORAGE_STORE: {error}") from cause
            raise

    async def _prepare(self, db: Connection, *, create: bool) -> None:
        version = db.info.server_version // 10_000
        if version < LEAST_VERSION:
            raise StoreError(
                f"{self.name}: this is PostgreSQL {version}; {LEAST_VERSION} or newer is needed"
            )
        async with db.transaction():
            if create:
                await db.execute("SELECT pg_advisory_xact_lock(%s)", [CREATING])
            found = await db.execute("SELECT to_regclass('forage_layout') IS NOT NULL")
            if await found.fetchone() == (False,):
                if not create:
                    raise NoTables(
                        f"{self.name} has no tables yet: the service creates them when it starts"
                    )
                await db.execute(POSTGRES_TABLES)
                await db.execute("INSERT INTO forage_layout VALUES (%s)", [POSTGRES_LAYOUT])
            [(layout,)] = await (await db.execute("SELECT layout FROM forage_layout")).fetchall()
        expect_layout(self.name, layout, POSTGRES_LAYOUT)


@contextmanager
def our_errors(name: str) -> Iterator[None]:
    """Turn the errors of psycopg into those of `service.errors`. A detail of an error may hold
    values, so it is left out."""
    try:
        yield
    except (errors.DataCorrupted, errors.IndexCorrupted) as error:
        raise Damaged(f"{name}: {error.diag.message_primary}") from error
    except PostgresError as error:
        if isinstance(error, errors.DataError | errors.IntegrityError):
            raise  # a fault of ours
        first: BaseException = error  # leaving a broken pipeline raises another one
        while isinstance(first.__context__, PostgresError):
            first = first.__context__
        assert isinstance(first, PostgresError)
        said = first.diag.message_primary or " ".join(str(first).split())
        raise StoreUnavailable(f"{name}: {said}") from error


def settings_of(url: str) -> dict[str, Any]:
    """Return the parameters of connections. Raises ConfigurationError, whose text holds no part of
    the URL."""
    try:
        given = conninfo.conninfo_to_dict(url)
    except PostgresError:
        raise ConfigurationError(WRONG_POSTGRES_URL) from None
    if any(port and not port.isdecimal() for port in str(given.get("port", "")).split(",")):
        raise ConfigurationError(WRONG_POSTGRES_URL)  # it may be a password that holds a slash
    own = {
        "application_name": "forage",
        "keepalives_idle": 10,  # the listener waits where a host may be gone
        "keepalives_interval": 5,
        "keepalives_count": 3,
    }
    return {**own, **given, "client_encoding": "utf8"}


def name_of(settings: Mapping[str, Any]) -> str:
    """Return the URL of a database without user, password and options."""
    parts = [str(settings.get(part, "")) for part in ("host", "port", "dbname")]
    host, port, database = parts
    return f"postgresql://{host}{port and ':'}{port}/{database}"


def _quiet(db: Connection) -> bool:
    """Say whether an idle connection is whole: a server that closes it says something first."""
    if db.closed:
        return False
    said = select.poll()
    said.register(db.fileno(), select.POLLIN)
    return not said.poll(0)


def _cut(db: Connection) -> None:
    """End a connection under whoever waits for it: psycopg alone would wait for a frozen server."""
    with suppress(PostgresError, OSError), socket.socket(fileno=os.dup(db.fileno())) as own:
        own.shutdown(socket.SHUT_RDWR)
