"""A log by hand to archive: a shop that decides, learns and erases, and what its archive holds."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds

from service.log.stores import Store
from service.log.stores.base import Append, DecisionRow, Erasure, Record, Snapshot
from service.maintenance.archive.archiver import Archive, Sizes
from service.maintenance.archive.files import Folder
from service.maintenance.archive.index import Index
from service.state.events import (
    ArmRemoved,
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
LATER_S = WAIT_S + ACCEPT_S + 601.0
"""So long after a decision it is final."""
DAY_S = 86_400.0


def a_decision(number: int, at: float = MORNING, slots: int = 1, **changes: Any) -> Decision:
    """arms a, b, c; the first of them are shown, after each other."""
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

    async def append(self, event: Any, settles: str | None = None) -> None:
        self._marks += 1
        mark = {f"mark {self._marks}": ""}
        await self.store.commit([Append(self.name, encode_event(event), mark, settles)])

    async def define(self, at: float = MORNING) -> None:
        await self.append(
            ExperimentDefined(at=at, revision=1, schema_version=1, definition={"name": "shop"})
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
        self, decision: Decision, was: float | None, after: float = 900.0, **rewards: float
    ) -> None:
        fields = _settled(decision, after, rewards)
        since = None if was is None else 2
        event = Corrected(**fields, was=[was] * len(rewards), since=[since] * len(rewards))
        await self.append(event)

    async def pass_until(self, at: float) -> None:
        """The log goes on to this time."""
        await self.append(ArmRemoved(at=at, arm="z"))

    async def erase(self, *decisions: Decision, at: float = MORNING) -> None:
        """Rows out, tombstones in, and the event that says so."""
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


def archive_at(
    store: Store,
    path: Path,
    sizes: Sizes | None = None,
    folder: type[Folder] = Folder,
    index: type[Index] = Index,
    clock: Callable[[], float] = lambda: 4e9,
    name: str = SHOP,
) -> Archive:
    path.mkdir(exist_ok=True)
    files = folder(path, name)
    return Archive(store, name, files, index(files.index_path), sizes or Sizes(), clock=clock)


async def export(store: Store, path: Path, sizes: Sizes | None = None, **more: Any) -> Archive:
    """What `forage export` does of one experiment."""
    archive = archive_at(store, path, sizes, **more)
    try:
        await archive.advance()
        archive.flush()
        await archive.write_open()
    finally:
        archive.close()
    return archive


def rows_of(path: Path) -> list[dict[str, Any]]:
    """All rows of an archive as a reader of data sets finds them, in the order of their files."""
    if not list(path.glob("*/*/*.parquet")):
        return []
    table = ds.dataset(path, partitioning="hive").to_table()
    found: list[dict[str, Any]] = table.to_pylist()
    return found


def ids_of(path: Path, final: bool | None = None) -> list[str]:
    rows = [row for row in rows_of(path) if final in (None, row["final"])]
    return [row["id"] for row in rows]


def names_of(path: Path) -> list[str]:
    return sorted(
        str(each.relative_to(path / f"experiment={SHOP}")) for each in path.rglob("*.parquet")
    )
