"""The values that a store takes and returns.

For each experiment a store holds one ordered stream of *events* (changes of the state), *decision
rows* (answers of /select) and *snapshots* (a fold and its position). Payloads are opaque bytes;
`service.state.events` gives them meaning.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha1

from msgspec import Struct  # made in a tenth of a frozen dataclass's time

from service.errors import StoreError
from service.state.snapshot import Snapshot as Snapshot


def digest(payload: bytes) -> str:
    """Return 16 hex digits that tell an event from another. SHA-1, since Redis scripts have no
    other; it guards against accidents alone."""
    return sha1(payload, usedforsecurity=False).hexdigest()[:16]


class Append(Struct, frozen=True):
    """An event to append if every mark has the value that is expected of it.

    marks        identity -> a short value, which the mark has from now on; none: always appended
    replaces     identity -> the value that the mark must have now; all other marks must be new
    settles      the decisions that this event closes: they are no longer due, even if their rows
                 come later, and also where the event is refused and has no new mark
    opens        a decision, and the unix seconds from which it is due until an event settles it
    keep_until   unix seconds; a mark may be forgotten after this, never before (None: never)
    """

    experiment: str
    payload: bytes
    marks: Mapping[str, str]
    replaces: Mapping[str, str] = {}
    settles: Sequence[str] = ()
    opens: tuple[str, float] | None = None
    keep_until: float | None = None


class DecisionRow(Struct, frozen=True):
    """A decision to keep. Writing the same id again changes nothing.

    series    what its experiment's rows are counted by (`Instant.counts`)
    due       unix seconds from which it is due until an event settles it (None: never)
    exposed   its time, and what it showed by rule, where rules count it (`events.Exposed`)
    """

    experiment: str
    id: str
    series: str
    payload: bytes
    due: float | None = None
    exposed: tuple[float, dict[str, list[str]]] | None = None


class Mark(Struct, frozen=True):
    """The value of an identity, and the position of the event that gave it."""

    value: str
    position: int


class Appended(Struct, frozen=True):
    """An appended event. before: digest of the preceding one; empty where it is not known."""

    position: int
    before: str


class MarkConflict(Struct, frozen=True):
    """An entry that changed nothing, since a mark was not as expected: those of its marks that
    exist."""

    marks: Mapping[str, Mark]


class RowStored(Struct, frozen=True):
    """A stored decision row.

    number    grows in the order of an experiment's rows; 0: the id has a row already
    earlier   the payload of that row
    """

    number: int
    earlier: bytes | None = None


@dataclass(frozen=True, slots=True)
class Record:
    position: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class KeptRow:
    """A listed decision row. number: grows in the order of an experiment's rows; gaps are no
    loss."""

    number: int
    id: str
    payload: bytes = field(repr=False)


Entry = Append | DecisionRow
CommitResult = Appended | MarkConflict | RowStored


# -- retention, erasure, copies --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReaderPosition:
    """The place of a reader of the log: it has all events up to `position` and all decision rows up
    to the number `row`. Later ones stay until it has them."""

    position: int
    row: int


@dataclass(frozen=True, slots=True)
class Trim:
    """Trim events up to `position`, decision rows up to the number `row`, and marks whose
    `keep_until` is before `marks_before` (unix seconds).

    settles   default rewards may still come: a row that is due stays, with those after it
    """

    position: int
    row: int
    marks_before: float
    settles: bool = True


@dataclass(frozen=True, slots=True)
class Removed:
    """Counts of deleted decision rows: trimmed by age, erased on request."""

    trimmed: int = 0
    erased: int = 0


@dataclass(frozen=True, slots=True)
class Erasure:
    """What an erasure deletes for ever.

    decisions   ids of rows, which are not due any more
    events      by position: the payload from now on
    forget      prefixes of identities
    origin      snapshots of earlier positions go
    blobs       keys
    """

    decisions: Sequence[str] = ()
    events: Mapping[int, bytes] = field(default_factory=dict)
    forget: Sequence[str] = ()
    origin: int = 0
    blobs: Sequence[str] = ()


class Scrub(Struct, frozen=True):
    """Remove deleted bytes from the store's own files."""


Removal = Trim | Erasure | Scrub


def expect_origin(experiment: str, origin: int, position: int) -> None:
    """Raise StoreError where the origin of replay is below a position that is to go."""
    if position > origin:
        raise StoreError(
            f"experiment {experiment}: the origin of replay is at position {origin}: nothing up "
            f"to position {position} can be taken out"
        )


@dataclass(frozen=True, slots=True)
class KeptMark:
    """Mark as a store keeps it. keep_until: unix seconds, None: for ever."""

    identity: str
    value: str
    position: int
    keep_until: float | None


@dataclass(frozen=True, slots=True)
class LogSummary:
    """The counts and positions of an experiment at one moment.

    position, row   of the last event and the last row
    digest          of that event; empty where it is not known
    due             unix seconds by decision (None: settled before its row came); empty on request
    counts          decision rows ever kept, by series
    """

    position: int
    row: int
    due: Mapping[str, float | None]
    counts: Mapping[str, int]
    removed: Removed
    readers: Mapping[str, ReaderPosition] = field(default_factory=dict)
    digest: str = ""

    @property
    def rows(self) -> int:
        """Decision rows that are left."""
        return sum(self.counts.values()) - self.removed.trimmed - self.removed.erased


@dataclass(frozen=True, slots=True)
class StoreSize:
    """The bytes of a store.

    used    that it takes in all, and what shares the server's memory, file or database with it
    limit   that it may take; None: the store does not say
    logs    by experiment: of rows, events and marks, as estimated from samples; no snapshots
    """

    used: int
    limit: int | None
    logs: Mapping[str, int]


SAMPLE = 100
"""Rows and events that `measure` takes for all of an experiment's."""


def shared_out(size: int, parts: Mapping[str, float]) -> dict[str, int]:
    """Return the bytes of each part of a size."""
    whole = sum(parts.values())
    return {name: round(size * part / whole) if whole else 0 for name, part in parts.items()}


@dataclass(frozen=True, slots=True)
class Blob:
    """An artifact. A blob that is kept under the key already stays."""

    key: str
    payload: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class ReaderState:
    """A reader of the log and what it has; taken: None: the reader is gone."""

    name: str
    taken: ReaderPosition | None


@dataclass(frozen=True, slots=True)
class Marks:
    """Marks that replace those of their identities."""

    marks: Sequence[KeptMark]


@dataclass(frozen=True, slots=True)
class LogEnd:
    """The end of a log that was copied: the position of the last event ever appended, and its
    digest."""

    position: int
    digest: str


@dataclass(frozen=True, slots=True)
class Secret:
    """The secret of the store, which must not have one. It belongs to no experiment."""

    content: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Published:
    """What deciders decide by, in parts, each in place of the last one of its name. It is no part
    of the log: a store may lose it, and a learner publishes it again.

    stamp   tells this publication from earlier ones
    """

    stamp: str
    parts: Mapping[str, bytes] = field(default_factory=dict, repr=False)


Item = Snapshot | Blob | ReaderState | Marks | LogEnd | Secret | Published
"""Object that `put` writes."""
