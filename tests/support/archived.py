"""A shop whose log is written by hand, and readers of its archive."""

import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
from msgspec import structs

from service.features.row import Row
from service.log.stores import Store
from service.log.stores.base import Append, DecisionRow, Erasure, Record, Snapshot, Trim
from service.offline.archive.export import FILE_BYTES, Exported, Exporter
from service.state.decisions import Decision, Shown, encode_decision
from service.state.events import (
    AnyEvent,
    Corrected,
    Default,
    Erased,
    ExperimentDefined,
    Expired,
    Outcome,
    Rewarded,
    Tombstone,
    decode_event,
    encode_event,
)

SHOP = "shop"
MORNING = 1_767_261_600.0
"""2026-01-01T10:00:00Z"""
WAIT_S, ACCEPT_S = 600.0, 3_600.0
DAY_S = 86_400.0
DEFINITION: dict[str, object] = {"policies": {"lints": {"kind": "lints"}}}


def a_decision(number: int, at: float = MORNING, slots: int = 1, **changes: Any) -> Decision:
    """Make a decision among the arms a, b and c that shows the first of them."""
    arms = ["a", "b", "c"]
    first = changes.get("probabilities", [1 / 3])[0]
    chances = first, *(1 / (3 + place) for place in (1, 2))
    fields: dict[str, Any] = {
        "id": f"decision-{number:013d}",
        "at": at,
        "policy": "lints",
        "assignment": 0.25,
        "model_version": f"lints/0@{number}",
        "schema_version": 1,
        "unit": f"unit-{number:032x}",
        "context": {"pet": f"cat {number}", "age": 0.1 + 0.2},
        "arms": arms,
        "inline": {"c": {"kind": "toy"}},
        "probabilities": [1 / 3, 2 / 3, 5e-324],
        "seed": 2**63 - 1 - number,
        "bank": 7,
        "shown": [
            Shown(arm, chance, Row(struct.pack("<3d", -0.0, 1e300, number / 7), (1,)), arm == "c")
            for arm, chance in zip(arms[:slots], chances, strict=False)
        ],
        "slate_log": -1 / 7,
        "reward_by": at + WAIT_S,
        "accept_until": at + WAIT_S + ACCEPT_S,
    }
    return Decision(**{**fields, **changes})


class Shop:
    """One experiment of a store, written as a service would."""

    def __init__(self, store: Store, name: str = SHOP) -> None:
        self.store, self.name = store, name
        self._marks = 0
        self._held: list[Append | DecisionRow] | None = None

    async def append(
        self, event: AnyEvent, settles: Sequence[str] = (), mark: tuple[str, str] | None = None
    ) -> None:
        self._marks += 1
        identity, value = mark or (f"mark {self._marks}", "")
        entry = Append(self.name, encode_event(event), {identity: value}, settles=settles)
        await self._commit(entry)

    async def _commit(self, entry: Append | DecisionRow) -> None:
        if self._held is None:
            await self.store.commit([entry])
        else:
            self._held.append(entry)

    @asynccontextmanager
    async def at_once(self) -> AsyncIterator[None]:
        """Commit what is written meanwhile at the end, in one piece."""
        held: list[Append | DecisionRow] = []
        self._held = held
        yield
        self._held = None
        await self.store.commit(held)

    async def define(self) -> None:
        await self.append(
            ExperimentDefined(at=MORNING, revision=1, schema_version=1, definition=DEFINITION)
        )

    async def decide(self, decision: Decision) -> Decision:
        payload = encode_decision(decision)
        await self._commit(DecisionRow(self.name, decision.id, decision.policy, payload))
        return decision

    async def reward(self, decision: Decision, **rewards: float) -> None:
        await self.append(Rewarded(**_settled(decision, 60.0, rewards)), [decision.id])

    async def expire(self, *decisions: Decision) -> None:
        """Settle decisions by one event."""
        defaults = [
            Default(**_settled(one, WAIT_S, {shown.arm: 0.0 for shown in one.shown}))
            for one in decisions
        ]
        await self.append(Expired.of(defaults), [one.id for one in decisions])

    async def correct(
        self,
        decision: Decision,
        was: float | None,
        withdrawn: Sequence[str] = (),
        **rewards: float,
    ) -> None:
        fields, since = _settled(decision, 900.0, rewards), None if was is None else 2
        settled = [
            structs.replace(one, was=was, since=since, withdrawn=one.arm in withdrawn)
            for one in fields["settled"]
        ]
        await self.append(Corrected(**{**fields, "settled": settled}))

    async def erase(self, *decisions: Decision) -> None:
        """Delete rows, replace their events by what is left of them, and append the event."""
        ids = [decision.id for decision in decisions]
        stone = Tombstone(at=MORNING, policy="lints", schema_version=1, rewards=1)
        left: dict[int, bytes] = {}
        for record in await self.events():
            if any(one.encode() in record.payload for one in ids):
                event = decode_event(record.payload)
                rest = event.without(ids) if isinstance(event, Expired) else stone
                left[record.position] = encode_event(rest)
        await self.save_origin()
        await self.store.erase(self.name, Erasure(ids, left))
        await self.append(Erased(at=MORNING, decisions=ids, positions=[*left]))

    async def save_origin(self) -> None:
        last = (await self.events())[-1].position
        await self.store.put(self.name, Snapshot(last, b"", origin=True))

    async def trim(self, position: int, row: int) -> None:
        await self.save_origin()
        while await self.store.trim(self.name, Trim(position, row, 0.0), 100):
            pass

    async def events(self) -> list[Record]:
        return await self.store.read(self.name, 0, 10_000)


def _settled(decision: Decision, after: float, rewards: dict[str, float]) -> dict[str, Any]:
    rows = {shown.arm: shown.row for shown in decision.shown}
    return {
        "at": decision.at + after,
        "decision": decision.id,
        "policy": decision.policy,
        "schema_version": decision.schema_version,
        "settled": [Outcome(arm, reward, rows[arm]) for arm, reward in rewards.items()],
    }


async def export(
    store: Store, archive: Path, name: str = SHOP, file_bytes: int = FILE_BYTES
) -> Exported:
    """Do what `forage export` does for one experiment."""
    return await Exporter(store, name, archive, file_bytes=file_bytes).run()


def rows_of(archive: Path, kind: str, name: str = SHOP) -> list[dict[str, Any]]:
    """Read all decisions or events of an archive, in log order."""
    folder = archive / name / kind
    if not list(folder.glob("*/*.parquet")):
        return []
    table = ds.dataset(folder, partitioning="hive").to_table()
    rows: list[dict[str, Any]] = table.sort_by(table.column_names[0]).to_pylist()
    return rows


def ids_of(archive: Path) -> list[str]:
    return [row["id"] for row in rows_of(archive, "decisions")]


def positions_of(archive: Path) -> list[int]:
    return [row["position"] for row in rows_of(archive, "events")]


def names_of(archive: Path) -> list[str]:
    """List the files of decisions as `day=.../first-last`, without leading zeros."""
    paths = sorted((archive / SHOP / "decisions").rglob("*.parquet"), key=lambda path: path.name)
    return [
        f"{path.parent.name}/{'-'.join(str(int(end)) for end in path.stem.split('-'))}"
        for path in paths
    ]
