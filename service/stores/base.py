"""What a store owes the engine: two protocols, ten values, nothing about bandits.

What it owes those who keep house (retention, erasure, copies) is in `service.stores.keeping`.

A store holds, for each experiment, one ordered stream of *events* (what changes state), a bulk of
*decision rows* (what was shown) and *snapshots* (a saved fold and the position it stands at).
Payloads are opaque bytes; `service.events` gives them meaning.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from msgspec import Struct  # made in a tenth of a frozen dataclass's time


class Append(Struct, frozen=True):
    """An event to append. `marks` are its identities: the log takes it only if none is known.

    marks        identity -> a short value that a later conflict is answered with (at least one)
    settles      the decision this event closes: it is no longer due, even if its row comes later,
                 nor where every mark was known already: then there is nothing left to settle
    keep_until   unix seconds; a mark may be forgotten after this, never before (None: never)
    """

    experiment: str
    payload: bytes
    marks: Mapping[str, str]
    settles: str | None = None
    keep_until: float | None = None


class DecisionRow(Struct, frozen=True):
    """A decision to keep. Writing the same id again changes nothing.

    due   unix seconds from which `due()` names this decision until an event settles it
          (None: never)
    """

    experiment: str
    id: str
    policy: str
    payload: bytes
    due: float | None = None


class Activation(Struct, frozen=True):
    """A decision that was kept without being due was shown after all: from now on it is due, as a
    row's is, until an event settles it. `mark` is the identity of this: it happens once."""

    experiment: str
    decision: str
    mark: str
    due: float | None = None
    keep_until: float | None = None


class Mark(Struct, frozen=True):
    """What an identity stands for: the value given with it and the position of its event."""

    value: str
    position: int


class Appended(Struct, frozen=True):
    position: int


class Known(Struct, frozen=True):
    """The entry changed nothing: these of its identities were known already."""

    marks: Mapping[str, Mark]


class Kept(Struct, frozen=True):
    """The decision row, or activation, is stored. earlier: the payload that the row's id had
    already, and keeps."""

    earlier: bytes | None = None


@dataclass(frozen=True, slots=True)
class Record:
    position: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class KeptRow:
    """A decision row as it is listed.

    number   grows in the order in which an experiment's rows came; gaps are no loss
    id       empty where an older Forage kept a row in Redis without it
    """

    number: int
    id: str
    payload: bytes = field(repr=False)


Entry = Append | DecisionRow | Activation
Outcome = Appended | Known | Kept


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A saved fold. origin: a replay begins here, for what came before may have been taken out."""

    position: int
    payload: bytes = field(repr=False)
    origin: bool = False


class EventLog(Protocol):
    """One ordered log per experiment.

    Every backend guarantees:
    - positions of an experiment start at 1 and are dense; `read` yields them in order;
    - `commit` returns after all its entries are durable, in the order given, each whole or not at
      all; if it raises StoreUnavailable, any of them may have been kept, and giving the same
      entries again is safe: identities make it so;
    - `commit` of no entries writes nothing that is read, and raises where nothing can be written;
    - an identity is taken at most once, by any process, and conflicting entries of one batch are
      settled in batch order;
    - a payload comes back as the bytes that went in.
    """

    shared: bool
    """Other processes may append: whoever folds must also follow the log."""

    durability: str
    """One sentence: what an acknowledged write survives."""

    async def open(self) -> None: ...
    async def close(self) -> None: ...
    async def experiments(self) -> list[str]:
        """Names of the experiments that have an event, sorted."""

    async def commit(self, entries: Sequence[Entry]) -> list[Outcome]: ...
    async def read(self, experiment: str, after: int, limit: int) -> list[Record]: ...
    async def wait(self, positions: Mapping[str, int], seconds: float) -> None:
        """Return once an experiment's log may have moved past its position, or after `seconds`."""

    async def marks(self, experiment: str, identities: Sequence[str]) -> dict[str, Mark]: ...
    async def decision(self, experiment: str, decision: str) -> bytes | None: ...
    async def decisions(self, experiment: str, after: int, limit: int) -> list[KeptRow]:
        """Rows of a number above `after`, in the order they came; from 0: from the first."""

    async def due(self, experiment: str, now: float, limit: int) -> list[bytes]:
        """Payloads of decisions due at `now` (unix seconds) and not settled, oldest first."""

    async def decision_counts(self, experiment: str) -> dict[str, int]:
        """Decision rows ever kept, by policy."""


class SnapshotStore(Protocol):
    """Saved folds and content-addressed blobs.

    Every backend guarantees: a snapshot is seen whole or not at all; an older position never
    replaces a newer one; the last two are kept, and the newest origin beside them; a blob once put
    is never changed.
    """

    async def save_snapshot(self, experiment: str, snapshot: Snapshot) -> None: ...
    async def snapshots(self, experiment: str) -> list[Snapshot]:
        """Newest first, the origin among them."""

    async def put_blob(self, experiment: str, key: str, payload: bytes) -> None: ...
    async def blob(self, experiment: str, key: str) -> bytes | None: ...
    async def secret(self) -> bytes:
        """32 random bytes, made at the first call and the same ever after for this store."""
