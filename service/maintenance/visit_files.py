"""Read files of logged visits (JSON Lines, CSV, Parquet) a line at a time, in the form that
`POST /experiments/{name}/import` takes. docs: import.md.

CSV is read with the csv module: pyarrow's reader counts rows in place of lines, and refuses rows
with missing cells.
"""

import csv
import json
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

from service.errors import ConfigurationError

CONTEXT = "context."
NAMES = ("id", "arm", "unit")
NUMBERS = ("propensity", "reward")
PARSED = ("context", "arms", "probabilities")
"""Columns whose text is JSON."""

BATCH = 1_000  # rows of a Parquet file in memory at once

Types = Mapping[str, str]
"""Features of the context: name -> type, as in the definition."""

Line = tuple[int, dict[str, object] | str]
"""The number of a line, from 1, and its visit, or why it is none."""


def read(path: Path, types: Types) -> Iterator[Line]:
    """Yield the lines of a file. Raises ConfigurationError where the file is of no known kind or
    cannot be read."""
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise ConfigurationError(f"{path}: the name must end with {', '.join(READERS)}")
    try:
        yield from reader(path, types)
    except OSError as fault:
        raise ConfigurationError(f"{path}: {fault.strerror or fault}") from fault
    except (UnicodeDecodeError, csv.Error, ValueError) as fault:
        raise ConfigurationError(f"{path}: cannot be read: {fault}") from fault


def _json_lines(path: Path, types: Types) -> Iterator[Line]:
    with path.open(encoding="utf-8") as file:
        for number, text in enumerate(file, 1):
            if not text.strip():
                continue
            try:
                visit = json.loads(text)
            except json.JSONDecodeError as fault:
                yield number, f"not JSON: {fault.msg}"
                continue
            yield number, _visit(visit) if isinstance(visit, dict) else "not a JSON object"


def _csv(path: Path, types: Types) -> Iterator[Line]:
    with path.open(encoding="utf-8", newline="") as file:
        rows = csv.DictReader(file, restkey="", restval="")
        for row in rows:
            if "" in row:
                yield rows.line_num, "has more cells than the first line has names"
            else:
                cells = {name: cell for name, cell in row.items() if cell != ""}
                yield rows.line_num, _visit(_typed(cells, types))


def _parquet(path: Path, types: Types) -> Iterator[Line]:
    import pyarrow
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as file:
            number = 0
            for batch in file.iter_batches(BATCH):
                for row in batch.to_pylist():
                    number += 1
                    yield number, _visit(row)
    except pyarrow.ArrowException as fault:
        raise ConfigurationError(f"{path}: cannot be read: {fault}") from fault


READERS: dict[str, Callable[[Path, Types], Iterator[Line]]] = {
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
    ".csv": _csv,
    ".parquet": _parquet,
}


def _typed(cells: Mapping[str, str], types: Types) -> dict[str, object]:
    """Convert cells to the types of their names; leave a cell that does not fit as text, for the
    service to refuse."""
    found: dict[str, object] = {}
    for name, cell in cells.items():
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
        return float(cell)
    except ValueError:
        return cell


def _json(cell: str) -> object:
    try:
        return json.loads(cell)
    except json.JSONDecodeError:
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
