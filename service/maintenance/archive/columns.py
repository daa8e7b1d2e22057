"""The columns of an archive: what a row of it holds, and rows as Arrow has them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from service.errors import Damaged
from service.maintenance.archive.index import NOTHING, Found
from service.state.events import Decision

SCHEMA = 1
"""Of the columns, in each file's metadata. Raised when a reader could misread a newer file."""

YEAR_1_S, YEAR_10000_S = -62_135_596_800.0, 253_402_300_800.0
"""Unix seconds between which a calendar has days."""

TIME = pa.timestamp("us", tz="UTC")
COLUMNS = pa.schema(
    [
        ("id", pa.string()),
        ("at", TIME),
        ("policy", pa.string()),
        ("assignment", pa.float64()),
        ("model_version", pa.string()),
        ("schema_version", pa.int64()),
        ("unit", pa.string()),
        ("key", pa.string()),
        ("context", pa.string()),
        ("arms", pa.list_(pa.string())),
        ("inline", pa.string()),
        ("probabilities", pa.list_(pa.float64())),
        ("seed", pa.int64()),
        ("bank", pa.int64()),
        ("slate", pa.float64()),
        ("deferred", pa.bool_()),
        (
            "shown",
            pa.list_(
                pa.struct(
                    [
                        ("arm", pa.string()),
                        ("propensity", pa.float64()),
                        ("x", pa.list_(pa.float64())),
                        ("inline", pa.bool_()),
                    ]
                )
            ),
        ),
        (
            "rewards",
            pa.list_(
                pa.struct(
                    [
                        ("arm", pa.string()),
                        ("reward", pa.float64()),
                        ("default", pa.bool_()),
                        ("at", TIME),
                        ("position", pa.int64()),
                        ("corrections", pa.int32()),
                    ]
                )
            ),
        ),
        ("reward_by", TIME),
        ("accept_until", TIME),
        ("final", pa.bool_()),
    ]
)


PLAIN = [
    field.name
    for field in COLUMNS
    if field.type != TIME and field.name not in ("context", "inline", "shown", "rewards", "final")
]
"""Columns that hold what a decision has under the same name."""


@dataclass(frozen=True, slots=True)
class Row:
    """A decision with what came of it. number: of its row in the store."""

    number: int
    decision: Decision
    found: Found = NOTHING
    final: bool = True


def day_of(at: float) -> str:
    """The UTC day of unix seconds."""
    return datetime.fromtimestamp(at, UTC).date().isoformat()


def check(decision: Decision) -> None:
    """Raises Damaged for a decision that the columns cannot hold."""
    for at in (decision.at, decision.reward_by, decision.accept_until):
        if not YEAR_1_S <= at < YEAR_10000_S:
            raise Damaged(f"{at} is no time that a calendar has")
    if not -(2**63) <= decision.seed < 2**63:
        raise Damaged(f"its seed {decision.seed} has more than 64 bits")


def schema_of(experiment: str) -> pa.Schema:
    return COLUMNS.with_metadata(
        {"forage.archive_schema": str(SCHEMA), "forage.experiment": experiment}
    )


def batch(rows: Sequence[Row]) -> pa.RecordBatch:
    """Columns of rows; numbers keep all their bits."""
    decisions = [row.decision for row in rows]

    def of(name: str) -> list[Any]:
        return [getattr(decision, name) for decision in decisions]

    def texts(name: str) -> list[str]:
        return [msgspec.json.encode(value).decode() for value in of(name)]

    columns = {
        **{name: of(name) for name in PLAIN},
        **{name: times(of(name)) for name in ("at", "reward_by", "accept_until")},
        **{name: texts(name) for name in ("context", "inline")},
        "shown": _structs("shown", of("shown")),
        "rewards": _structs("rewards", [row.found.rewards for row in rows]),
        "final": [row.final for row in rows],
    }
    arrays = [pa.array(columns[field.name], field.type) for field in COLUMNS]
    return pa.RecordBatch.from_arrays(arrays, schema=COLUMNS)


def times(seconds: Sequence[float]) -> pa.Array:
    """Unix seconds to the nearest microsecond."""
    return pa.array(np.rint(np.array(seconds, float) * 1e6).astype(np.int64), TIME)


def _structs(column: str, lists: Sequence[Sequence[Any]]) -> pa.Array:
    """A list of structures a row, from objects that have their fields as attributes."""
    kind = COLUMNS.field(column).type
    flat = [each for some in lists for each in some]
    fields = [
        times([each.at for each in flat])
        if field.type == TIME
        else pa.array([getattr(each, field.name) for each in flat], field.type)
        for field in kind.value_type
    ]
    offsets = np.cumsum([0, *map(len, lists)], dtype=np.int32)
    values = pa.StructArray.from_arrays(fields, fields=list(kind.value_type))
    return pa.ListArray.from_arrays(pa.array(offsets), values, type=kind)
