"""forage backup, forage restore: a store into a file while services write, and back from it.

An SQLite store is copied as the file that it is, in one read transaction; a Redis store by its
parts (`service.maintenance.copying`).
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from service.errors import ConfigurationError, StoreUnavailable
from service.log.stores import Store, open_store, sqlite_copy, sqlite_file
from service.log.stores.redis import RedisStore
from service.log.stores.sqlite import SqliteStore
from service.maintenance.copying import Copied, Progress, Say, TakenOutError, copied_of, copy

TRIES = 5


def backup(url: str, path: Path, say: Say | None = None) -> list[Copied]:
    """Copy a store into a new store file, with its secret beside it. Services may go on writing.

    Raises ConfigurationError where the file is there already, StoreError where the store cannot be
    copied; there is no file then.
    """
    if url.startswith("memory"):
        raise ConfigurationError("FORAGE_STORE: no other process can read a memory:// store")
    path = path.absolute()
    sqlite_copy.check_free(path)
    store = open_store(url, readonly=True)
    if isinstance(store, SqliteStore):
        return _image(store.path, path, Progress(say))
    return asyncio.run(_from_parts(store, path, Progress(say)))


def restore(path: Path, url: str, say: Say | None = None) -> list[Copied]:
    """Copy a store file into an empty store, with the secret beside it. No service can open that
    store before all is there; a restore that was cut off is begun anew.

    Raises ConfigurationError where the store holds something already, or there is no such file,
    StoreError where it cannot be copied.
    """
    path = path.absolute()
    if not path.exists():
        raise ConfigurationError(f"{path} does not exist")
    if url.startswith("memory"):
        raise ConfigurationError("FORAGE_STORE: a memory:// store ends with this process")
    store = open_store(url)
    if isinstance(store, SqliteStore):
        lock = sqlite_file.hold(store.path)
        try:
            sqlite_copy.check_free(store.path)
            return _image(path, store.path, Progress(say))
        finally:
            os.close(lock)
    return asyncio.run(_into_redis(path, url, Progress(say)))


# -- files -----------------------------------------------------------------------------------------


@contextmanager
def _draft(path: Path) -> Iterator[Path]:
    """Where a copy is made that is to lie at `path`: what is not placed from here goes."""
    with (
        sqlite_file.ours(path),
        TemporaryDirectory(prefix=f".{path.name}-", dir=path.parent) as folder,
    ):
        yield Path(folder) / path.name


def _image(source: Path, target: Path, progress: Progress) -> list[Copied]:
    secret = None
    if sqlite_file.key_of(source).exists():  # none where FORAGE_TOKEN_KEYS holds them
        secret = sqlite_file.secret(source)
    sqlite_copy.check_key(target, secret)
    with _draft(target) as draft:
        sqlite_copy.image(source, draft, progress.pages)
        progress.tell(f"checking {target.name}")
        sqlite_copy.seal(draft)
        if secret is not None:
            sqlite_file.keep_secret(draft, secret)
        sqlite_copy.place(draft, target)
    return asyncio.run(_held(target))


async def _held(path: Path) -> list[Copied]:
    store = SqliteStore(path, readonly=True)
    await store.open()
    try:
        names = await store.experiments()
        return [copied_of(name, await store.instant(name)) for name in names]
    finally:
        await store.close()


# -- parts -----------------------------------------------------------------------------------------


async def _from_parts(source: Store, path: Path, progress: Progress) -> list[Copied]:
    await source.open()
    try:
        secret = await source.secret()
        sqlite_copy.check_key(path, secret)
        return await _again(lambda: _into_file(source, secret, path, progress))
    finally:
        await source.close()


async def _into_file(source: Store, secret: bytes, path: Path, progress: Progress) -> list[Copied]:
    with _draft(path) as draft:
        target = SqliteStore(draft)
        await target.open()
        try:
            copied = await copy(source, target, progress)
            await target.adopt_secret(secret)
        finally:
            await target.close()
        progress.tell(f"checking {path.name}")
        sqlite_copy.seal(draft)
        sqlite_copy.place(draft, path)
    return copied


async def _into_redis(path: Path, url: str, progress: Progress) -> list[Copied]:
    source, target = SqliteStore(path, readonly=True), RedisStore(url, restoring=True)
    await source.open()
    try:
        await target.open()
        try:
            return await _again(lambda: _load(source, target, progress))
        finally:
            with suppress(StoreUnavailable):
                await target.leave_restore()
            await target.close()
    finally:
        await source.close()


async def _load(source: SqliteStore, target: RedisStore, progress: Progress) -> list[Copied]:
    await target.begin_restore()
    copied = await copy(source, target, progress)
    if sqlite_file.key_of(source.path).exists():
        await target.adopt_secret(await source.secret())
    await target.end_restore()
    return copied


async def _again(work: Callable[[], Awaitable[list[Copied]]]) -> list[Copied]:
    for _ in range(TRIES):
        with suppress(TakenOutError):
            return await work()
    raise StoreUnavailable("retention or an erasure takes out what is to be copied: try again")
