"""What goes into a store and comes out of it: values, nothing about bandits.

Those of retention, erasure and copies are in `service.log.stores.keeping`, the verbs of a store in
`service.log.stores.store`.

A store holds, for each experiment, one ordered stream of *events* (what changes state), a bulk of
*decision rows* (what was shown) and *snapshots* (a saved fold and the position it stands at).
Payloads are opaque bytes; `service.state.events` gives them meaning.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from msgspec import Struct  # made in a tenth of a frozen dataclass's time

from service.state.snapshot import Snapshot as Snapshot


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
CommitResult = Appended | Known | Kept
