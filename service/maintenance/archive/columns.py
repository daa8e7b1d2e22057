"""The columns of an archive: decisions with their rewards, as Arrow has them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec
import numpy as np
import pyarrow as pa

from service.errors import Damaged
from service.maintenance.archive.index import NO_REWARDS, RewardHistory
from service.state.events import Decision

SCHEMA = 1
"""Of the columns, in each file's metadata. Raised when a reader could misread a newer file."""

YEAR_1_S, YEAR_10000_S = -62_135_596_800.0, 253_402_300_800.0
"""Unix seconds between which a calendar has days."""

TEXT, NUMBER, TIME = pa.string(), pa.float64(), pa.timestamp("us", tz="UTC")
SHOWN = pa.struct({"arm": TEXT, "propensity": NUMBER, "x": pa.list_(NUMBER), "inline": pa.bool_()})
REWARD = pa.struct(
    {
        "arm": TEXT,
        "reward": NUMBER,
        "default": pa.bool_(),
        "at": TIME,
        "position": pa.int64(),
        "corrections": pa.int32(),
    }
)
COLUMNS = pa.schema(
    {
        "id": TEXT,
        "at": TIME,
        "policy": TEXT,
        "assignment": NUMBER,
        "model_version": TEXT,
        "schema_version": pa.int64(),
        "unit": TEXT,
        "key": TEXT,
        "context": TEXT,
        "arms": pa.list_(TEXT),
        "inline": TEXT,
        "probabilities": pa.list_(NUMBER),
        "seed": pa.int64(),
        "bank": pa.int64(),
        "slate": NUMBER,
        "deferred": pa.bool_(),
        "shown": pa.list_(SHOWN),
        "rewards": pa.list_(REWARD),
        "reward_by": TIME,
        "accept_until": TIME,
        "final": pa.bool_(),
    }
)


@dataclass(frozen=True, slots=True)
class ArchivedRow:
    """A decision with its rewards. number: of its row in the store."""

    number: int
    decision: Decision
    history: RewardHistory = NO_REWARDS
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


def batch(rows: Sequence[ArchivedRow]) -> pa.RecordBatch:
    """Columns of rows; numbers keep all their bits."""
    records = [
        {
            **msgspec.structs.asdict(row.decision),
            "context": msgspec.json.encode(row.decision.context).decode(),
            "inline": msgspec.json.encode(row.decision.inline).decode(),
            "rewards": row.history.rewards,
            "final": row.final,
        }
        for row in rows
    ]
    arrays = [_array([each[field.name] for each in records], field.type) for field in COLUMNS]
    return pa.RecordBatch.from_arrays(arrays, schema=COLUMNS)


def _array(values: Sequence[object], kind: pa.DataType) -> pa.Array:
    """Times to the nearest microsecond; structures are flattened, which takes pyarrow less time."""
    if kind == TIME:
        return pa.array(np.rint(np.array(values, float) * 1e6).astype(np.int64), TIME)
    if not (pa.types.is_list(kind) and pa.types.is_struct(kind.value_type)):
        return pa.array(values, kind)
    lists: Sequence[Sequence[msgspec.Struct]] = values  # type: ignore[assignment]
    flat = [msgspec.structs.asdict(each) for some in lists for each in some]
    fields = [_array([each[field.name] for each in flat], field.type) for field in kind.value_type]
    structs = pa.StructArray.from_arrays(fields, fields=list(kind.value_type))
    offsets = np.cumsum([0, *map(len, lists)], dtype=np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), structs, type=kind)
