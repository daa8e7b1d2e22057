"""Decisions of an experiment and what came of them: the one reader of both, as columns in order.

`read_history` reads the events of a log for rewards and definitions, then its decision rows. It
takes up a history that was kept (`Checkpoints`) where it stopped, so a look costs what is new. A
settled arm takes 24 bytes, a decision some 60 and 8 for each arm shown; the rows themselves are
read again by those who evaluate them.

What is read again from the beginning: a log that is another one by the digest of the last event
that was read, or of which events or rows were taken out since; and one that tells of events or rows
that do not count any more (`ANEW`).
"""

from array import array
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from math import nan
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from service.analysis.checkpoints import NOWHERE, Checkpoints, history_of
from service.analysis.definitions import Definitions, DefinitionSpan
from service.analysis.growing import Growing
from service.analysis.sample_ratio import Counts, ShownArms
from service.analysis.sequences import MOST_ROWS
from service.bandits.heads.base import part
from service.definition.experiment import Definition
from service.definition.rules import ValueTypes
from service.errors import Damaged, StoreError, UnknownSchema
from service.features.expression import Expression
from service.log.reading import SILENT, Progress
from service.log.replay import origin_of, record_at, replay, row_pages
from service.log.stores import Store
from service.log.stores.base import KeptRow, LogSummary, digest
from service.state import codec
from service.state.decisions import (
    Decision,
    ModelVersion,
    decode_decision,
    is_imported,
    is_whole,
    model_version,
)
from service.state.events import (
    AnyEvent,
    Erased,
    ExperimentDeleted,
    FeatureValues,
    LogTruncated,
    Skipped,
    Tombstone,
    has_erased,
    settlements_of,
)
from service.state.fold import State

Array = npt.NDArray[np.float64]
IntegerArray = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

HISTORY_LAYOUT = 7
"""Number of the layout of a kept history. Raise it with every change of what `DecisionHistory`
keeps."""

ANEW = (Erased, ExperimentDeleted, LogTruncated, Skipped, Tombstone)
"""Events after which earlier ones, or rows, do not count as they did."""

DELETED = "they were made before the experiment was deleted"
DAMAGED_ROWS = "their rows are damaged"
OPEN = "their reward may still come, or one before them is waited for"
REPEATED = f"their visitors had made {MOST_ROWS} before that count"
BEFORE_ORIGIN = "made before the log's origin, of which the events were trimmed"

MOST_PLACES = 63
"""Most rules, by their names, of which a history knows when they were off, and most segments of
which it knows their decisions: one bit each of a signed number."""

IS_DEFERRED, IS_IMPORTED, LACKS_PROBABILITIES = 1, 2, 4
"""Flags of a decision: not shown before its activation; of another system; imported without the
arms that could have been shown."""


def number_of(text: str) -> int:
    """Return a number for a text, the same in every process and at least 0."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest()) >> 1


def key_of(decision: str, arm: str) -> int:
    """Return the number of a shown arm."""
    return number_of(f"{decision}\0{arm}")


class LogPlace(msgspec.Struct):
    """Place up to which a log was read, and by which it is known again.

    position, event   of the last event, and its digest
    number            of the last decision row
    first             position of the first event
    removed           decision rows that had been trimmed, and erased
    """

    position: int = 0
    event: str = ""
    number: int = 0
    first: int = 0
    removed: tuple[int, int] = (0, 0)


class SettledRows(NamedTuple):
    """What is known of shown arms, (n,) each.

    settled   whether anything is
    value     the current reward; NaN: the user saw nothing of the arm, or it is not settled
    first     the position at which it was settled first
    """

    settled: Mask
    value: Array
    first: IntegerArray


class DeclaredSegments(NamedTuple):
    """Segments of a definition: what features take that a request leaves out, and the place and the
    condition of each segment."""

    defaults: dict[str, Any]
    conditions: list[tuple[int, Expression]]


@dataclass(frozen=True)
class Decisions:
    """Columns of all decision rows that can be read, in the order of their numbers.

    number, position   of the row, and of the state that decided
    at, reward_by      unix seconds
    chance             with which the policy was drawn
    unit               a number for each visitor; decisions without one have a number each, below 0
    policy             its place in the names of the history
    version            number of the policy's version that decided, or had to; 0: untrained
    schema             the version of the features
    slots              arms shown
    flags              IS_DEFERRED, IS_IMPORTED, LACKS_PROBABILITIES
    off                rules that were off, a bit each by their places in the rules of the history
    segments           those that it is in, a bit each by their places in the segments of the
                       history, by the conditions of its time
    """

    number: IntegerArray
    position: IntegerArray
    at: Array
    reward_by: Array
    chance: Array
    unit: IntegerArray
    policy: IntegerArray
    version: IntegerArray
    schema: IntegerArray
    slots: IntegerArray
    flags: IntegerArray
    off: IntegerArray
    segments: IntegerArray

    def __len__(self) -> int:
        return len(self.number)

    def has(self, flag: int) -> Mask:
        """Return whether each has a flag, (n,)."""
        return np.asarray((self.flags & flag) != 0)

    @property
    def first_arm(self) -> IntegerArray:
        """Return the place of each one's first slot among the arms shown, (n,)."""
        return np.cumsum(self.slots) - self.slots


class DecisionHistory:
    """What was read of a log.

    names        of policies, each with its place
    rules        names of those that were ever off, each with its place: the first MOST_PLACES
    segments     names of those that were ever declared, each with its place: the first MOST_PLACES
    definitions  those that held, and the resets of policies
    arms         the numbers of all arms shown, decision by decision (`key_of`)
    shown        the first slots of decisions against their propensities
    unreadable   rows that are damaged
    told_until   the largest `at` of an event, unix seconds
    erased       positions of events that were erased
    begins       settlements up to here were trimmed
    lost         decision rows that the log is known to have lost
    began        tells it from another reading of the log from its beginning
    """

    def __init__(self) -> None:
        self.began = ""
        self.place = LogPlace()
        self.definitions = Definitions()
        self.names = dict[str, int]()
        self.rules, self.segments = dict[str, int](), dict[str, int]()
        self._declared = dict[int, DeclaredSegments]()  # by the position of their definition
        self._rows = Growing(
            number="q", position="q", at="d", reward_by="d", chance="d", unit="q", policy="i",
            version="i", schema="i", slots="i", flags="b", off="q", segments="q",
        )  # fmt: skip
        self._arms = array("q")
        self._settled = Growing(key="q", value="d", position="q")
        self.shown = ShownArms()
        self.unreadable = self.begins = self.lost = 0
        self.told_until = 0.0
        self.erased = set[int]()

    @property
    def decisions(self) -> Decisions:
        """The decisions read so far."""
        return Decisions(**self._rows.columns)

    @property
    def arms(self) -> IntegerArray:
        """The numbers of all arms shown, decision by decision."""
        return np.array(self._arms, np.int64)

    def settlements(self, keys: IntegerArray) -> SettledRows:
        """Return what is known of arms, by their numbers (n,)."""
        known = self._settled["key"]
        order = np.argsort(known, kind="stable")
        known = known[order]
        if not len(known) or not len(keys):
            none = np.zeros(len(keys))
            return SettledRows(none > 0, none + nan, none.astype(np.int64))
        first, end = (np.searchsorted(known, keys, side) for side in ("left", "right"))
        settled = first < end
        last, first = order[end - 1], order[np.minimum(first, len(order) - 1)]
        value = np.where(settled, self._settled["value"][last], nan)
        return SettledRows(settled, value, self._settled["position"][first])

    # -- reading -------------------------------------------------------------------------------

    async def goes_on(self, store: Store, experiment: str, now: LogSummary) -> bool:
        """Say whether the log is the one that was read, with nothing taken out since."""
        place = self.place
        event = await record_at(store, experiment, place.position)
        return (
            event is not None
            and digest(event.payload) == place.event
            and await _first_position(store, experiment) == place.first
            and (now.removed.trimmed, now.removed.erased) == place.removed
        )

    async def read(
        self, store: Store, experiment: str, now: LogSummary, progress: Progress = SILENT
    ) -> bool:
        """Read on to the end of the log. Return False where it has to be read from the beginning.
        Raises UnknownSchema, Damaged or LogGap where the events cannot be read."""
        place, known = self.place, self.place.position > 0
        place.removed = now.removed.trimmed, now.removed.erased
        async for position, event in replay(store, experiment, place.position):
            if known and isinstance(event, ANEW):
                return False
            if not place.first:
                place.first = position
                if position > 1:
                    self.begins = position - 1
                    await self._read_origin(store, experiment)
            self._take_event(position, event)
            place.position = position
            progress.share("events read", position, now.position)
        if (last := await record_at(store, experiment, place.position)) is not None:
            place.event = digest(last.payload)
        async for page in row_pages(store, experiment, place.number):
            for row in page:
                self._take_row(row)
            place.number = page[-1].number
            progress.share("decisions read", len(self._rows), now.rows)
        self.began = self.began or f"{place.position} {place.event} {place.number} {place.removed}"
        return True

    async def _read_origin(self, store: Store, experiment: str) -> None:
        """Take the definition that held where a trimmed log begins."""
        if (kept := await origin_of(store, experiment)) is None:
            return
        state = State.restore(kept)
        if not state.deleted:
            self.definitions.add(
                DefinitionSpan(
                    kept.position,
                    state.log_time,
                    state.schema_version,
                    state.definition,
                ),
                state.traffic,
            )
            self.definitions.first_schema = state.first_schema

    def _take_event(self, position: int, event: AnyEvent) -> None:
        self.told_until = max(self.told_until, event.at)
        self.definitions.take(position, event)
        if isinstance(event, ExperimentDeleted):
            self.lost = 0
        elif isinstance(event, LogTruncated):
            self.lost += event.rows
        if has_erased(event):
            self.erased.add(position)
        for settlement in settlements_of(event):
            for outcome in settlement.settled:
                value = nan if outcome.learned is None else outcome.learned
                self._settled.append(key_of(settlement.decision, outcome.arm), value, position)

    def _take_row(self, row: KeptRow) -> None:
        """Take a row of the log. Raises UnknownSchema."""
        found = _readable(row)
        if found is None:
            self.unreadable += 1
            return
        decision, version = found
        position = version.position
        imported, first = is_imported(decision), decision.shown[0]
        alone = imported and len(decision.arms) == 1 and first.propensity < 1
        self._rows.append(
            row.number,
            position,
            decision.at,
            decision.reward_by,
            decision.assignment,
            -1 - row.number if decision.unit is None else number_of(decision.unit),
            self.names.setdefault(decision.policy, len(self.names)),
            decision.facts.failed or version.of(decision.policy),
            decision.schema_version,
            len(decision.shown),
            IS_DEFERRED * decision.deferred + IS_IMPORTED * imported + LACKS_PROBABILITIES * alone,
            _bits(_place(self.rules, name) for name in decision.facts.off),
            _bits(self._segments_of(position, decision.context)),
        )
        for shown in decision.shown:
            self._arms.append(key_of(decision.id, shown.arm))
        held = self.definitions and position >= max(self.begins, self.definitions.since)
        if held and not imported:
            self.shown.add(decision)

    def _segments_of(self, position: int, context: FeatureValues) -> Iterator[int]:
        """Yield the places of the segments that a context is in, by the definition that held at a
        position. What a request left out has the default of its feature."""
        span = self.definitions.at(position)
        if span is None or not span.definition.rollout.guardrails.where:
            return
        if span.position not in self._declared:
            self._declared[span.position] = self._segments_declared(span.definition)
        declared = self._declared[span.position]
        values = {**declared.defaults, **context}
        for place, condition in declared.conditions:
            if condition.evaluate(values).true:
                yield place

    def _segments_declared(self, held: Definition) -> DeclaredSegments:
        types = ValueTypes(held.features, held.attributes).context
        declared = held.features.context
        return DeclaredSegments(
            {name: getattr(feature, "default", None) for name, feature in declared.items()},
            [
                (_place(self.segments, name), condition)
                for name, condition in held.rollout.guardrails.conditions(types).items()
            ],
        )

    # -- checkpoints ---------------------------------------------------------------------------

    def dump(self) -> bytes:
        """Return all that was read. `restored` is the inverse."""
        meta = {
            "began": self.began,
            "place": msgspec.to_builtins(self.place),
            "definitions": self.definitions.dump(),
            "names": list(self.names),
            "rules": list(self.rules),
            "segments": list(self.segments),
            "shown": list(self.shown.counts.names),
            "unreadable": self.unreadable,
            "begins": self.begins,
            "lost": self.lost,
            "told_until": self.told_until,
            "erased": sorted(self.erased),
        }
        arrays = {
            **{f"rows.{name}": column for name, column in self._rows.columns.items()},
            **{f"settled.{name}": column for name, column in self._settled.columns.items()},
            "arms": self.arms,
            "shown": self.shown.counts.sums,
        }
        return codec.pack(HISTORY_LAYOUT, meta, arrays)

    @classmethod
    def restored(cls, kept: bytes) -> "DecisionHistory":
        """Restore a history from what `dump` gave. Raises Damaged or UnknownSchema."""
        meta, arrays = codec.unpack(kept, HISTORY_LAYOUT)
        found = cls()
        found.place = msgspec.convert(meta["place"], LogPlace)
        found.definitions = Definitions.restored(meta["definitions"])
        found.names = {name: place for place, name in enumerate(meta["names"])}
        found.rules = {name: place for place, name in enumerate(meta["rules"])}
        found.segments = {name: place for place, name in enumerate(meta["segments"])}
        found._rows.restore(part(arrays, "rows."))
        found._settled.restore(part(arrays, "settled."))
        found._arms.frombytes(arrays["arms"].tobytes())
        found.shown.counts = Counts(meta["shown"], arrays["shown"])
        found.unreadable, found.begins, found.lost = (
            meta[name] for name in ("unreadable", "begins", "lost")
        )
        found.told_until, found.erased = meta["told_until"], set(meta["erased"])
        found.began = meta["began"]
        return found


def _place(places: dict[str, int], name: str) -> int:
    """Return the place of a name, or -1 where MOST_PLACES others have one."""
    if len(places) == MOST_PLACES:
        return places.get(name, -1)
    return places.setdefault(name, len(places))


def _bits(places: Iterable[int]) -> int:
    return sum(1 << place for place in places if place >= 0)


def _readable(row: KeptRow) -> tuple[Decision, ModelVersion] | None:
    """Return a decision, and what made it; None where the row is damaged. Raises UnknownSchema."""
    try:
        decision = decode_decision(row.payload)
    except UnknownSchema:
        raise
    except StoreError:
        return None
    version = model_version(decision.model_version)
    return (decision, version) if version and is_whole(decision) else None


async def _first_position(store: Store, experiment: str) -> int:
    """Return the position of the first event; 0: there is none."""
    found = await store.read(experiment, 0, 1)
    return found[0].position if found else 0


async def read_history(
    store: Store,
    experiment: str,
    progress: Progress = SILENT,
    checkpoints: Checkpoints = NOWHERE,
) -> DecisionHistory:
    """Read the log of an experiment, from where the last look at it stopped. Raises UnknownSchema,
    Damaged or LogGap where the events cannot be read."""
    now, name = await store.describe(experiment), history_of(experiment)
    history, kept = DecisionHistory(), checkpoints.load(name)
    if kept is not None:
        with suppress(Damaged, UnknownSchema):
            history = DecisionHistory.restored(kept)
    goes_on = not history.place.position or await history.goes_on(store, experiment, now)
    if not (goes_on and await history.read(store, experiment, now, progress)):
        history = DecisionHistory()
        await history.read(store, experiment, now, progress)
    checkpoints.save(name, history.dump())
    return history
