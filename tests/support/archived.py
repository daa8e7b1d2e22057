"""A shop whose log is written by hand, and readers of its archive."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds

from service.log.stores import Store
from service.log.stores.base import Append, Cut, DecisionRow, Erasure, Record, Snapshot
from service.maintenance.archive.export import FILE_BYTES, Exported, Exporter
from service.state.events import (
    AnyEvent,
    Corrected,
    Decision,
    Erased,
    ExperimentDefined,
    Expired,
    Rewarded,
    Settled,
    Shown,
    Tombstone,
    encode_decision,
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
            Shown(arm, 1 / (3 + place), [1.0, -0.0, 1e300, number / 7], arm == "c")
            for place, arm in enumerate(arms[:slots])
        ],
        "slate": 1 / 7,
        "reward_by": at + WAIT_S,
        "accept_until": at + WAIT_S + ACCEPT_S,
    }
    return Decision(**{**fields, **changes})


class Shop:
    """One experiment of a store, written as a service would."""

    def __init__(self, store: Store, name: str = SHOP) -> None:
        self.store, self.name = store, name
        self._marks = 0

    async def append(
        self, event: AnyEvent, settles: str | None = None, mark: tuple[str, str] | None = None
    ) -> None:
        self._marks += 1
        identity, value = mark or (f"mark {self._marks}", "")
        entry = Append(self.name, encode_event(event), {identity: value}, settles)
        await self.store.commit([entry])

    async def define(self, at: float = MORNING) -> None:
        await self.append(
            ExperimentDefined(at=at, revision=1, schema_version=1, definition=DEFINITION)
        )

    async def decide(self, decision: Decision, due: bool = False) -> Decision:
        row = DecisionRow(
            self.name,
            decision.id,
            decision.policy,
            encode_decision(decision),
            decision.reward_by if due else None,
        )
        await self.store.commit([row])
        return decision

    async def reward(self, decision: Decision, after: float = 60.0, **rewards: float) -> None:
        event = Rewarded(**_settled(decision, after, rewards))
        await self.append(event, decision.id)

    async def expire(self, decision: Decision, after: float = WAIT_S, reward: float = 0.0) -> None:
        rewards = {shown.arm: reward for shown in decision.shown}
        await self.append(Expired(**_settled(decision, after, rewards)), decision.id)

    async def correct(
        self,
        decision: Decision,
        was: float | None,
        after: float = 900.0,
        withdrawn: Sequence[str] = (),
        **rewards: float,
    ) -> None:
        fields = _settled(decision, after, rewards)
        since = None if was is None else 2
        await self.append(
            Corrected(
                **fields,
                was=[was] * len(rewards),
                since=[since] * len(rewards),
                withdrawn=list(withdrawn),
            )
        )

    async def erase(self, *decisions: Decision, at: float = MORNING) -> None:
        """Delete rows, put tombstones in place of their events, and append the event."""
        ids = {decision.id for decision in decisions}
        gone = [
            record
            for record in await self.events()
            if any(i.encode() in record.payload for i in ids)
        ]
        stone = encode_event(Tombstone(at=at, policy="lints", schema_version=1, rewards=1))
        await self.store.save_snapshot(
            self.name, Snapshot((await self.events())[-1].position, b"", origin=True)
        )
        await self.store.erase(
            self.name, Erasure(sorted(ids), {each.position: stone for each in gone})
        )
        await self.append(
            Erased(at=at, decisions=sorted(ids), positions=[r.position for r in gone])
        )

    async def trim(self, position: int, row: int) -> None:
        last = (await self.events())[-1].position
        await self.store.save_snapshot(self.name, Snapshot(last, b"", origin=True))
        while await self.store.trim(self.name, Cut(position, row, 0.0), 100):
            pass

    async def events(self) -> list[Record]:
        return await self.store.read(self.name, 0, 10_000)


def _settled(decision: Decision, after: float, rewards: dict[str, float]) -> dict[str, Any]:
    x = {shown.arm: shown.x for shown in decision.shown}
    return {
        "at": decision.at + after,
        "decision": decision.id,
        "policy": decision.policy,
        "schema_version": decision.schema_version,
        "settled": [Settled(arm, reward, x[arm]) for arm, reward in rewards.items()],
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


def names_of(archive: Path, kind: str = "decisions") -> list[str]:
    """List the files of a kind as `day=.../first-last`, without leading zeros."""
    paths = sorted((archive / SHOP / kind).rglob("*.parquet"), key=lambda path: path.name)
    return [
        f"{path.parent.name}/{'-'.join(str(int(end)) for end in path.stem.split('-'))}"
        for path in paths
    ]
