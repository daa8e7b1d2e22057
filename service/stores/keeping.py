"""What a store owes those who keep house: who is alive, what may be trimmed, what is taken out for
ever, and copies of all of it.

`Housekeeping` is what a service does while it serves; `Copying` is for backups.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from service.stores.base import KeptRow, Record


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
    """

    experiment: str
    decisions: Sequence[str]
    events: Mapping[int, bytes]
    forget: Sequence[str]
    origin: int


class Housekeeping(Protocol):
    async def present(self, process: str, doing: str, seconds: float) -> dict[str, str]:
        """Say that this process is alive for so long (0: it leaves), and what it is doing; what
        every process that is alive said last, by process."""

    async def take_note(self, experiment: str, reader: str, taken: Taken | None) -> None:
        """Remember what a reader has taken (None: there is no such reader any more). It survives
        what an append survives."""

    async def readers(self, experiment: str) -> dict[str, Taken]: ...
    async def trim(self, experiment: str, cut: Cut, limit: int) -> int:
        """Delete about `limit` things at most; how many it were: 0 when all that may go has gone.

        A row that is due stays, and so do those after it, while `cut.settles`. Raises StoreError
        where no origin stands at or above `cut.position`: the state could not be folded any more.
        """

    async def removed(self, experiment: str) -> Removed: ...
    async def overwrite_marks(
        self, experiment: str, marks: Mapping[str, str], keep_until: float
    ) -> None:
        """Let identities stand for these values, at position 0, whether they were known or not."""

    async def erase(self, erasure: Erasure) -> None:
        """If it raises StoreUnavailable, a part may be done, and the same again is safe.

        Afterwards `decisions` and `decision` do not know the rows, and `read` yields an event's new
        payload at its old position. Raises StoreError where no origin stands at or above
        `erasure.origin`.
        """

    async def forget_blobs(self, experiment: str, keys: Sequence[str]) -> None: ...
    async def scrub(self) -> None:
        """Let nothing that was deleted be left in the store's own files, or be left only until they
        have been written anew. Raises StoreUnavailable where that is not possible now."""


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
    unix seconds from which decisions are due (None: settled before its row came), decision rows
    ever kept by policy, and rows removed."""

    position: int
    row: int
    due: Mapping[str, float | None]
    counts: Mapping[str, int]
    removed: Removed


@dataclass(frozen=True, slots=True)
class Part:
    """A part of an experiment on its way into an empty store. Events and rows come in order.

    position    of the last event there ever was, given with the last part: events before those
                loaded may have been trimmed
    """

    events: Sequence[Record] = ()
    rows: Sequence[KeptRow] = field(default=(), repr=False)
    marks: Sequence[KeptMark] = ()
    due: Mapping[str, float | None] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    removed: Removed = Removed()
    position: int | None = None


class Copying(Protocol):
    async def instant(self, experiment: str) -> Instant:
        """All of it at one moment, while others write."""

    async def list_marks(
        self, experiment: str, cursor: str, limit: int
    ) -> tuple[list[KeptMark], str]:
        """Some marks and the cursor of the next ones; from "" to "". Each at least once."""

    async def blob_keys(self, experiment: str) -> list[str]: ...
    async def load(self, experiment: str, part: Part) -> None:
        """Write a part as it is. Row numbers need not stay the same, their order does."""

    async def adopt_secret(self, secret: bytes) -> None:
        """Let the store have this secret; it must not have one yet (StoreError)."""
