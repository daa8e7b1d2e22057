"""forage copy: all that a store holds, into an empty store, while no service runs on either."""

import os
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from itertools import islice

from service.errors import ConfigurationError, LogGap, StoreError
from service.log.reading import Progress, Say, opened
from service.log.replay import pages, row_pages
from service.log.stores import Store, open_store, sqlite_file
from service.log.stores.base import Append, Blob, DecisionRow, Entry, KeptRow, LogSummary, Marks
from service.log.stores.sqlite import SqliteStore
from service.log.stores.store import SECRET, START
from service.state.decisions import decode_decision
from service.tables import aligned

ENTRIES = 64
"""Entries of one commit: rows may have hundreds of kilobytes each."""
MARKS_PER_COMMIT = 1_000
"""Marks written at once."""


@dataclass(frozen=True, slots=True)
class Copied:
    """What a copy holds of one experiment: events up to a position, decision rows, and how many of
    these are due."""

    experiment: str
    position: int
    decisions: int
    due: int


def table(copied: Sequence[Copied]) -> str:
    """Return one line for each experiment."""
    counts = [
        (each.experiment, f"{each.position:,}", f"{each.decisions:,}", f"{each.due:,}")
        for each in copied
    ]
    return "\n".join(aligned([("experiment", "position", "decisions", "due"), *counts]))


async def contents(store: Store) -> list[Copied]:
    found = []
    for name in await store.experiments():
        instant = await store.describe(name, whole=True)
        gone = instant.removed.trimmed + instant.removed.erased
        due = sum(time is not None for time in instant.due.values())
        found.append(Copied(name, instant.position, sum(instant.counts.values()) - gone, due))
    return found


async def copy_store(source: str, target: str, say: Say | None = None) -> list[Copied]:
    """Copy a store. Raises ConfigurationError where a service runs on one of them, the source is
    missing or the target holds anything; StoreLocked or StoreError where it cannot be copied."""
    progress = Progress(say)
    async with _source(source) as read, opened(_store(target)) as written:
        await _expect_no_service(written)
        if names := await written.experiments():
            raise ConfigurationError(
                f"the target holds experiment {names[0]}, and nothing is written over: name an "
                "empty store"
            )
        if secret := await read.get("", SECRET, [SECRET]):  # none where FORAGE_TOKEN_KEYS is set
            await written.adopt_secret(secret[SECRET])
        for name in await read.experiments():
            await copy_experiment(read, written, name, progress)
        return await contents(written)


async def secret_notice(url: str, token_keys: Sequence[bytes]) -> str:
    """Say what a store, a backup or a copy lacks; empty where it holds the token secret.

    token_keys   FORAGE_TOKEN_KEYS, which win over the secret of a store
    """
    async with opened(_store(url, readonly=True)) as store:
        if not token_keys and not await store.secret_is_elsewhere():
            return ""
    return (
        "FORAGE_TOKEN_KEYS has the token secret, and this copy does not: keep those keys. A "
        "service that runs on the copy without them refuses rewards of earlier decisions"
    )


@asynccontextmanager
async def _source(url: str) -> AsyncIterator[Store]:
    """Open a store to read it, while no service uses it: an SQLite store stays locked."""
    store = _store(url, readonly=True)
    lock = sqlite_file.hold(store.path) if isinstance(store, SqliteStore) else None
    try:
        async with opened(store):
            await _expect_no_service(store)
            yield store
    finally:
        if lock is not None:
            os.close(lock)


def _store(url: str, *, readonly: bool = False) -> Store:
    if url.startswith("memory"):
        raise ConfigurationError("a memory:// store ends with its process")
    return open_store(url, readonly=readonly)


async def _expect_no_service(store: Store) -> None:
    if await store.present("copy", "", 0):
        raise ConfigurationError("a service runs on one of the stores: stop all services")


async def copy_experiment(source: Store, target: Store, name: str, progress: Progress) -> None:
    """Copy all of an experiment but its readers' positions and the counts of removed rows."""
    instant = await source.describe(name, whole=True)
    for key in await source.blob_keys(name):
        if (blob := await source.blob(name, key)) is not None:
            await target.put(name, Blob(key, blob))
    await _copy_marks(source, target, name)
    async for rows in row_pages(source, name):
        await _commit(target, (_entry(name, row, instant) for row in rows))
        progress.tell(f"{name}: decision rows up to {rows[-1].number:,}")
    position = 0
    async for page in pages(source, name):
        first, last = page[0].position, page[-1].position
        if last - first != len(page) - 1 or (position and first != position + 1):
            raise LogGap(f"experiment {name}: events are missing between {position} and {last}")
        if first > position + 1:  # the log was trimmed
            await target.end_log(name, first - 1, "")
        await _commit(target, (Append(name, each.payload, {}) for each in page))
        position = last
        progress.tell(f"{name}: events {position:,} of {instant.position:,}")
    await target.end_log(name, instant.position, instant.digest)
    for snapshot in reversed(await source.snapshots(name)):
        await target.put(name, snapshot)


async def _copy_marks(source: Store, target: Store, name: str) -> None:
    """Copy them before the events, which are then appended without marks."""
    cursor = START
    while True:
        marks, cursor = await source.list_marks(name, cursor, MARKS_PER_COMMIT)
        await target.put(name, Marks(marks))
        if not cursor:
            return


def _entry(name: str, row: KeptRow, instant: LogSummary) -> DecisionRow:
    series = ""
    with suppress(StoreError):  # a damaged row is of no series
        series = decode_decision(row.payload).series
    return DecisionRow(name, row.id, series, row.payload, instant.due.get(row.id))


async def _commit(target: Store, entries: Iterator[Entry]) -> None:
    while some := [*islice(entries, ENTRIES)]:
        await target.commit(some)
