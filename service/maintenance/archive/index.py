"""How far an archive has come in the log, and the rewards of decisions whose rows are not archived
yet. One SQLite file, advanced in transactions.

Rewards are added in the order of the log and deleted, nearly in that order, once their rows are
archived. They are kept by position, so that both touch few pages, and found by eight bytes of the
hash of the decision's id: an index of those is a third of one of the ids.
"""

import hashlib
import json
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, replace
from pathlib import Path

import msgspec

from service.errors import Damaged, UnknownSchema
from service.log.stores.sqlite_file import ours, transaction
from service.security.files import make_private
from service.state.events import Expired, Learned, outcomes

APPLICATION = 0x466F4172  # "FoAr", in the file's header
LAYOUT = 1
ORPHAN_S = 30 * 86_400.0
"""A reward whose row is missing for so long is dropped: rows wait in the memory of a service while
the log is gone, and some are lost there."""

TABLES = f"""
BEGIN IMMEDIATE;
CREATE TABLE state (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    position INTEGER NOT NULL, digest BLOB NOT NULL, row INTEGER NOT NULL, id TEXT,
    time REAL NOT NULL, begins REAL NOT NULL
);
CREATE TABLE changes (
    position INTEGER PRIMARY KEY,  -- of the event
    key INTEGER NOT NULL, at REAL NOT NULL, change BLOB NOT NULL
);
CREATE INDEX changes_by_decision ON changes (key);
CREATE TABLE erased (key INTEGER PRIMARY KEY);
PRAGMA application_id = {APPLICATION};
PRAGMA user_version = {LAYOUT};
COMMIT;
"""


@dataclass(frozen=True, slots=True)
class Cursor:
    """How far an archive has come.

    position, digest   of the last event taken      row, id   of the last row archived; id None: it
    time               the log's own, unix seconds            was erased, or there is none
    begins             decisions before this, unix seconds, are left out: their events had been
                       trimmed when the archive began
    """

    position: int = 0
    digest: bytes = b""
    row: int = 0
    id: str | None = None
    time: float = 0.0
    begins: float = 0.0


class Change(msgspec.Struct, frozen=True, array_like=True):
    """The rewards of a decision by one event. arms: each with its reward (None: withdrawn), and
    whether it had one before."""

    decision: str
    at: float
    default: bool
    arms: list[tuple[str, float | None, bool]]


class Reward(msgspec.Struct, frozen=True):
    """The current reward of a shown arm; at, position: of the event that set it."""

    arm: str
    reward: float
    default: bool
    at: float
    position: int
    corrections: int


@dataclass(frozen=True, slots=True)
class RewardHistory:
    """The rewards of a decision, in the order of the log. positions: of its events."""

    rewards: Sequence[Reward] = ()
    positions: Sequence[int] = ()


NO_REWARDS = RewardHistory()

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Change).decode


def change_of(event: Learned) -> Change:
    arms = [
        (outcome.settled.arm, outcome.learned, outcome.was is not None)
        for outcome in outcomes(event)
    ]
    return Change(event.decision, event.at, isinstance(event, Expired), arms)


def joined(changes: Iterable[tuple[int, Change]]) -> RewardHistory:
    """Changes of one decision, in the order of the log."""
    rewards, positions = dict[str, Reward](), []
    for position, change in changes:
        positions.append(position)
        for arm, reward, corrects in change.arms:
            if reward is None:
                rewards.pop(arm, None)
                continue
            count = corrects + (rewards[arm].corrections if arm in rewards else 0)
            rewards[arm] = Reward(arm, reward, change.default, change.at, position, count)
    return RewardHistory(list(rewards.values()), positions)


def key_of(decision: str) -> int:
    digest = hashlib.blake2b(decision.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


class Index:
    """Each method is one transaction, durable when it returns. Raises StoreError."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with ours(path):
            make_private(path)
            self._db = sqlite3.connect(path, isolation_level=None)
            try:
                self._open()
                query = "SELECT position, digest, row, id, time, begins FROM state"
                self.cursor = Cursor(*(self._db.execute(query).fetchone() or ()))
                self._any_erased = bool(self._db.execute("SELECT 1 FROM erased").fetchone())
            except BaseException:
                self._db.close()
                raise

    def _open(self) -> None:
        # A rollback journal, not a WAL: it is deleted with each transaction, and all it held.
        self._db.execute("PRAGMA secure_delete = ON")
        self._db.execute("PRAGMA synchronous = FULL")
        self._db.execute("PRAGMA cache_size = -32768")
        (application,) = self._db.execute("PRAGMA application_id").fetchone()
        (layout,) = self._db.execute("PRAGMA user_version").fetchone()
        if application == 0 and not self._db.execute("SELECT 1 FROM sqlite_master").fetchone():
            self._db.executescript(TABLES)
        elif application != APPLICATION:
            raise Damaged(f"{self._path} is the database of another program")
        elif layout > LAYOUT:
            raise UnknownSchema(
                f"{self._path} has layout {layout}, written by a newer Forage; this one knows "
                f"{LAYOUT}"
            )

    def close(self) -> None:
        self._db.close()

    @contextmanager
    def _advance(self, cursor: Cursor) -> Iterator[None]:
        with ours(self._path), transaction(self._db):
            yield
            self._db.execute(
                "INSERT OR REPLACE INTO state VALUES (1, ?, ?, ?, ?, ?, ?)", astuple(cursor)
            )
        self.cursor = cursor

    def take(self, changes: Sequence[tuple[int, Change]], cursor: Cursor) -> None:
        """Events were taken up to the cursor's position."""
        rows = [
            (position, key_of(change.decision), change.at, _encode(change))
            for position, change in changes
            if not self.is_erased(change.decision)
        ]
        with self._advance(cursor):
            self._db.executemany("INSERT INTO changes VALUES (?, ?, ?, ?)", rows)

    def archived(self, positions: Iterable[int], cursor: Cursor, newest: float) -> None:
        """Rows were archived up to the cursor's; the last of them was made at `newest` (unix
        seconds). Their rewards, of the events at these positions, are no longer needed."""
        with self._advance(cursor):
            self._delete(positions)
            oldest = "SELECT position, at FROM changes ORDER BY position LIMIT 1"
            while (found := self._db.execute(oldest).fetchone()) and found[1] < newest - ORPHAN_S:
                self._delete(found[:1])

    def _delete(self, positions: Iterable[int]) -> None:
        rows = ((position,) for position in positions)
        self._db.executemany("DELETE FROM changes WHERE position = ?", rows)

    def find(self, decisions: Sequence[str]) -> dict[str, RewardHistory]:
        """Of the decisions that have a reward."""
        changes = dict[str, list[tuple[int, Change]]]()
        wanted = {decision: key_of(decision) for decision in decisions}
        query = (
            "SELECT position, change FROM changes WHERE key IN (SELECT value FROM json_each(?)) "
            "ORDER BY position"
        )
        with ours(self._path):
            for position, payload in self._db.execute(query, (json.dumps([*wanted.values()]),)):
                change = _decode(payload)
                if change.decision in wanted:  # two ids may have one key
                    changes.setdefault(change.decision, []).append((position, change))
        return {decision: joined(found) for decision, found in changes.items()}

    def is_erased(self, decision: str) -> bool:
        if not self._any_erased:
            return False
        with ours(self._path):
            query = "SELECT 1 FROM erased WHERE key = ?"
            return self._db.execute(query, (key_of(decision),)).fetchone() is not None

    def erase(self, decisions: Iterable[str]) -> None:
        """Leave nothing of them in the file but eight bytes of a hash of each id, by which they are
        recognized if they come again. The file is rewritten: SQLite moves rows as others leave the
        middle of pages, and secure_delete leaves copies of those behind (3 to 8 of 2,000)."""
        erased = set(decisions)
        found = self.find(list(erased))
        cursor = self.cursor
        with self._advance(replace(cursor, id=None) if cursor.id in erased else cursor):
            self._delete(position for each in found.values() for position in each.positions)
            keys = ((key_of(decision),) for decision in erased)
            self._db.executemany("INSERT OR IGNORE INTO erased VALUES (?)", keys)
        self._any_erased = True
        with ours(self._path):
            self._db.execute("VACUUM")
