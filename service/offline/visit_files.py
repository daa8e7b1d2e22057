"""Read files of logged visits (JSON Lines, DSJSON, CSV, Parquet) a line at a time, in the form that
`POST /experiments/{name}/import` takes. docs: import.md.

CSV is read with the csv module: pyarrow's reader counts rows in place of lines, and refuses rows
with missing cells.
"""

import csv
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from functools import partial
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from service.definition.files import json_of
from service.errors import ConfigurationError
from service.naming import listed, quoted
from service.offline.dsjson import KnownFeatures, visit_of
from service.offline.renames import Renames, option_of

if TYPE_CHECKING:
    from pyarrow import RecordBatch

CONTEXT = "context."
REQUIRED_COLUMNS = ("id", "at", "arm", "propensity")
VISIT_COLUMNS = (*REQUIRED_COLUMNS, "context", "arms", "probabilities", "reward", "unit")
TEXT_COLUMNS = ("id", "arm", "unit")
NUMBER_COLUMNS = ("propensity", "reward")
LIKELY = {
    "id": {"id", "uuid", "key"},
    "at": {"at", "time", "timestamp", "ts", "date", "datetime"},
    "arm": {"arm", "action", "shown", "item", "choice", "chosen", "variant", "product"},
    "propensity": {"propensity", "prob", "probability", "p", "pscore", "chance"},
}
"""Words in the names of columns of other systems."""
PARSED = ("context", "arms", "probabilities")
"""Columns whose text is JSON."""

ROWS_PER_READ = 1_000  # rows of a Parquet file in memory at once
NOT_UTF8 = "not UTF-8"

VisitLine = tuple[int, dict[str, object] | str]
"""Visit of a line: its number, from 1, and the visit, or why it is none."""

CELL_CHARACTERS = 131_072
"""Most characters of a cell of a CSV file: a longer one is refused with its line."""


def read(
    path: Path, known: KnownFeatures, renames: Renames | None = None, separator: str = ","
) -> Iterator[VisitLine]:
    """Yield the lines of a file. separator: of the cells of a CSV file. Raises ConfigurationError
    where the file is of no known kind, cannot be read, or lacks a column."""
    reader = FILE_READERS.get(path.suffix.lower())
    if reader is None:
        raise ConfigurationError(f"{path}: the name must end with {', '.join(FILE_READERS)}")
    try:
        yield from reader(Source(path, known, renames or Renames(), separator))
    except OSError as fault:
        raise ConfigurationError(f"{path}: {fault.strerror or fault}") from fault
    except csv.Error as fault:
        raise ConfigurationError(f"{path}: cannot be read: {_worded(fault)}") from fault
    except ValueError as fault:
        raise ConfigurationError(f"{path}: cannot be read: {fault}") from fault


class Source(NamedTuple):
    """A file, and what is known of its columns."""

    path: Path
    known: KnownFeatures
    renames: Renames
    separator: str


def _json_lines(source: Source) -> Iterator[VisitLine]:
    for number, found in _objects(source.path):
        if isinstance(found, dict):
            try:
                found = _visit(_renamed(found, source.renames))
            except ValueError as fault:
                found = str(fault)
        yield number, found


def _dsjson(source: Source) -> Iterator[VisitLine]:
    if source.renames:
        raise ConfigurationError(f"{source.path}: --map renames columns, and DSJSON has none")
    for number, found in _objects(source.path):
        yield number, found if isinstance(found, str) else visit_of(found, source.known)


def _objects(path: Path) -> Iterator[VisitLine]:
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
    """Say whether a text is UTF-8: the decoder puts surrogates in place of bytes that are not."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _csv(source: Source) -> Iterator[VisitLine]:
    csv.field_size_limit(CELL_CHARACTERS)  # of this process
    separator = "\t" if source.separator == "tab" else source.separator
    with source.path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        first = file.readline()
        file.seek(0)
        try:
            rows = csv.reader(file, delimiter=separator, skipinitialspace=_blank(first, separator))
        except (TypeError, ValueError) as fault:
            raise ConfigurationError("--separator: give one character, or tab") from fault
        columns = next(rows, [])
        _expect_separator(source.path, columns)
        _check_columns(source, columns)
        names = [source.renames.get(column, column) for column in columns]
        converters = [(name, _converter(name, source.known.context)) for name in names]
        while True:
            try:
                cells = next(rows)
            except StopIteration:
                return
            except csv.Error as fault:
                yield rows.line_num, f"not CSV: {_worded(fault)}"
                continue
            if cells:  # a line
                yield rows.line_num, _row(converters, cells)


def _row(
    converters: Sequence[tuple[str, "Converter"]], cells: Sequence[str]
) -> dict[str, object] | str:
    """Convert the cells of a line to a visit, or say why they are none."""
    count, names = len(cells), len(converters)
    if count != names:
        amount = "more" if count > names else "fewer"
        return f"has {amount} cells than the first line has names: {count}, not {names}"
    if not _is_utf8("".join(cells)):
        return NOT_UTF8
    given = zip(converters, cells, strict=True)
    try:
        return _visit({name: convert(cell) for (name, convert), cell in given if name and cell})
    except ValueError as fault:
        return str(fault)


def _blank(line: str, separator: str) -> bool:
    """Say whether a blank follows each separator of the first line: then it belongs to it."""
    _, *others = line.split(separator or ",")
    return bool(others) and all(name.startswith(" ") for name in others)


def _expect_separator(path: Path, columns: Sequence[str]) -> None:
    """Raise ConfigurationError where the first line is one cell, and seems to be several."""
    if len(columns) != 1:
        return
    for separator, option in ((";", "';'"), ("\t", "tab"), ("|", "'|'"), (",", "','")):
        if separator in columns[0]:
            raise ConfigurationError(
                f"{path}: the first line has no other separator than {option}: give it with "
                f"--separator {option}"
            )


def _worded(fault: csv.Error) -> str:
    if "field limit" in str(fault):
        return f"a cell has more than {CELL_CHARACTERS:,} characters"
    return str(fault)


def _check_columns(source: Source, columns: Sequence[str]) -> None:
    """Raise ConfigurationError where columns are missing, unknown or given twice, with an option
    that mends it."""
    path, known, renames, there = source.path, source.known, source.renames, listed(columns)
    if absent := [name for name in renames if name not in columns]:
        say = f"--map: there is no column {quoted(absent[0])}, only {there}"
        raise ConfigurationError(f"{path}: {say}")
    new = {column: renames.get(column, column) for column in columns}
    names = [new[column] for column in columns if new[column] or column not in renames]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ConfigurationError(f"{path}: two columns are named {quoted(twice[0])}")
    missing = [name for name in REQUIRED_COLUMNS if name not in names]
    unknown = [
        column
        for column, name in new.items()
        if name not in VISIT_COLUMNS
        and not name.startswith(CONTEXT)
        and (name or column not in renames)
    ]
    if not missing and not unknown:
        return
    free = [column for column in unknown if new[column] not in known.context]
    found = {_column_for(name, free) or f"YOUR_{name.upper()}": name for name in missing}
    left = {n: f"{CONTEXT}{new[n]}" if new[n] in known.context else "" for n in unknown}
    hint = option_of(renames | left | found)
    if missing:
        say = f"there is no column {', '.join(missing)}, only {there}: rename columns with {hint}"
    else:
        say = (
            f"a visit has no {listed([new[column] for column in unknown])}: make them features, or "
            f"leave them out, with {hint} (a visit has {', '.join(VISIT_COLUMNS)})"
        )
    raise ConfigurationError(f"{path}: {say}")


def _column_for(name: str, columns: Sequence[str]) -> str | None:
    """Find the column whose own name says that it is this one."""
    for column in columns:
        if set(re.split(r"[^a-z]+", column.lower())) & LIKELY[name]:
            return column
    return None


def _renamed(row: Mapping[str, object], renames: Renames) -> dict[str, object]:
    found = {renames.get(name, name): value for name, value in row.items()}
    found.pop("", None)
    return found


def _parquet(source: Source) -> Iterator[VisitLine]:
    import pyarrow
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(source.path) as file:
            _check_columns(source, file.schema_arrow.names)
            number = 0
            for batch in file.iter_batches(ROWS_PER_READ):
                for row in _rows(batch):
                    number += 1
                    yield number, row if isinstance(row, str) else _typed_row(row, source.renames)
    except pyarrow.ArrowException as fault:
        raise ConfigurationError(f"{source.path}: cannot be read as Parquet") from fault


def _typed_row(row: Mapping[str, object], renames: Renames) -> dict[str, object] | str:
    """Convert a row of Parquet to a visit, or name the column that has no meaning in one."""
    try:
        return _visit({name: _plain(value, name) for name, value in _renamed(row, renames).items()})
    except ValueError as fault:
        return str(fault)


def _plain(value: object, path: str) -> object:
    """Convert a value of Parquet to one of JSON: decimals to numbers, the day of a visit to its
    first moment. Raises ValueError that names the column."""
    match value:
        case None | bool() | int() | str():
            return value
        case float() if isfinite(value):
            return value
        case Decimal() if value.is_finite():
            return int(value) if value == value.to_integral_value() else float(value)
        case float() | Decimal():
            raise ValueError(f"{path} is {value}, which is no number: leave it empty (null)")
        case dict():
            return {name: _plain(member, f"{path}.{name}") for name, member in value.items()}
        case list():
            return [_plain(item, f"{path}.{index}") for index, item in enumerate(value)]
        case datetime() if path == "at":
            return value
        case date() if path == "at" and not isinstance(value, datetime):
            return datetime.combine(value, time(), UTC)
        case date() | time():
            raise ValueError(f"{path} is a time, which only `at` may be: make it text or a number")
        case _:
            kind = type(value).__name__
            raise ValueError(f"{path} holds {kind}: make it text, a number or a list")


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


FileReader = Callable[[Source], Iterator[VisitLine]]
FILE_READERS: dict[str, FileReader] = {
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
    ".dsjson": _dsjson,
    ".csv": _csv,
    ".parquet": _parquet,
}


Converter = Callable[[str], object]
"""Function that converts a cell to the type of its column, and leaves one that does not fit as
text, for the service to refuse."""


def _converter(name: str, types: Mapping[str, str]) -> Converter:
    kind = types.get(name.removeprefix(CONTEXT)) if name.startswith(CONTEXT) else None
    if name in NUMBER_COLUMNS or name == "at" or kind == "numeric":
        return _number
    if kind == "boolean":
        return _boolean
    return partial(_json, name=name) if kind == "vector" else str


def _boolean(cell: str) -> bool | str:
    return {"true": True, "1": True, "false": False, "0": False}.get(cell.lower(), cell)


def _number(cell: str) -> float | str:
    try:
        number = float(cell)
    except ValueError:
        return cell
    return number if isfinite(number) else cell


def _json(cell: str, name: str) -> object:
    """Parse a cell of JSON; leave other text for the service to refuse. Raises ValueError that
    names the column where a list or an object is faulty."""
    try:
        return json_of(cell)
    except ValueError as fault:
        if cell.lstrip()[:1] in ("{", "["):
            raise ValueError(f"{name}: {fault}") from fault
        return cell


def _visit(row: Mapping[str, object]) -> dict[str, object]:
    """Convert a row to a visit: without nulls, with columns `context.name` in a context, with ids
    as text. Raises ValueError that names a faulty column."""
    context, visit = _parted(row)
    for name in PARSED:
        if isinstance(text := visit.get(name), str):
            visit[name] = _json(text, name)
    if isinstance(own := visit.get("context"), dict):
        context |= {name: value for name, value in own.items() if value is not None}
    if context:
        visit["context"] = context
    for name in TEXT_COLUMNS:
        if name in visit:
            visit[name] = _name(visit[name])
    if isinstance(arms := visit.get("arms"), list):
        visit["arms"] = [arm if isinstance(arm, str) else _arm(arm) for arm in arms]
    if isinstance(at := visit.get("at"), datetime):
        visit["at"] = (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
    return visit


def _parted(row: Mapping[str, object]) -> tuple[dict[str, object], dict[str, object]]:
    """Return the columns of the context, and the others, without nulls."""
    context, others = dict[str, object](), dict[str, object]()
    for name, value in row.items():
        if value is None:
            continue
        if name.startswith(CONTEXT):
            context[name.removeprefix(CONTEXT)] = value
        else:
            others[name] = value
    return context, others


def _name(value: object) -> object:
    """Write a number as the name that it is: 4 and 4.0 (a column of numbers with gaps) as "4"."""
    if isinstance(value, str):
        return value
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _arm(arm: object) -> object:
    if not isinstance(arm, dict):
        return _name(arm)
    features = arm.get("features")
    if isinstance(features, dict):
        features = {name: value for name, value in features.items() if value is not None}
    kept = {**arm, "id": _name(arm.get("id")), "features": features}
    return {name: value for name, value in kept.items() if value is not None}
