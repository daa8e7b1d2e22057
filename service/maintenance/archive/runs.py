"""An archive brought up to date once, or kept so beside a service."""

import asyncio
import fcntl
import logging
import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import time

import httpx

from service.errors import ConfigurationError, ForageError, NotFound, StoreLocked, StoreUnavailable
from service.log.stores import Store, open_store
from service.maintenance.archive.files import Folder, Totals, totals
from service.maintenance.archive.flow import SIZES, Archive, Say, Sizes
from service.maintenance.archive.index import Index
from service.security.files import PRIVATE

logger = logging.getLogger(__name__)

POLL_SECONDS = 1.0
RETRY_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Exported:
    """Of one experiment. unreadable: rows that were left out since they are damaged."""

    experiment: str
    totals: Totals
    unreadable: int


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """The folder is ours alone. Raises StoreLocked, or ConfigurationError where it cannot be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / "_archive.lock", os.O_RDWR | os.O_CREAT, PRIVATE)
    except OSError as fault:
        raise ConfigurationError(f"{folder}: {fault.strerror}") from fault
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as fault:
        raise StoreLocked(f"{folder} is being written by another forage export") from fault
    finally:
        os.close(lock)


async def export(
    url: str,
    folder: Path,
    experiment: str | None = None,
    sizes: Sizes = SIZES,
    say: Say | None = None,
) -> list[Exported]:
    """Archive one experiment, or all: what is new, and what is not final yet. Raises NotFound, or
    StoreError where the store cannot be read or is not the one archived there.

    The store is read and never written: a service may be at work on it.
    """
    found = []
    with held(folder):
        async with _opened(url) as store:
            for name in await _names(store, experiment):
                archive = opened(store, name, folder, sizes, say)
                try:
                    await archive.advance()
                    archive.flush()
                    await archive.write_open()
                finally:
                    archive.close()
                found.append(Exported(name, totals(Folder(folder, name)), archive.unreadable))
    return found


async def follow(
    url: str,
    folder: Path,
    service_url: str,
    experiment: str | None = None,
    sizes: Sizes = SIZES,
    headers: Mapping[str, str] | None = None,
) -> int:
    """Archive what becomes final, until stopped, and tell the service what was taken.

    headers: of requests to the service, its key
    """
    with held(folder):
        async with (
            _opened(url, wait=True) as store,
            httpx.AsyncClient(timeout=10, headers=headers) as client,
        ):
            follower = Follower(store, folder, Told(client, service_url), experiment, sizes)
            try:
                while True:
                    await follower.round()
                    await asyncio.sleep(POLL_SECONDS)
            finally:
                follower.close()


class Told:
    """What the service knows of what was taken. It trims nothing that was not; while it is away it
    trims nothing at all, so it need not be told."""

    def __init__(self, client: httpx.AsyncClient, url: str) -> None:
        self._client, self._url = client, url.rstrip("/")
        self._known = dict[str, tuple[int, int]]()
        self._missed = set[str]()

    async def tell(self, experiment: str, position: int, row: int) -> None:
        if self._known.get(experiment) == (position, row):
            return
        path = f"{self._url}/experiments/{experiment}/readers/archive"
        try:
            answer = await self._client.put(path, json={"position": position, "row": row})
            answer.raise_for_status()
        except httpx.HTTPError as fault:
            if experiment not in self._missed:  # of a deleted one no service wants to know
                logger.warning(
                    "the service is not told how far the archive of %s is: %s", experiment, fault
                )
            self._missed.add(experiment)
        else:
            if experiment in self._missed:
                logger.info("the service is told again how far the archive of %s is", experiment)
            self._missed.discard(experiment)
            self._known[experiment] = position, row


class Follower:
    """The archives of a store that is followed, all or one."""

    def __init__(
        self,
        store: Store,
        folder: Path,
        told: Told,
        experiment: str | None = None,
        sizes: Sizes = SIZES,
        clock: Callable[[], float] = time,
    ) -> None:
        self._store, self._folder, self._told = store, folder, told
        self._experiment, self._sizes, self._clock = experiment, sizes, clock
        self._archives = dict[str, Archive]()
        self._failing = False

    async def round(self) -> None:
        """Take what there is. A store or a disk that is gone is tried again at the next round."""
        try:
            for name in await self._store.experiments():
                if self._experiment in (None, name):
                    await self._take(name)
        except (StoreUnavailable, OSError) as fault:
            if not self._failing:
                logger.warning("trying again: %s", fault)
            self._failing = True
        else:
            self._failing = False

    async def _take(self, name: str) -> None:
        if name not in self._archives:
            archive = opened(self._store, name, self._folder, self._sizes, clock=self._clock)
            archive.forget_open()
            self._archives[name] = archive
            await self._tell(archive)
        archive = self._archives[name]
        try:
            await archive.advance()
            if archive.ripe():
                archive.flush()
        except (ForageError, OSError):
            archive.close()  # and begin again from what is durable
            del self._archives[name]
            raise
        await self._tell(archive)

    async def _tell(self, archive: Archive) -> None:
        await self._told.tell(archive.name, archive.cursor.position, archive.cursor.row)

    def close(self) -> None:
        for archive in self._archives.values():
            archive.close()


def opened(
    store: Store,
    experiment: str,
    archive: Path,
    sizes: Sizes,
    say: Say | None = None,
    clock: Callable[[], float] = time,
) -> Archive:
    folder = Folder(archive, experiment)
    index = Index(folder.index_path)
    try:
        return Archive(store, experiment, folder, index, sizes, say, clock)
    except BaseException:
        index.close()
        raise


async def _names(store: Store, experiment: str | None) -> list[str]:
    names = await store.experiments()
    if experiment is None:
        return names
    if experiment not in names:
        raise NotFound(f"the store has no experiment {experiment}", path="experiment")
    return [experiment]


@asynccontextmanager
async def _opened(url: str, *, wait: bool = False) -> AsyncIterator[Store]:
    """The store, read-only. wait: it may not be there yet, for it is the service that makes it."""
    if url.startswith("memory"):
        raise ConfigurationError("FORAGE_STORE: no other process can read a memory:// store")
    store = open_store(url, readonly=True)
    said = False
    while True:
        try:
            await store.open()
            break
        except StoreUnavailable as fault:
            if not wait:
                raise
            if not said:
                logger.warning("waiting for the store: %s", fault)
            said = True
            await asyncio.sleep(RETRY_SECONDS)
    try:
        yield store
    finally:
        await store.close()
