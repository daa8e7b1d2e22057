"""Values of retention, erasure and copies: what may be trimmed, what is taken out for ever, and the
parts that a store is written in."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from service.log.stores.base import KeptRow, Record, Snapshot


@dataclass(frozen=True, slots=True)
class Taken:
    """A reader of the log that is no service has taken all events up to `position` and all decision
    rows up to the number `row`: what comes after must not be trimmed before it has."""

    position: int
    row: int


@dataclass(frozen=True, slots=True)
class Cut:
    """What may go: events up to `position`, decision rows up to the number `row`, and marks that
    had to be kept until some time before `marks_before` (unix seconds).

    settles   no default reward can come any more: rows that are due go like the others
    """

    position: int
    row: int
    marks_before: float
    settles: bool = True


@dataclass(frozen=True, slots=True)
class Removed:
    """Decision rows that were kept once and are gone: trimmed by age, erased by wish."""

    trimmed: int = 0
    erased: int = 0


@dataclass(frozen=True, slots=True)
class Erasure:
    """What is taken out for ever.

    decisions   their rows go, and nothing is due of them any more
    events      by position: the payload that stands there from now on
    forget      marks whose identity begins with one of these go
    origin      snapshots of positions below this one go
    blobs       keys of blobs that go
    """

    experiment: str
    decisions: Sequence[str]
    events: Mapping[int, bytes]
    forget: Sequence[str]
    origin: int
    blobs: Sequence[str] = ()


class Scrub(Enum):
    """What was deleted is taken out of the store's own files, too."""

    SCRUB = "scrub"


SCRUB = Scrub.SCRUB
Removal = Cut | Erasure | Scrub


@dataclass(frozen=True, slots=True)
class KeptMark:
    """keep_until: unix seconds, None: for ever."""

    identity: str
    value: str
    position: int
    keep_until: float | None


@dataclass(frozen=True, slots=True)
class Instant:
    """An experiment at one moment: the position of its last event, the number of its last row,
    unix seconds from which decisions are due (None: settled before its row came; empty where that
    was not asked for), decision rows ever kept by policy, rows removed, and what readers took."""

    position: int
    row: int
    due: Mapping[str, float | None]
    counts: Mapping[str, int]
    removed: Removed
    readers: Mapping[str, Taken] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Part:
    """A part of an experiment to write.

    events, rows, due, counts, removed   of a copy, into an empty store; events and rows in order
    position    of the last event there ever was, given with the last part of a copy: events before
                those loaded may have been trimmed
    marks       take the place of those of their identities
    blobs       by key; one that is there already stays
    readers     None: there is no such reader any more
    secret      of the store (no experiment), which must not have one
    """

    events: Sequence[Record] = ()
    rows: Sequence[KeptRow] = field(default=(), repr=False)
    marks: Sequence[KeptMark] = ()
    due: Mapping[str, float | None] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    removed: Removed = Removed()
    position: int | None = None
    snapshots: Sequence[Snapshot] = field(default=(), repr=False)
    blobs: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    readers: Mapping[str, Taken | None] = field(default_factory=dict)
    secret: bytes | None = field(default=None, repr=False)
