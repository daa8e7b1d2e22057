"""The Parquet files of an archive: `<experiment>/decisions/day=2026-01-31/<first>-<last>.parquet`.

The name of a file says which records it holds, so the listing of a folder says where to continue. A
file appears whole and durable or not at all, and only an erasure rewrites it.
"""

import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from service.errors import ConfigurationError, Damaged
from service.log.stores.sqlite_file import sync_folder
from service.offline.archive.columns import ArchiveRow
from service.security.files import make_private

BATCH_ROWS = 200
"""Rows held as Python objects before they become Arrow columns."""

FILE_NAME_DIGITS = 12


class ArchiveCursor(NamedTuple):
    """The last archived record: its number in the log (0: none), the digest of its payload, and the
    day of its file."""

    number: int = 0
    digest: str = ""
    day: str = ""


@dataclass
class Draft:
    """Consecutive records for one file. size: bytes of their payloads; rows: of those that are
    not left out."""

    schema: pa.Schema
    day: str
    first: int = 0
    last: int = 0
    digest: str = ""
    size: int = 0
    rows: int = 0
    _pending: list[ArchiveRow] = field(default_factory=list)
    _batches: list[pa.RecordBatch] = field(default_factory=list)

    def add(self, number: int, payload: bytes, rows: Sequence[ArchiveRow]) -> None:
        """Add a record. rows: of it; none where the archive leaves it out."""
        self.first, self.last, self.digest = self.first or number, number, digest(payload)
        self.size += len(payload)
        self.rows += len(rows)
        self._pending += rows
        if len(self._pending) >= BATCH_ROWS:
            self._pack()

    def table(self) -> pa.Table:
        """Return the rows, and the digest of the last record as metadata."""
        self._pack()
        table = pa.Table.from_batches(self._batches, self.schema)
        return table.replace_schema_metadata({"forage.digest": self.digest})

    def _pack(self) -> None:
        self._batches.append(pa.RecordBatch.from_pylist(self._pending, self.schema))
        self._pending = []


class ArchiveFiles:
    """The files of one kind of record of one experiment. Its folder is archive/EXPERIMENT/KIND.

    key      the column with the id of the decision
    cursor   as of the last file
    """

    def __init__(self, folder: Path, schema: pa.Schema, key: str) -> None:
        self.kind, self.schema = folder.name, schema
        self._folder, self._key = folder, key
        self._draft = folder / ".draft"
        self._draft.unlink(missing_ok=True)  # of a process that was killed
        self.cursor = ArchiveCursor()
        if paths := self.paths():
            last = paths[-1]
            found = _read(last, []).schema.metadata[b"forage.digest"].decode()
            self.cursor = ArchiveCursor(last_of(last), found, last.parent.name.removeprefix("day="))

    def paths(self) -> list[Path]:
        """List the files in log order. Raises ConfigurationError for a foreign file."""
        return sorted(self._folder.glob("day=*/*.parquet"), key=last_of)

    def holds(self, number: int) -> bool:
        """Say whether the last file has the row of this number."""
        paths, column = self.paths(), self.schema.names[0]
        return bool(paths) and number in _read(paths[-1], [column])[column].to_pylist()

    def write(self, draft: Draft, erased: Collection[str]) -> None:
        """Write the next file, without the rows of erased decisions."""
        name = f"{draft.first:0{FILE_NAME_DIGITS}}-{draft.last:0{FILE_NAME_DIGITS}}.parquet"
        table = _without(draft.table(), self._key, erased)
        self._place(table, self._folder / f"day={draft.day}" / name)
        self.cursor = ArchiveCursor(draft.last, draft.digest, draft.day)

    def erase(self, decisions: Collection[str]) -> None:
        """Rewrite the files that hold rows of these decisions. A file without rows stays: its name
        says that they were archived."""
        for path in self.paths():
            ids = _read(path, [self._key])
            if _without(ids, self._key, decisions).num_rows < ids.num_rows:
                self._place(_without(_read(path), self._key, decisions), path)

    def bodies(self, event_type: str) -> Iterator[str]:
        """Yield the bodies of the events of a type, as JSON."""
        for path in self.paths():
            table = _read(path, ["type", "body"])
            yield from table.filter(pc.equal(table["type"], event_type))["body"].to_pylist()

    def _place(self, table: pa.Table, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        make_private(self._draft)
        with self._draft.open("wb") as file:
            pq.write_table(table, file, compression="zstd")
            file.flush()
            os.fsync(file.fileno())
        self._draft.replace(path)
        for folder in list(path.parents)[:4]:  # each may be new, up to the archive's
            sync_folder(folder)


def last_of(path: Path) -> int:
    """Return the number of a file's last record. Raises ConfigurationError for a foreign file."""
    try:
        return int(path.stem.partition("-")[2])
    except ValueError:
        raise ConfigurationError(f"{path} is not a file of an archive") from None


def digest(payload: bytes) -> str:
    return blake2b(payload, digest_size=8).hexdigest()


def _read(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """Read a Parquet file. Raises Damaged."""
    try:
        with pq.ParquetFile(path) as file:
            return file.read(columns)
    except (pa.ArrowInvalid, OSError) as fault:
        raise Damaged(f"{path}: {fault}") from fault


def _without(table: pa.Table, key: str, decisions: Collection[str]) -> pa.Table:
    if not decisions:
        return table
    return table.filter(pc.invert(pc.is_in(table[key], pa.array(decisions, pa.string()))))
