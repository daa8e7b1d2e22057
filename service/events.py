"""The records of the log: what changes state (events) and what was shown (decisions).

An event is self-contained: folding it needs the state before it and nothing else, except for
`VersionStaged`, which names an artifact by its content hash. Every record carries the number of the
schema it was written with; a log written by a newer Forage is refused, never guessed at.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, NamedTuple, TypeVar
from zlib import crc32

import msgspec

from service.errors import Damaged, LogTooNew

SCHEMA = 5
"""Of the records below. Raised when an older Forage could misread a newer record."""

TWISTER = 4
"""The last schema whose choices were drawn by Python's generator under the seed."""


class Event(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type"
):
    """at: unix seconds at which the service decided to write it (for people; never folded)."""

    at: float


class ExperimentDefined(Event, frozen=True, kw_only=True, tag="ExperimentDefined"):
    """definition: as in `service.experiment.Definition`, JSON. A first or a changed definition."""

    revision: int
    schema_version: int
    definition: dict[str, Any]


class ExperimentDeleted(Event, frozen=True, kw_only=True, tag="ExperimentDeleted"):
    revision: int


class PolicyReset(Event, frozen=True, kw_only=True, tag="PolicyReset"):
    """A policy's head starts from the prior, its net untrained; `revision` is the experiment's."""

    policy: str
    revision: int


class ArmUpserted(Event, frozen=True, kw_only=True, tag="ArmUpserted"):
    arm: str
    features: dict[str, Any]


class ArmRemoved(Event, frozen=True, kw_only=True, tag="ArmRemoved"):
    arm: str


class Settled(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One shown arm and what came of it.

    x        base features, context then arm, encoded
    inline   an arm outside the catalogue: no head of its own is made for it
    """

    arm: str
    reward: float
    x: list[float]
    inline: bool = False


class Learned(Event, frozen=True, kw_only=True):
    """What the next three share: outcomes of one decision of one policy.

    decision         short id
    schema_version   of the features `x`; other versions' heads do not fold it
    settled          at least one arm; a slate settles as one event
    """

    decision: str
    policy: str
    schema_version: int
    settled: list[Settled]


class Rewarded(Learned, frozen=True, kw_only=True, tag="Rewarded"):
    """The first word on these arms."""


class Expired(Learned, frozen=True, kw_only=True, tag="Expired"):
    """The wait window closed without a reward: the default reward holds from here."""


class Corrected(Learned, frozen=True, kw_only=True, tag="Corrected"):
    """A reward that changes what was learned: the real one after the default, or a further
    contribution under aggregation sum or last.

    was     the reward that each arm of `settled` had been learned with, in order; None: not yet
    since   the position of the first word on it: a head that began later does not hold it
    """

    was: list[float | None]
    since: list[int | None]


class Outcome(NamedTuple):
    """One settled arm; was, since: as in `Corrected`, None where this is the first word on it."""

    settled: Settled
    was: float | None = None
    since: int | None = None


def outcomes(event: Learned) -> list[Outcome]:
    if isinstance(event, Corrected):
        columns = zip(event.settled, event.was, event.since, strict=True)
        return [Outcome(*column) for column in columns]
    return [Outcome(settled) for settled in event.settled]


class VersionStaged(Event, frozen=True, kw_only=True, tag="VersionStaged"):
    """A trained encoder and the head rebuilt in its features, not yet serving.

    born        revision of the experiment that the policy's head started at
    artifact    SHA-256 of the blob, hex      size        bytes
    watermark   the head holds the policy's events up to this position
    rewards     how many rewards of the policy had been logged at the watermark
    """

    policy: str
    born: int
    version: int
    artifact: str
    size: int
    watermark: int
    rewards: int


class VersionActivated(Event, frozen=True, kw_only=True, tag="VersionActivated"):
    """From this position on the staged version serves."""

    policy: str
    born: int
    version: int


class ChangeDetected(Event, frozen=True, kw_only=True, tag="ChangeDetected"):
    """A policy's residuals say that the world is another: what it made stale is forgotten.

    number           1 for the policy's first change since its head was born, and so on
    stratum          where, in words
    columns          of x: settlements in which one of them is not 0 are stale; empty: all are
    since            log position from which on it seems to hold
    schema_version   of x
    """

    policy: str
    born: int
    number: int
    stratum: str
    columns: list[int]
    since: int
    schema_version: int


class Erased(Event, frozen=True, kw_only=True, tag="Erased"):
    """The rows of these decisions were taken out, and tombstones stand at the positions of their
    events: those are no gap, but a replay begins after them, at the origin."""

    decisions: list[str]
    positions: list[int]


class Tombstone(Event, frozen=True, kw_only=True, tag="Tombstone"):
    """Stands where an event of an erased decision stood. The rewards of the policy that it settled
    for the first time count where rewards are counted, and are learned from no more.

    inline   so many of them were of arms outside the catalogue
    """

    policy: str
    schema_version: int
    rewards: int
    inline: int = 0


AnyEvent = (
    ExperimentDefined
    | ExperimentDeleted
    | PolicyReset
    | ArmUpserted
    | ArmRemoved
    | Rewarded
    | Expired
    | Corrected
    | VersionStaged
    | VersionActivated
    | ChangeDetected
    | Erased
    | Tombstone
)


class Shown(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """One slot of an answer. propensity: the chance of this arm in this slot."""

    arm: str
    propensity: float
    x: list[float]
    inline: bool = False


Arms = TypeVar("Arms")
Chances = TypeVar("Chances")


class Decided(
    msgspec.Struct, Generic[Arms, Chances], frozen=True, kw_only=True, forbid_unknown_fields=True,
    omit_defaults=True, gc=False,
):  # fmt: skip
    """One answer of /select, enough to evaluate, train and audit from.

    id               short, 22 characters         at               unix seconds
    unit             keyed hash, or None          assignment       chance that this policy was taken
    context          as sent                      inline           features of other arms
    arms             the candidates, in order     probabilities    of slot 1, by candidate
    seed             of every draw                bank             seed of the posterior draws' bank
    slate            chance of the whole slate    reward_by, accept_until   unix seconds
    deferred         not shown, and not learned from, before it is activated
    twister          the choice was drawn as schema TWISTER and those before it did
    """

    id: str
    at: float
    policy: str
    assignment: float
    model_version: str
    schema_version: int
    unit: str | None
    context: dict[str, Any]
    arms: Arms
    inline: dict[str, dict[str, Any]]
    probabilities: Chances
    seed: int
    bank: int
    shown: list[Shown]
    slate: float
    reward_by: float
    accept_until: float
    deferred: bool = False
    twister: bool = False


Decision = Decided[list[str], list[float]]
Draft = Decided[msgspec.Raw, msgspec.Raw | list[float]]
"""One on its way into the log: what is long in it may be JSON already."""


class _EventRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """crc: of what the event is written as; None where an older Forage wrote it."""

    schema: int
    event: msgspec.Raw
    crc: int | None = None


class _DecisionRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    schema: int
    decision: msgspec.Raw
    crc: int | None = None


class _Header(msgspec.Struct, frozen=True):
    schema: int


_encode = msgspec.json.Encoder().encode
_decode_event_record = msgspec.json.Decoder(_EventRecord).decode
_decode_decision_record = msgspec.json.Decoder(_DecisionRecord).decode
_decode_header = msgspec.json.Decoder(_Header).decode
_decode_event: Callable[[msgspec.Raw], AnyEvent] = msgspec.json.Decoder(AnyEvent).decode
_decode_decision: Callable[[msgspec.Raw], Decision] = msgspec.json.Decoder(Decision).decode


def encode_event(event: AnyEvent) -> bytes:
    body = _encode(event)
    return _encode(_EventRecord(SCHEMA, msgspec.Raw(body), crc32(body, SCHEMA)))


def decode_event(payload: bytes) -> AnyEvent:
    """Raises LogTooNew for a record of a newer schema, Damaged for anything that is no record, or
    is another than was written."""
    try:
        record = _decode_event_record(payload)
        _check(record.schema, record.event, record.crc)
        return _decode_event(record.event)
    except (msgspec.DecodeError, UnicodeDecodeError) as fault:
        raise _unreadable(payload, fault) from fault


def encode_decision(decision: Decision | Draft) -> bytes:
    """As `_DecisionRecord` is written, put together by hand: the body is long."""
    body = _encode(decision)
    return b'{"schema":%d,"decision":%b,"crc":%d}' % (SCHEMA, body, crc32(body, SCHEMA))


def decode_decision(payload: bytes) -> Decision:
    """Raises as `decode_event`."""
    try:
        record = _decode_decision_record(payload)
        _check(record.schema, record.decision, record.crc)
        decision = _decode_decision(record.decision)
        if record.schema <= TWISTER:
            decision = msgspec.structs.replace(decision, twister=True)
        return decision
    except (msgspec.DecodeError, UnicodeDecodeError) as fault:
        raise _unreadable(payload, fault) from fault


def _check(schema: int, body: msgspec.Raw, crc: int | None) -> None:
    _refuse_newer(schema)
    if crc is not None and crc != crc32(body, schema):
        raise Damaged("a log record is another than was written: its checksum does not match")


def _refuse_newer(schema: int) -> None:
    if schema > SCHEMA:
        raise LogTooNew(
            f"the log holds records of schema {schema}, this Forage reads up to {SCHEMA}: "
            "start a newer Forage"
        )


def _unreadable(payload: bytes, fault: Exception) -> Damaged:
    with suppress(msgspec.DecodeError, UnicodeDecodeError):
        _refuse_newer(_decode_header(payload).schema)
    return Damaged(f"a log record cannot be read: {fault}")
