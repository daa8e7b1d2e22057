"""What a definition's log takes in a store, by decisions of its own that are made and settled in
memory."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Literal

import numpy as np

from service.app import open_services
from service.definition.experiment import Definition, InlineValue, load_definition
from service.definition.reward_request import RewardRequest
from service.definition.select_request import RequestedValues, SelectRequest
from service.errors import ConfigurationError, ForageError
from service.features.declaration import (
    Boolean,
    Categorical,
    Feature,
    Hashed,
    Numeric,
    Vector,
)
from service.http.services import Services
from service.log.stores.base import KeptMark, Record
from service.log.stores.memory import MemoryStore
from service.log.stores.store import START
from service.settings import Settings
from service.state.decisions import decode_decision
from service.tables import aligned

DAY_S = 86_400.0
MADE = 200
"""Decisions that are made up: half of them are rewarded, and half expire."""
ALL = 10 * MADE
"""Limit above the number of records that they leave."""

PATIENCE_S = 60.0
"""Seconds that a decision waits to be logged: on a busy machine too all have rows."""

PLAN_SECRET = bytes(32)
"""Secret that decides which visitor gets which policy: each plan of a file has the same."""

StoreKind = Literal["sqlite", "redis", "postgresql"]


@dataclass(frozen=True, slots=True)
class Overhead:
    """Bytes that a store adds to an entry's content: keys, indexes, and what pages and allocations
    round up.

    rows      of a decision row, by ROW_BYTES
    waiting   of a decision that waits for its default reward
    """

    rows: Sequence[int]
    event: int
    mark: int
    waiting: int


MEASURED_ROW_BYTES = (100, 300, 600, 1_200, 2_400, 4_800, 10_000, 20_000, 64_000)
OVERHEADS: dict[StoreKind, Overhead] = {
    "sqlite": Overhead((103, 119, 152, 269, 1_731, 469, 820, 897, 970), 50, 92, 100),
    "redis": Overhead((218, 195, 217, 279, 457, 652, 1_240, 2_214, 7_035), 96, 34, 129),
    "postgresql": Overhead((187, 166, 177, 240, 541, 699, 845, 1_413, 3_067), 128, 227, 160),
}
"""Overheads, measured: rows by `python -m benchmarks.log_size --rows`, events and marks on its pet
shop (270 and 38 bytes of content), as memory that is used (Redis 7, `stream-node-max-entries 1`) or
the pages of tables and their indexes, less the content. SQLite has pages of 4 kB: a row of 2,100
bytes fills one alone."""


@dataclass(frozen=True, slots=True)
class Part:
    """Entries of one kind, and the bytes that each decision leaves in them.

    content, overhead   bytes a decision: what Forage writes, what the store adds
    seconds             that they are kept
    total               bytes in the store once the oldest go
    """

    name: str
    content: float
    overhead: float
    seconds: float
    total: float

    @property
    def bytes(self) -> float:
        return self.content + self.overhead


@dataclass(frozen=True, slots=True)
class StoragePlan:
    """Size of a log to come. days: that decisions are kept, at least until they can no longer be
    rewarded."""

    experiment: str
    store: StoreKind
    rate: float
    click_rate: float
    days: float
    parts: Sequence[Part]
    notes: Sequence[str]

    @property
    def decision_bytes(self) -> float:
        return sum(part.bytes for part in self.parts)

    @property
    def total_bytes(self) -> float:
        return sum(part.total for part in self.parts)

    def as_json(self) -> dict[str, object]:
        parts = {
            part.name: {
                "content_bytes": round(part.content),
                "overhead_bytes": round(part.overhead),
                "kept_seconds": part.seconds,
                "total_bytes": round(part.total),
            }
            for part in self.parts
        }
        totals = {
            "decision_bytes": round(self.decision_bytes),
            "total_bytes": round(self.total_bytes),
        }
        return asdict(self) | {"parts": parts} | totals

    def text(self) -> str:
        """Lay out a table of the parts under a line of what was asked."""
        heading = (
            f"experiment {self.experiment!r} on {self.store}: {self.rate:,g} decisions a second, "
            f"{self.click_rate:.3g} of them rewarded, kept {self.days:,.3g} days"
        )
        rows = [["", "content", "overhead", "bytes a decision", "in the store"]]
        for part in self.parts:
            figures = [f"{figure:,.0f}" for figure in (part.content, part.overhead, part.bytes)]
            rows.append([part.name, *figures, gigabytes(part.total)])
        total = f"{self.decision_bytes:,.0f}"
        rows.append(["total", "", "", total, gigabytes(self.total_bytes)])
        return "\n".join([heading, "", *aligned(rows), *["", *self.notes]])


def gigabytes(size: float) -> str:
    """Write bytes in powers of 1,000, as disks and sizing tables do."""
    return f"{size / 1e9:,.1f} GB" if size >= 1e8 else f"{size / 1e6:,.1f} MB"


@dataclass(frozen=True, slots=True)
class _Entries:
    """Events and marks for each decision: their bytes, and their number."""

    event_bytes: float = 0.0
    events: float = 0.0
    mark_bytes: float = 0.0
    marks: float = 0.0

    def mixed(self, other: "_Entries", share: float) -> "_Entries":
        """Return these, but the other ones for a share of the decisions."""
        return _Entries(
            *(
                (1 - share) * mine + share * theirs
                for mine, theirs in zip(asdict(self).values(), asdict(other).values(), strict=True)
            )
        )


@dataclass(frozen=True, slots=True)
class _Made:
    """What decisions of a definition leave, each: the bytes of its row, and the entries of its
    reward, or of its default reward."""

    row: float
    rewarded: _Entries
    expired: _Entries


async def plan(
    path: Path, store: StoreKind, rate: float, days: float, click_rate: float
) -> StoragePlan:
    """Size the log of an experiment file. Raises ConfigurationError for a file with a fault, or
    where a decision of it cannot be made up."""
    name, definition = load_definition(path)
    if not definition.arms:
        raise ConfigurationError(
            f"{path}: lists no arms, and a decision's size depends on them: add such as your "
            "requests will name"
        )
    made = await _made(path, name, definition)
    entries = made.expired.mixed(made.rewarded, click_rate)
    rules, add = definition.reward, OVERHEADS[store]
    open_s = rules.wait_seconds + rules.accept_seconds
    kept_s = max(days * DAY_S, open_s)
    waits = rules.default is not None

    def part(title: str, content: float, overhead: float, seconds: float) -> Part:
        return Part(title, content, overhead, seconds, rate * seconds * (content + overhead))

    waiting_s = rules.wait_seconds if waits else 0.0
    parts = [
        part("rows", made.row, float(np.interp(made.row, MEASURED_ROW_BYTES, add.rows)), kept_s),
        part("events", entries.event_bytes, add.event * entries.events, kept_s),
        part("marks", entries.mark_bytes, add.mark * entries.marks, open_s),
    ]
    notes = [
        f"Marks go after {open_s / DAY_S:,.3g} days. Until its reward comes, at most "
        f"{waiting_s:,.0f} s, a decision takes {add.waiting if waits else 0} bytes more: "
        f"{gigabytes(rate * waiting_s * add.waiting)}. Snapshots come on top."
    ]
    if kept_s > days * DAY_S:
        notes.append(
            f"Decisions stay for {kept_s / DAY_S:,.3g} days, not {days:,.3g}: as long as they can "
            "be rewarded (`wait_seconds` and `accept_seconds`)."
        )
    if nets := [
        name for name, policy in definition.folded.items() if policy.policy().net is not None
    ]:
        notes.append(
            f"Events stay as long as a net may train on them ({', '.join(nets)}): "
            f"{gigabytes(rate * DAY_S * parts[1].bytes)} more each day after that."
        )
    return StoragePlan(name, store, rate, click_rate, kept_s / DAY_S, parts, notes)


async def _made(path: Path, name: str, definition: Definition) -> _Made:
    """Make decisions of each policy as visitors get them, and settle them."""
    store, rng = MemoryStore(), Random(1)
    settings = Settings(
        store="memory://",
        trainer="off",
        experiments=[path],
        token_keys=[PLAN_SECRET],
        select_log_seconds=PATIENCE_S,
    )
    async with open_services(settings, store, rng=Random(2)) as services:
        try:
            tokens = [await _select(services, name, definition, rng) for _ in range(MADE)]
            rows = await store.decisions(name, 0, ALL)
            half = MADE // 2
            before = await _log(store, name)
            for token in tokens[:half]:
                await services.settlements.reward(RewardRequest(token, definition.reward.range[1]))
            rewarded = await _log(store, name)
            state = services.log.replicas.by_name[name].state
            decisions = [decode_decision(row.payload) for row in rows[half:]]
            await services.expiry.expire(state, *decisions)
            expired = await _log(store, name)
        except ForageError as fault:
            raise ConfigurationError(f"{path}: no decision can be made up: {fault}") from fault
    return _Made(
        fmean(len(row.payload) for row in rows),
        _entries(before, rewarded, half),
        _entries(rewarded, expired, MADE - half),
    )


async def _select(services: Services, name: str, definition: Definition, rng: Random) -> str:
    features = definition.features.context
    context: RequestedValues = {of: made_up(one, rng) for of, one in features.items()}
    request = SelectRequest(context, name, unit=f"visitor-{rng.randrange(MADE)}")
    return (await services.selector.select(request)).token


def made_up(feature: Feature, rng: Random) -> InlineValue:
    """Return a value that the feature takes; a text of 8 characters where it takes any."""
    match feature:
        case Boolean():
            return rng.random() < 0.5
        case Categorical(values=values):
            return rng.choice(values)
        case Hashed():
            return f"{rng.getrandbits(32):08x}"
        case Vector(size=size):
            return [_number(feature, rng) for _ in range(size)]
        case Numeric():
            return _number(feature, rng)


def _number(feature: Numeric | Vector, rng: Random) -> float:
    low, high, span = feature.min, feature.max, feature.scale or 1.0
    if low is None:
        low = high - span if high is not None else feature.center or 0.0
    return rng.uniform(low, low + span if high is None else high)


RecordedLog = tuple[list[Record], list[KeptMark]]


async def _log(store: MemoryStore, name: str) -> RecordedLog:
    marks, _ = await store.list_marks(name, START, ALL)
    return await store.read(name, 0, ALL), marks


def _entries(before: RecordedLog, after: RecordedLog, decisions: int) -> _Entries:
    """Return what came between."""
    (old_events, old_marks), (events, marks) = before, after
    sizes = [len(record.payload) for record in events[len(old_events) :]]
    known = {mark.identity for mark in old_marks}
    texts = [len(one.identity) + len(one.value) for one in marks if one.identity not in known]
    counts = (sum(sizes), len(sizes), sum(texts), len(texts))
    return _Entries(*(count / decisions for count in counts))
