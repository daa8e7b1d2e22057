"""The columns of an archive: decisions and events as the log has them.

`at` of the log is `time` here, because DuckDB reserves the word `at`.
"""

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from msgspec.json import encode
from msgspec.structs import asdict

from service.errors import Damaged
from service.state.decisions import Decision
from service.state.events import AnyEvent, settlements_of

ArchiveRow = dict[str, Any]
"""Values of one record by column; others are ignored."""

YEAR_1_S, YEAR_10000_S = -62_135_596_800.0, 253_402_300_799.0
"""Unix seconds between which a calendar has days, less a second that times may be rounded up to."""

TEXT, FLOAT, INTEGER, FLAG = pa.string(), pa.float64(), pa.int64(), pa.bool_()
TIMESTAMP, FLOATS = pa.timestamp("us", tz="UTC"), pa.list_(FLOAT)
BASE_VECTOR = {"numbers": FLOATS, "places": pa.list_(pa.int32())}
"""Members of a `Row`."""

SHOWN_STRUCT = pa.struct({"arm": TEXT, "propensity": FLOAT, **BASE_VECTOR, "inline": FLAG})
SETTLED_STRUCT = pa.struct(
    {
        "arm": TEXT,
        "reward": FLOAT,
        "was": FLOAT,
        "since": INTEGER,
        "withdrawn": FLAG,
        **BASE_VECTOR,
        "inline": FLAG,
        "weight": FLOAT,
        "weighed": FLOAT,
        "slot": INTEGER,
        "predicted": FLOAT,
        "imported": FLAG,
    }
)
DECISIONS = pa.schema(
    {
        "row": INTEGER,
        "id": TEXT,
        "time": TIMESTAMP,
        "policy": TEXT,
        "assignment": FLOAT,
        "model_version": TEXT,
        "schema_version": INTEGER,
        "unit": TEXT,
        "key": TEXT,
        "context": TEXT,
        "arms": pa.list_(TEXT),
        "inline": TEXT,
        "attributes": TEXT,
        "facts": TEXT,
        "probabilities": FLOATS,
        "seed": INTEGER,
        "bank": INTEGER,
        "slate_log": FLOAT,
        "deferred": FLAG,
        "shown": pa.list_(SHOWN_STRUCT),
        "reward_by": TIMESTAMP,
        "accept_until": TIMESTAMP,
    }
)
EVENTS = pa.schema(
    {
        "position": INTEGER,
        "time": TIMESTAMP,
        "type": TEXT,
        "policy": TEXT,
        "decision": TEXT,
        "schema_version": INTEGER,
        "settled": pa.list_(SETTLED_STRUCT),
        "body": TEXT,
    }
)


def decision_row(number: int, decision: Decision) -> ArchiveRow:
    """Return the row of a decision. Raises Damaged for a time that no calendar has."""
    return {
        **asdict(decision),
        "row": number,
        "context": encode(decision.context).decode(),
        "inline": encode(decision.inline).decode(),
        "attributes": encode(decision.attributes).decode(),
        "facts": encode(decision.facts).decode(),
        "shown": [{**asdict(shown), **shown.row.lists()} for shown in decision.shown],
        "time": microseconds(decision.at),
        "reward_by": microseconds(decision.reward_by),
        "accept_until": microseconds(decision.accept_until),
    }


def event_rows(position: int, event: AnyEvent) -> list[ArchiveRow]:
    """Return the rows of an event: one for each decision that it settles, or one. Raises Damaged
    for a time that no calendar has."""
    told = {"position": position, "time": microseconds(event.at), "type": type(event).__name__}
    settlements = settlements_of(event)
    if not settlements:
        return [{**asdict(event), **told, "body": encode(event).decode()}]
    return [
        {
            **asdict(one),
            **told,
            "settled": [{**asdict(arm), **arm.row.lists()} for arm in one.settled],
        }
        for one in settlements
    ]


def microseconds(at: float) -> int:
    """Round unix seconds to microseconds. Raises Damaged for a time that no calendar has."""
    if not YEAR_1_S <= at < YEAR_10000_S:
        raise Damaged(f"{at} is not a time between the years 1 and 9999")
    return round(at * 1e6)


def day_of(microseconds: int) -> str:
    """Return the UTC day, as 2026-01-31."""
    return datetime.fromtimestamp(microseconds // 1_000_000, UTC).date().isoformat()
