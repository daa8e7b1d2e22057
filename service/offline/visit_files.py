"""Read files of logged visits (JSON Lines, DSJSON, CSV, Parquet) a line at a time, in the form that
`POST /experiments/{name}/import` takes. docs: import.md.

CSV is read with the csv module: pyarrow's reader counts rows in place of lines, and refuses rows
with missing cells.
"""

import csv
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING

from service.definition.files import json_of
from service.errors import ConfigurationError
from service.naming import listed, quoted
from service.offline.dsjson import Known, visit_of

if TYPE_CHECKING:
    from pyarrow import RecordBatch

CONTEXT = "context."
REQUIRED = ("id", "at", "arm", "propensity")
COLUMNS = (*REQUIRED, "context", "arms", "probabilities", "reward", "unit")
NAMES = ("id", "arm", "unit")
NUMBERS = ("propensity", "reward")
LIKELY = {
    "id": {"id", "uuid", "key"},
    "at": {"at", "time", "timestamp", "ts", "date", "datetime"},
    "arm": {"arm", "action", "shown", "item", "choice", "chosen", "variant", "product"},
    "propensity": {"propensity", "prob", "probability", "p", "pscore", "chance"},
}
"""Words in the names of columns of other systems."""
PARSED = ("context", "arms", "probabilities")
"""Columns whose text is JSON."""

BATCH = 1_000  # rows of a Parquet file in memory at once
NOT_UTF8 = "not UTF-8"

Renames = Mapping[str, str]
"""Name in the file -> name in a visit; "" leaves a column out."""

Line = tuple[int, dict[str, object] | str]
"""The number of a line, from 1, and its visit, or why it is none."""

CELL_CHARACTERS = 131_072
"""Of a cell of a CSV file: a longer one is refused with its line."""


def read(path: Path, known: Known, renames: Renames | None = None) -> Iterator[Line]:
    """Yield the lines of a file. Raises ConfigurationError where the file is of no known kind,
    cannot be read, or lacks a column."""
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise ConfigurationError(f"{path}: the name must end with {', '.join(READERS)}")
    try:
        yield from reader(path, known, renames or {})
    except OSError as fault:
        raise ConfigurationError(f"{path}: {fault.strerror or fault}") from fault
    except csv.Error as fault:
        raise ConfigurationError(f"{path}: cannot be read: {_worded(fault)}") from fault
    except ValueError as fault:
        raise ConfigurationError(f"{path}: cannot be read: {fault}") from fault


def _json_lines(path: Path, known: Known, renames: Renames) -> Iterator[Line]:
    for number, found in _objects(path):
        yield number, found if isinstance(found, str) else _visit(_renamed(found, renames))


def _dsjson(path: Path, known: Known, renames: Renames) -> Iterator[Line]:
    if renames:
        raise ConfigurationError(f"{path}: --map renames columns, and DSJSON has none")
    for number, found in _objects(path):
        yield number, found if isinstance(found, str) else visit_of(found, known)


def _objects(path: Path) -> Iterator[Line]:
    """Yield the JSON objects of a file, one a line."""
    with path.open(encoding="utf-8-sig", errors="surrogateescape") as file:
        for number, text in enumerate(file, 1):
            if text.strip():
                yield number, _object(text)


def _object(text: str) -> dict[str, object] | str:
    if not _is_utf8(text):
        return NOT_UTF8
    try:
        found = json_of(text)
    except ValueError as fault:
        return str(fault)
    return found if isinstance(found, dict) else "not a JSON object"


def _is_utf8(text: str) -> bool:
    """False where the decoder put surrogates in place of bytes that are not UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _csv(path: Path, known: Known, renames: Renames) -> Iterator[Line]:
    csv.field_size_limit(CELL_CHARACTERS)  # of this process
    with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        rows = csv.DictReader(file, restkey="", restval="")
        _check_columns(path, rows.fieldnames or [], known, renames)
        while True:
            try:
                row = next(rows)
            except StopIteration:
                return
            except csv.Error as fault:
                yield rows.reader.line_num, f"not CSV: {_worded(fault)}"
                continue
            if "" in row:
                yield rows.line_num, "has more cells than the first line has names"
            elif not _is_utf8("".join(row.values())):
                yield rows.line_num, NOT_UTF8
            else:
                cells = {name: cell for name, cell in row.items() if cell != ""}
                yield rows.line_num, _visit(_typed(_renamed(cells, renames), known.context))


def _worded(fault: csv.Error) -> str:
    if "field limit" in str(fault):
        return f"a cell has more than {CELL_CHARACTERS:,} characters"
    return str(fault)


def _check_columns(path: Path, columns: Sequence[str], known: Known, renames: Renames) -> None:
    """Raise ConfigurationError where columns are missing, unknown or given twice."""
    there = listed(columns)
    if absent := [name for name in renames if name not in columns]:
        say = f"--map: there is no column {quoted(absent[0])}, only {there}"
        raise ConfigurationError(f"{path}: {say}")
    names = [name for column in columns if (name := renames.get(column, column))]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ConfigurationError(f"{path}: two columns are named {quoted(twice[0])}")
    missing = [name for name in REQUIRED if name not in names]
    unknown = [name for name in names if name not in COLUMNS and not name.startswith(CONTEXT)]
    if missing:
        free = [name for name in unknown if name not in known.context]
        hint = ",".join(f"{_column_for(name, free)}={name}" for name in missing)
        raise ConfigurationError(
            f"{path}: there is no column {', '.join(missing)}, only {there}: rename columns with "
            f"--map {hint}"
        )
    if unknown:
        hint = ",".join(f"{n}={CONTEXT}{n}" if n in known.context else f"{n}=" for n in unknown)
        raise ConfigurationError(
            f"{path}: a visit has no {listed(unknown)}: make them features, or leave them out, "
            f"with --map {hint} (a visit has {', '.join(COLUMNS)})"
        )


def _column_for(name: str, columns: Sequence[str]) -> str:
    """Find the column whose own name says that it is this one; else NAME, for the caller to say."""
    for column in columns:
        if set(re.split(r"[^a-z]+", column.lower())) & LIKELY[name]:
            return column
    return "NAME"


def _renamed(row: Mapping[str, object], renames: Renames) -> dict[str, object]:
    found = {renames.get(name, name): value for name, value in row.items()}
    found.pop("", None)
    return found


def _parquet(path: Path, known: Known, renames: Renames) -> Iterator[Line]:
    import pyarrow
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as file:
            _check_columns(path, file.schema_arrow.names, known, renames)
            number = 0
            for batch in file.iter_batches(BATCH):
                for row in _rows(batch):
                    number += 1
                    yield number, row if isinstance(row, str) else _visit(_renamed(row, renames))
    except pyarrow.ArrowException as fault:
        raise ConfigurationError(f"{path}: cannot be read as Parquet") from fault


def _rows(batch: "RecordBatch") -> Iterator[dict[str, object] | str]:
    """Convert a batch at once, or a row at a time where one of them cannot be converted."""
    try:
        yield from batch.to_pylist()
        return
    except (ValueError, OverflowError):
        pass
    for number in range(batch.num_rows):
        try:
            yield batch.slice(number, 1).to_pylist()[0]
        except UnicodeDecodeError:
            yield NOT_UTF8
        except (ValueError, OverflowError):
            yield "holds a number or a time that is out of range"


Reader = Callable[[Path, Known, Renames], Iterator[Line]]
READERS: dict[str, Reader] = {
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
    ".dsjson": _dsjson,
    ".csv": _csv,
    ".parquet": _parquet,
}


def _typed(cells: Mapping[str, object], types: Mapping[str, str]) -> dict[str, object]:
    """Convert cells to the types of their names; leave a cell that does not fit as text, for the
    service to refuse."""
    found: dict[str, object] = {}
    for name, cell in cells.items():
        assert isinstance(cell, str)
        kind = types.get(name.removeprefix(CONTEXT)) if name.startswith(CONTEXT) else None
        if name in NUMBERS or name == "at" or kind == "numeric":
            found[name] = _number(cell)
        elif kind == "boolean":
            found[name] = {"true": True, "1": True, "false": False, "0": False}.get(
                cell.lower(), cell
            )
        elif kind == "vector":
            found[name] = _json(cell)
        else:
            found[name] = cell
    return found


def _number(cell: str) -> float | str:
    try:
        number = float(cell)
    except ValueError:
        return cell
    return number if isfinite(number) else cell


def _json(cell: str) -> object:
    try:
        return json_of(cell)
    except ValueError:
        return cell


def _visit(row: Mapping[str, object]) -> dict[str, object]:
    """Convert a row to a visit: without nulls, with columns `context.name` in a context, with ids
    as text."""
    context = {
        name.removeprefix(CONTEXT): value
        for name, value in row.items()
        if name.startswith(CONTEXT) and value is not None
    }
    visit = {
        name: value
        for name, value in row.items()
        if value is not None and not name.startswith(CONTEXT)
    }
    for name in PARSED:
        if isinstance(text := visit.get(name), str):
            visit[name] = _json(text)
    if isinstance(own := visit.get("context"), dict):
        context |= {name: value for name, value in own.items() if value is not None}
    if context:
        visit["context"] = context
    for name in NAMES:
        if name in visit:
            visit[name] = _name(visit[name])
    if isinstance(arms := visit.get("arms"), list):
        visit["arms"] = [_arm(arm) for arm in arms]
    if isinstance(at := visit.get("at"), datetime):
        visit["at"] = (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
    return visit


def _name(value: object) -> object:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _arm(arm: object) -> object:
    if not isinstance(arm, dict):
        return _name(arm)
    features = arm.get("features")
    if isinstance(features, dict):
        features = {name: value for name, value in features.items() if value is not None}
    kept = {**arm, "id": _name(arm.get("id")), "features": features}
    return {name: value for name, value in kept.items() if value is not None}
