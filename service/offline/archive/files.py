"""The Parquet files of an archive: `<experiment>/decisions/day=2026-01-31/<first>-<last>.parquet`.

The name of a file says which records it holds, so the listing of a folder says where to continue. A
file appears whole and durable or not at all, and only an erasure rewrites it.
"""

import os
from collections.abc import Callable, Collection, Iterator, Sequence
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
DRAFT = ".draft"
"""Begin of the names of files that are not in the archive yet."""


class ArchiveCursor(NamedTuple):
    """The last archived record: its number in the log (0: none), the digest of its payload, and the
    day of its file."""

    number: int = 0
    digest: str = ""
    day: str = ""


@dataclass
class Draft:
    """Consecutive records for one file.

    last_payload   of the last record
    size           bytes of all payloads
    records        numbers and payloads of those that are not left out
    """

    day: str
    first: int = 0
    last: int = 0
    last_payload: bytes = b""
    size: int = 0
    records: list[tuple[int, bytes]] = field(default_factory=list)

    def add(self, number: int, payload: bytes, *, left_out: bool) -> None:
        self.first, self.last, self.last_payload = self.first or number, number, payload
        self.size += len(payload)
        if not left_out:
            self.records.append((number, payload))

    @property
    def digest(self) -> str:
        return digest(self.last_payload)


@dataclass(frozen=True, slots=True)
class Packed:
    """A draft that lies in a file of its own. damaged: numbers of its records that cannot be read,
    which it leaves out, and why."""

    path: Path
    rows: int
    damaged: list[tuple[int, str]]


def pack(
    draft: Draft,
    schema: pa.Schema,
    rows_of: Callable[[int, bytes], Sequence[ArchiveRow]],
    path: Path,
) -> Packed:
    """Write the rows of a draft, and the digest of its last record as metadata, to a file."""
    batches, damaged = list[pa.RecordBatch](), list[tuple[int, str]]()
    rows = list[ArchiveRow]()
    for number, payload in draft.records:
        try:
            rows += rows_of(number, payload)
        except Damaged as fault:
            damaged.append((number, str(fault)))
        if len(rows) >= BATCH_ROWS:
            batches.append(pa.RecordBatch.from_pylist(rows, schema))
            rows = []
    batches.append(pa.RecordBatch.from_pylist(rows, schema))
    table = pa.Table.from_batches(batches, schema)
    _write(table.replace_schema_metadata({"forage.digest": draft.digest}), path)
    return Packed(path, table.num_rows, damaged)


class ArchiveFiles:
    """The files of one kind of record of one experiment. Its folder is archive/EXPERIMENT/KIND.

    key      the column with the id of the decision
    cursor   as of the last file
    """

    def __init__(self, folder: Path, schema: pa.Schema, key: str) -> None:
        self.kind, self.schema = folder.name, schema
        self._folder, self._key = folder, key
        for left in folder.glob(f"{DRAFT}*"):  # of a process that was killed
            left.unlink()
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

    def draft_path(self, draft: Draft) -> Path:
        """Return where a draft is to be packed."""
        self._folder.mkdir(parents=True, exist_ok=True)
        return self._folder / f"{DRAFT}-{draft.first}"

    def add(self, draft: Draft, packed: Packed, erased: Collection[str]) -> None:
        """Add the next file, without the rows of erased decisions."""
        name = f"{draft.first:0{FILE_NAME_DIGITS}}-{draft.last:0{FILE_NAME_DIGITS}}.parquet"
        self._erase_from(packed.path, erased)
        path = self._folder / f"day={draft.day}" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        packed.path.replace(path)
        for folder in list(path.parents)[:4]:  # each may be new, up to the archive's
            sync_folder(folder)
        self.cursor = ArchiveCursor(draft.last, draft.digest, draft.day)

    def erase(self, decisions: Collection[str]) -> None:
        """Rewrite the files that hold rows of these decisions. A file without rows stays: its name
        says that they were archived."""
        for path in self.paths():
            self._erase_from(path, decisions)

    def _erase_from(self, path: Path, decisions: Collection[str]) -> None:
        if not decisions:
            return
        ids = _read(path, [self._key])
        if _without(ids, self._key, decisions).num_rows < ids.num_rows:
            draft = self._folder / DRAFT
            _write(_without(_read(path), self._key, decisions), draft)
            draft.replace(path)
            sync_folder(path.parent)

    def bodies(self, event_type: str) -> Iterator[str]:
        """Yield the bodies of the events of a type, as JSON."""
        for path in self.paths():
            table = _read(path, ["type", "body"])
            yield from table.filter(pc.equal(table["type"], event_type))["body"].to_pylist()


def last_of(path: Path) -> int:
    """Return the number of a file's last record. Raises ConfigurationError for a foreign file."""
    try:
        return int(path.stem.partition("-")[2])
    except ValueError:
        raise ConfigurationError(f"{path} is not a file of an archive") from None


def digest(payload: bytes) -> str:
    return blake2b(payload, digest_size=8).hexdigest()


def _write(table: pa.Table, path: Path) -> None:
    """Write a Parquet file that its owner alone can read, durably."""
    make_private(path)
    with path.open("wb") as file:
        pq.write_table(table, file, compression="zstd")
        file.flush()
        os.fsync(file.fileno())


def _read(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """Read a Parquet file. Raises Damaged."""
    try:
        with pq.ParquetFile(path) as file:
            return file.read(columns)
    except (pa.ArrowInvalid, OSError) as fault:
        raise Damaged(f"{path}: {fault}") from fault


def _without(table: pa.Table, key: str, decisions: Collection[str]) -> pa.Table:
    return table.filter(pc.invert(pc.is_in(table[key], pa.array(decisions, pa.string()))))
