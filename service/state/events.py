"""The records of the log: what changes state (events) and what was shown (decisions).

An event is self-contained: folding it needs the state before it and nothing else, except for
`VersionStaged`, which names an artifact by its content hash. Every record carries the number of the
schema it was written with; a log written by a newer Forage is refused, never guessed at.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, TypeVar
from zlib import crc32

import msgspec

from service.bandits.settled import Settled as Settled
from service.bandits.settled import SettledReward as SettledReward
from service.bandits.settled import settle as settle
from service.errors import Damaged, LogTooNew, NotLoggable

Features = dict[str, Any]
"""Values by name, as JSON has them."""

SCHEMA = 6
"""Of the records below. Raised when an older Forage could misread a newer record."""

TWISTER = 4
"""The last schema whose choices were drawn by Python's generator under the seed."""

UNTOLD = 5
"""The last schema whose decisions do not say whether their candidates are a shortlist."""

LEFT = 5
"""The last schema whose late corrections a logistic head leaves to the next training."""


class Event(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type"
):
    """at: unix seconds at which the service decided to write it (for people; never folded)."""

    at: float


class ExperimentDefined(Event, frozen=True, kw_only=True, tag="ExperimentDefined"):
    """definition: a `definition.experiment.Definition` as JSON. A first or a changed definition."""

    revision: int
    schema_version: int
    definition: dict[str, object]


class ExperimentDeleted(Event, frozen=True, kw_only=True, tag="ExperimentDeleted"):
    revision: int


class PolicyReset(Event, frozen=True, kw_only=True, tag="PolicyReset"):
    """A policy's head starts from the prior, its net untrained; `revision` is the experiment's."""

    policy: str
    revision: int


class ArmUpserted(Event, frozen=True, kw_only=True, tag="ArmUpserted"):
    arm: str
    features: Features


class ArmRemoved(Event, frozen=True, kw_only=True, tag="ArmRemoved"):
    arm: str


class Learned(Event, frozen=True, kw_only=True):
    """What the next three share: outcomes of one decision of one policy.

    decision         short id
    schema_version   of the features `x`; other versions' heads do not fold it
    settled          a slate settles as one event; empty where all that is left of it was not seen
    """

    decision: str
    policy: str
    schema_version: int
    settled: list[Settled]


class Rewarded(Learned, frozen=True, kw_only=True, tag="Rewarded"):
    """The first word on these arms."""


class Expired(Learned, frozen=True, kw_only=True, tag="Expired"):
    """The wait window closed without a reward: the default reward holds from here."""


class Corrected(Learned, frozen=True, kw_only=True, tag="Corrected", omit_defaults=True):
    """A reward that changes what was learned: the real one after the default, or a further
    contribution under aggregation sum or last.

    was     the reward that each arm of `settled` had been learned with, in order; None: not yet
    since   the position of the first word on it: a head that began later does not hold it
    at_once   a logistic head takes it in, too; False of schema LEFT and before
    withdrawn   arms of `settled` that were not seen after all, as those below a late click: what
                was learned of them, `was` and their reward here, is taken back
    """

    was: list[float | None]
    since: list[int | None]
    at_once: bool = True
    withdrawn: list[str] = []


def outcomes(event: Learned) -> list[SettledReward]:
    if isinstance(event, Corrected):
        return [
            SettledReward(settled, was, since, event.at_once, settled.arm in event.withdrawn)
            for settled, was, since in zip(event.settled, event.was, event.since, strict=True)
        ]
    return [SettledReward(settled) for settled in event.settled]


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


class Skipped(Event, frozen=True, kw_only=True, tag="Skipped"):
    """The event at `position` changes nothing, on any replica: it cannot be folded.

    reason   why, for people
    """

    position: int
    reason: str


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
    | Skipped
    | Tombstone
)


class Shown(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """One slot of an answer. propensity: the chance of this arm in this slot."""

    arm: str
    propensity: float
    x: list[float]
    inline: bool = False


class Shortlist(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """A policy chose the candidates itself, out of the catalogue: probabilities hold among them.

    policy       whose head chose them; `model_version` of the decision names the head
    method       "scan" (every arm was compared) or "index" (some lists of an inverted file)
    catalogue    arms that it chose from
    best         arms for each direction
    directions   the mean of the head, and posterior draws
    uniform      arms drawn uniformly beside them
    """

    policy: str
    method: str
    catalogue: int
    best: int
    directions: int
    uniform: int


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
    key              the name of the API key that asked, '' where keys are off
    shortlist        how the policy chose `arms`; None: the request named them, or they are the
                     whole catalogue
    untold           it is of schema UNTOLD or before: no `shortlist` says nothing
    """

    id: str
    at: float
    policy: str
    assignment: float
    model_version: str
    schema_version: int
    unit: str | None
    context: Features
    arms: Arms
    inline: dict[str, Features]
    probabilities: Chances
    seed: int
    bank: int
    shown: list[Shown]
    slate: float
    reward_by: float
    accept_until: float
    deferred: bool = False
    twister: bool = False
    key: str = ""
    shortlist: Shortlist | None = None
    untold: bool = False


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
    """Raises NotLoggable for an event that would not be read back as it is: JSON has no infinite
    number, and one such record would stop every fold that comes to it."""
    body = _encode(event)
    try:
        same = _decode_event(msgspec.Raw(body)) == event
    except msgspec.DecodeError as fault:
        raise NotLoggable(f"{type(event).__name__} cannot be read back: {fault}") from fault
    if not same:
        raise NotLoggable(f"{type(event).__name__} is read back as another event")
    return _encode(_EventRecord(SCHEMA, msgspec.Raw(body), crc32(body, SCHEMA)))


def decode_event(payload: bytes) -> AnyEvent:
    """Raises LogTooNew for a record of a newer schema, Damaged for anything that is no record, or
    is another than was written."""
    try:
        record = _decode_event_record(payload)
        _check(record.schema, record.event, record.crc)
        event = _decode_event(record.event)
        if record.schema <= LEFT and isinstance(event, Corrected):
            event = msgspec.structs.replace(event, at_once=False)
        return event
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
        if record.schema <= UNTOLD:
            twister = record.schema <= TWISTER
            decision = msgspec.structs.replace(decision, twister=twister, untold=True)
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
