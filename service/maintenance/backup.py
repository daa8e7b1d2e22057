"""forage backup, forage restore: a store copied into a file while services write, and back.

An SQLite store is copied as the file that it is, in one read transaction; a Redis store by its
parts (`service.maintenance.copying`).
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from service.errors import ConfigurationError, StoreUnavailable
from service.log.reading import Progress, Say, opened, readable_store
from service.log.stores import Store, open_store, sqlite_copy, sqlite_file, sqlite_secret
from service.log.stores.redis import RedisStore
from service.log.stores.sqlite import SqliteStore
from service.maintenance.copying import Copied, RemovedMeanwhileError, copied_of, copy

TRIES = 5


def backup(url: str, path: Path, say: Say | None = None) -> list[Copied]:
    """Copy a store into a new store file, with its secret beside it. Services may go on writing.

    Raises ConfigurationError where the file exists already, StoreError where the store cannot be
    copied; then no file is left behind.
    """
    store, path = readable_store(url), path.absolute()
    sqlite_copy.check_free(path)
    if isinstance(store, SqliteStore):
        return _image(store.path, path, Progress(say))
    return asyncio.run(_from_parts(store, path, Progress(say)))


def restore(path: Path, url: str, say: Say | None = None) -> list[Copied]:
    """Copy a store file into an empty store, with the secret beside it. No service can open that
    store before the copy is complete; a restore that was cut off starts again from the beginning.

    Raises ConfigurationError where the store holds something already or there is no such file,
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
    """Where a copy for `path` is made; what is not moved to `path` is deleted."""
    with (
        sqlite_file.ours(path),
        TemporaryDirectory(prefix=f".{path.name}-", dir=path.parent) as folder,
    ):
        yield Path(folder) / path.name


def _image(source: Path, target: Path, progress: Progress) -> list[Copied]:
    secret = None
    if sqlite_file.key_of(source).exists():  # none where FORAGE_TOKEN_KEYS holds them
        secret = sqlite_file.secret(source)
        with sqlite_file.ours(source), closing(sqlite_file.connect_to_read(source)) as db:
            sqlite_secret.expect_fitting(db, source, secret)
    sqlite_copy.check_key(target, secret)
    with _draft(target) as draft:
        sqlite_copy.image(source, draft, lambda done, of: progress.share("pages copied", done, of))
        progress.tell(f"checking {target.name}")
        sqlite_copy.seal(draft)
        if secret is not None:
            sqlite_file.keep_secret(draft, secret)
        sqlite_copy.place(draft, target)
    return asyncio.run(_contents(target))


async def _contents(path: Path) -> list[Copied]:
    async with opened(SqliteStore(path, readonly=True)) as store:
        names = await store.experiments()
        return [copied_of(name, await store.describe(name, whole=True)) for name in names]


# -- parts -----------------------------------------------------------------------------------------


async def _from_parts(store: Store, path: Path, progress: Progress) -> list[Copied]:
    async with opened(store) as source:
        secret = await source.secret()
        sqlite_copy.check_key(path, secret)
        return await _with_retries(lambda: _into_file(source, secret, path, progress))


async def _into_file(source: Store, secret: bytes, path: Path, progress: Progress) -> list[Copied]:
    with _draft(path) as draft:
        async with opened(SqliteStore(draft)) as target:
            copied = await copy(source, target, progress)
            await target.adopt_secret(secret)
        progress.tell(f"checking {path.name}")
        sqlite_copy.seal(draft)
        sqlite_copy.place(draft, path)
    return copied


async def _into_redis(path: Path, url: str, progress: Progress) -> list[Copied]:
    async with (
        opened(SqliteStore(path, readonly=True)) as source,
        opened(RedisStore(url, restoring=True)) as target,
    ):
        try:
            return await _with_retries(lambda: _load(source, target, progress))
        finally:
            with suppress(StoreUnavailable):
                await target.leave_restore()


async def _load(source: SqliteStore, target: RedisStore, progress: Progress) -> list[Copied]:
    await target.begin_restore()
    copied = await copy(source, target, progress)
    if sqlite_file.key_of(source.path).exists():
        await target.adopt_secret(await source.secret())
    await target.end_restore()
    return copied


async def _with_retries(work: Callable[[], Awaitable[list[Copied]]]) -> list[Copied]:
    for _ in range(TRIES):
        with suppress(RemovedMeanwhileError):
            return await work()
    raise StoreUnavailable("retention or an erasure keeps removing what is to be copied: try again")
