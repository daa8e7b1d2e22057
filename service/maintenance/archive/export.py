"""An archive brought up to date once, or kept so beside a service."""

import asyncio
import fcntl
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import time

import httpx

from service.errors import ConfigurationError, ForageError, StoreLocked, StoreUnavailable
from service.log.reading import Say, experiments_of, reading
from service.log.stores import Store
from service.maintenance.archive.archiver import Archive, Sizes
from service.maintenance.archive.files import Folder, Totals, totals
from service.maintenance.archive.index import Index
from service.security.files import PRIVATE

logger = logging.getLogger(__name__)

POLL_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Exported:
    """Of one experiment. unreadable: rows that were left out because they are damaged."""

    experiment: str
    totals: Totals
    unreadable: int


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """No other process writes the folder. Raises StoreLocked, or ConfigurationError where the lock
    cannot be made."""
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
    experiment: str | None,
    sizes: Sizes,
    say: Say | None = None,
) -> list[Exported]:
    """Archive one experiment, or all: what is new, and what is not final yet. Raises NotFound, or
    StoreError where the store cannot be read or is not the one archived there.

    A service may be at work on the store, which is only read.
    """
    found = []
    with _locked(folder):
        async with reading(url) as store:
            for name in await experiments_of(store, experiment):
                with closing(open_archive(store, name, folder, sizes, say)) as archive:
                    await archive.advance()
                    archive.flush()
                    await archive.write_open()
                found.append(Exported(name, totals(Folder(folder, name)), archive.unreadable))
    return found


async def follow(
    url: str,
    folder: Path,
    service_url: str,
    experiment: str | None,
    sizes: Sizes,
    headers: Mapping[str, str] | None = None,
) -> int:
    """Archive what becomes final, until stopped, and tell the service how far the archive is.

    headers: of requests to the service, its key
    """
    with _locked(folder):
        async with (
            reading(url, wait=True) as store,
            httpx.AsyncClient(timeout=10, headers=headers) as client,
        ):
            report = ServiceReport(client, service_url)
            with closing(ArchiveFollower(store, folder, report, experiment, sizes)) as follower:
                while True:
                    await follower.round()
                    await asyncio.sleep(POLL_SECONDS)


class ServiceReport:
    """Tells the service how far the archive is. It trims nothing beyond that, and while it is away
    nothing at all, so a report may be lost."""

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
            if experiment not in self._missed:  # a deleted one is refused for ever
                logger.warning(
                    "the service is not told how far the archive of %s is: %s", experiment, fault
                )
            self._missed.add(experiment)
        else:
            if experiment in self._missed:
                logger.info("the service is told again how far the archive of %s is", experiment)
            self._missed.discard(experiment)
            self._known[experiment] = position, row


class ArchiveFollower:
    """The archives of a store that is followed, all or one."""

    def __init__(
        self,
        store: Store,
        folder: Path,
        report: ServiceReport,
        experiment: str | None,
        sizes: Sizes,
        clock: Callable[[], float] = time,
    ) -> None:
        self._store, self._folder, self._report = store, folder, report
        self._experiment, self._sizes, self._clock = experiment, sizes, clock
        self._archives = dict[str, Archive]()
        self._failing = False

    async def round(self) -> None:
        """Take what is new. The next round tries again where the store or the disk is gone."""
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
            archive = open_archive(self._store, name, self._folder, self._sizes, clock=self._clock)
            archive.forget_open()
            self._archives[name] = archive
            await self._tell(archive)
        archive = self._archives[name]
        try:
            await archive.advance()
            if archive.ripe():
                archive.flush()
        except (ForageError, OSError):
            archive.close()  # the next round begins again from what is durable
            del self._archives[name]
            raise
        await self._tell(archive)

    async def _tell(self, archive: Archive) -> None:
        await self._report.tell(archive.name, archive.cursor.position, archive.cursor.row)

    def close(self) -> None:
        for archive in self._archives.values():
            archive.close()


def open_archive(
    store: Store,
    experiment: str,
    path: Path,
    sizes: Sizes,
    say: Say | None = None,
    clock: Callable[[], float] = time,
) -> Archive:
    folder = Folder(path, experiment)
    index = Index(folder.index_path)
    try:
        return Archive(store, experiment, folder, index, sizes, say, clock)
    except BaseException:
        index.close()
        raise
