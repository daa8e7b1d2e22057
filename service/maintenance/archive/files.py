"""The Parquet files of an archive: `experiment=NAME/day=YYYY-MM-DD/part-<first row>.parquet`.

A file is written under a name that begins with a dot, which readers of data sets ignore, and is
renamed when it is complete and durable.
"""

import os
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from service.errors import ConfigurationError, Damaged
from service.log.stores.sqlite_file import sync_folder
from service.maintenance.archive.columns import ArchivedRow, batch, day_of, schema_of
from service.security.files import make_private

GROUP_ROWS = 10_000
"""Of a row group at most: all of a file that is held in memory."""

HELD_BYTES = 16 * 2**20
"""Held in memory of all files that are being written; above that, row groups are smaller."""

DAYS = 31
"""Files that are written at once: the rows of a service are of one day or two, imported ones of
any."""

DIGITS = 12
DAY_S = 86_400.0


class Folder:
    """The files of one experiment. What readers see changes in these steps alone: `sync`, `place`,
    `remove` and `sync_folder`."""

    def __init__(self, archive: Path, experiment: str) -> None:
        self.path = archive / f"experiment={experiment}"
        self.index_path = self.path / "_archive.db"
        self.schema = schema_of(experiment)
        self.path.mkdir(parents=True, exist_ok=True)
        self.sync_folder(archive)

    def files(self, kind: str) -> list[Path]:
        """Of a kind, `part` or `open`, in order of their first rows."""
        return sorted(self.path.glob(f"day=*/{kind}-*.parquet"), key=number_of)

    def clear(self, row: int) -> None:
        """Remove what a crash left: drafts, and parts of rows above `row`, which are not archived
        yet and still in the store."""
        left = [*self.path.glob("day=*/.*"), *(p for p in self.files("part") if number_of(p) > row)]
        self.remove_all(left)

    def remove_all(self, paths: Collection[Path]) -> None:
        for path in paths:
            self.remove(path)
        for day in {path.parent for path in paths}:
            self.sync_folder(day)

    def put(self, drafts: Collection[Path]) -> None:
        """Give the drafts of these files their names."""
        for path in drafts:
            self.sync(draft_of(path))
            self.place(draft_of(path), path)
        for day in {path.parent for path in drafts}:
            self.sync_folder(day)
        self.sync_folder(self.path)  # a day may be new

    def erase(self, decisions: Collection[str]) -> None:
        """Rewrite the files that hold one of these decisions, without them."""
        erased = pa.array(sorted(decisions), pa.string())
        for path in [*self.files("open"), *self.files("part")]:
            with _reader(path) as file:
                found = any(
                    pc.any(pc.is_in(group.column("id"), erased)).as_py()
                    for group in file.iter_batches(GROUP_ROWS, columns=["id"])
                )
            if found:
                self._rewrite(path, erased)

    def _rewrite(self, path: Path, erased: pa.Array) -> None:
        draft, left = draft_of(path), 0
        with _reader(path) as file, _writer(draft, file.schema_arrow) as writer:
            for number in range(file.num_row_groups):
                group = file.read_row_group(number)
                kept = group.filter(pc.invert(pc.is_in(group.column("id"), erased)))
                left += kept.num_rows
                if kept.num_rows:
                    writer.write_table(kept)
        if left:
            self.put([path])
        else:
            self.remove_all([path, draft])

    # -- steps ---------------------------------------------------------------------------------

    def sync(self, path: Path) -> None:
        with path.open("rb") as file:
            os.fsync(file.fileno())

    def place(self, draft: Path, path: Path) -> None:
        draft.replace(path)

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def sync_folder(self, path: Path) -> None:
        sync_folder(path)


def number_of(path: Path) -> int:
    """Of the first row of a file, by its name. Raises ConfigurationError for a name not ours."""
    try:
        return int(path.stem.partition("-")[2])
    except ValueError:
        raise ConfigurationError(f"{path} is no file of an archive") from None


def draft_of(path: Path) -> Path:
    return path.with_name(f".{path.stem}.draft")


@contextmanager
def _reader(path: Path) -> Iterator[pq.ParquetFile]:
    try:
        with pq.ParquetFile(path) as file:
            yield file
    except pa.ArrowInvalid as fault:
        raise Damaged(f"{path}: {fault}") from fault


def _writer(path: Path, schema: pa.Schema) -> pq.ParquetWriter:
    make_private(path)
    return pq.ParquetWriter(path, schema, compression="zstd")


class Drafts:
    """Files that are being written: rows in the order of their numbers, a file a day.

    oldest, newest   when the first and the last of their decisions were made, unix seconds
    """

    def __init__(self, folder: Folder, kind: str) -> None:
        self._folder, self._kind = folder, kind
        self._days: dict[str, _Draft] = {}
        self.rows = 0
        self.oldest, self.newest = float("inf"), float("-inf")

    def add(self, rows: Iterable[ArchivedRow]) -> None:
        days = dict[str, list[ArchivedRow]]()
        for row in rows:
            days.setdefault(day_of(row.decision.at), []).append(row)
            self.oldest = min(self.oldest, row.decision.at)
            self.newest = max(self.newest, row.decision.at)
        for day, its in days.items():
            if day not in self._days:
                name = f"{self._kind}-{its[0].number:0{DIGITS}}.parquet"
                self._days[day] = _Draft(self._folder.path / f"day={day}" / name, self._folder)
            self._days[day].add(batch(its))
            self.rows += len(its)
        if sum(draft.bytes for draft in self._days.values()) >= HELD_BYTES:
            for draft in self._days.values():
                draft.write()

    def full(self, rows: int) -> bool:
        return self.rows >= rows or len(self._days) >= DAYS

    def close(self) -> list[Path]:
        """The files of the drafts, which are complete now."""
        return [draft.close() for draft in self._days.values()]

    def discard(self) -> None:
        for path in self.close():
            self._folder.remove(draft_of(path))


class _Draft:
    """bytes: of the rows that are held in memory."""

    def __init__(self, path: Path, folder: Folder) -> None:
        path.parent.mkdir(exist_ok=True)
        self._path, self._schema = path, folder.schema
        self._writer = _writer(draft_of(path), self._schema)
        self._batches: list[pa.RecordBatch] = []
        self._rows = self.bytes = 0

    def add(self, batch: pa.RecordBatch) -> None:
        self._batches.append(batch)
        self._rows += batch.num_rows
        self.bytes += batch.nbytes
        if self._rows >= GROUP_ROWS:
            self.write()

    def write(self) -> None:
        if self._batches:
            table = pa.Table.from_batches(self._batches, self._schema)
            self._writer.write_table(table, row_group_size=table.num_rows)
            self._batches, self._rows, self.bytes = [], 0, 0

    def close(self) -> Path:
        self.write()
        self._writer.close()
        return self._path


@dataclass(frozen=True, slots=True)
class Totals:
    """What an archive holds of an experiment."""

    final: int
    open: int
    parts: int
    bytes: int


def totals(folder: Folder) -> Totals:
    parts, opens = folder.files("part"), folder.files("open")
    size = sum(path.stat().st_size for path in [*parts, *opens, folder.index_path])
    return Totals(_rows(parts), _rows(opens), len(parts), size)


def _rows(paths: Iterable[Path]) -> int:
    rows = 0
    for path in paths:
        with _reader(path) as file:
            rows += file.metadata.num_rows
    return rows
