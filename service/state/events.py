"""Events: the records of the log that change state.

An event is self-contained, except for `VersionStaged`, which names an artifact by its content hash.
Every record carries the number of its schema: a Forage of another schema refuses it.
"""

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Any
from zlib import crc32

import msgspec

from service.bandits.outcome import Outcome as Outcome
from service.errors import Damaged, NotLoggable, UnknownSchema
from service.state.rollout import AUTOMATIC as AUTOMATIC
from service.state.rollout import RolloutPlan, RolloutStep
from service.state.version_gate import GateFigures

FeatureValues = dict[str, Any]
"""Values by name, as in JSON."""

STARTED_BY = "forage serve"
"""Author, in place of a key, where a service defines the experiments of its files as it starts."""

SCHEMA = 9
"""The schema of events and decision rows. Raise it with every change of either."""


class Event(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type"
):
    """A record of the log. at: unix seconds of writing; the largest is the log time of the
    experiment."""

    at: float


class Change(Event, frozen=True, kw_only=True, omit_defaults=True):
    """A change that somebody made.

    by   the name of the caller's API key, '' where keys are off, or STARTED_BY
    """

    by: str = ""


class ExperimentDefined(Change, frozen=True, kw_only=True, tag="ExperimentDefined"):
    """A definition, the first or another. definition: a `definition.experiment.Definition` as
    JSON."""

    revision: int
    schema_version: int
    definition: dict[str, object]


class ExperimentDeleted(Change, frozen=True, kw_only=True, tag="ExperimentDeleted"):
    revision: int


class PolicyReset(Change, frozen=True, kw_only=True, tag="PolicyReset"):
    """A policy's head starts from the prior, its net untrained; `revision` is the experiment's."""

    policy: str
    revision: int


class TrafficChanged(Change, frozen=True, kw_only=True, tag="TrafficChanged"):
    """Policies have other shares of the traffic.

    shares     of these policies; those of others stay
    revision   of the experiment
    reason     why, for people
    """

    shares: dict[str, float]
    revision: int
    reason: str = ""


class RolloutStarted(Change, frozen=True, kw_only=True, tag="RolloutStarted"):
    """A challenger begins to take over its baseline's traffic.

    revision   of the experiment
    reason     why, for people: a version's gate says it
    """

    plan: RolloutPlan
    revision: int
    reason: str = ""


class RolloutStepped(Change, frozen=True, kw_only=True, tag="RolloutStepped"):
    """A rollout took a step, by itself (AUTOMATIC) or because a person said so.

    policy     the challenger
    revision   of the experiment
    reason     why, for people, beside the sentence of the step
    """

    policy: str
    step: RolloutStep
    revision: int
    reason: str = ""


class BudgetMoved(Change, frozen=True, kw_only=True, tag="BudgetMoved"):
    """The learner of a loss budget may have another share of the traffic. It makes no revision.

    began           position at which the budget began
    number          of the move, from 1 on
    share, before   of the traffic, from now on and until now
    ratio           lower bound of what the learner earns, as a share of what the baseline does
    own, baseline   settled decisions of both that count
    """

    began: int
    number: int
    share: float
    before: float
    ratio: float
    own: int
    baseline: int
    sentence: str


class ArmUpserted(Change, frozen=True, kw_only=True, tag="ArmUpserted"):
    """An arm, new or another one of its id, with all its values."""

    arm: str
    features: FeatureValues
    attributes: FeatureValues = {}


class ArmPatched(Change, frozen=True, kw_only=True, tag="ArmPatched"):
    """Some values of an arm; the others stay. None: it no longer has the value."""

    arm: str
    features: FeatureValues = {}
    attributes: FeatureValues = {}


class ArmRemoved(Change, frozen=True, kw_only=True, tag="ArmRemoved"):
    arm: str


class Imported(Change, frozen=True, kw_only=True, tag="Imported"):
    """Visits of another system, new to the log, of which a policy learned."""

    policy: str
    visits: int


class Learned(Event, frozen=True, kw_only=True, omit_defaults=True):
    """Outcomes of one decision of one policy.

    decision         short id
    schema_version   of the features; heads of other versions do not fold it
    settled          a slate settles as one event; empty where the user saw none of the rest
    version          of the policy, by number; 0: untrained, or another policy decided in its place
    reward_by        of the decision, when its default reward is due; 0: no default is waited for
    unlogged         the decision was answered without the log, which may never have its row
    """

    decision: str
    policy: str
    schema_version: int
    settled: list[Outcome]
    version: int = 0
    reward_by: float = 0.0
    unlogged: bool = False

    @property
    def defaulted(self) -> bool:
        """Whether the default reward is learned, since no other came in time."""
        return False

    @property
    def corrects(self) -> bool:
        """Whether it changes an earlier reward."""
        return False


class Rewarded(Learned, frozen=True, kw_only=True, tag="Rewarded"):
    """The first reward of these arms."""


class Default(Learned, frozen=True, kw_only=True, tag="Default"):
    """The wait window of a decision closed without a reward: the default reward holds. It is a part
    of an `Expired`, and no event of its own."""

    @property
    def defaulted(self) -> bool:
        return True


class ExpiredDecision(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A decision of a block, with the members of its `Default`."""

    decision: str
    settled: list[Outcome]
    reward_by: float
    version: int


class Expired(Event, frozen=True, kw_only=True, omit_defaults=True, tag="Expired"):
    """A block of decisions of one policy whose wait windows closed: the default reward holds.

    erased          first rewards of decisions that were taken out of the block since
    erased_inline   how many of these are of arms outside the catalogue
    """

    policy: str
    schema_version: int
    decisions: list[ExpiredDecision]
    erased: int = 0
    erased_inline: int = 0

    @classmethod
    def of(cls, defaults: Sequence[Learned]) -> "Expired":
        """Return the block of these defaults, which have policy, schema and time in common."""
        first = defaults[0]
        return cls(
            at=first.at,
            policy=first.policy,
            schema_version=first.schema_version,
            decisions=[
                ExpiredDecision(one.decision, one.settled, one.reward_by, one.version)
                for one in defaults
            ],
        )

    @property
    def defaults(self) -> list[Default]:
        """What it settles, in order."""
        return [
            Default(
                at=self.at,
                decision=one.decision,
                policy=self.policy,
                schema_version=self.schema_version,
                settled=one.settled,
                version=one.version,
                reward_by=one.reward_by,
            )
            for one in self.decisions
        ]

    def without(self, decisions: Collection[str]) -> "Expired | Tombstone":
        """Return what is left once these decisions are erased."""
        left = [one for one in self.decisions if one.decision not in decisions]
        gone = [one for one in self.decisions if one.decision in decisions]
        arms = [outcome for one in gone for outcome in one.settled]
        erased = self.erased + len(arms)
        inline = self.erased_inline + sum(outcome.inline for outcome in arms)
        if left:
            return msgspec.structs.replace(
                self, decisions=left, erased=erased, erased_inline=inline
            )
        return Tombstone(
            at=self.at,
            policy=self.policy,
            schema_version=self.schema_version,
            rewards=erased,
            inline=inline,
        )


class Corrected(Learned, frozen=True, kw_only=True, tag="Corrected"):
    """Rewards that change earlier ones: the real ones after the default, or a further contribution
    under aggregation sum or last. Arms without an earlier reward may be among them."""

    @property
    def corrects(self) -> bool:
        return True


class Exposed(Event, frozen=True, kw_only=True, tag="Exposed"):
    """What the decisions of one commit showed, for rules that count it in windows: id and time of
    each decision, and the labels of what it showed by rule."""

    decisions: list[tuple[str, float, dict[str, list[str]]]]


class Leased(Event, frozen=True, kw_only=True, tag="Leased"):
    """A process asks for a part of the count of a rule: so many showings of each label in the
    present window. It gets what the earlier ones have left."""

    rule: str
    process: str
    asked: dict[str, int]


class Activated(Event, frozen=True, kw_only=True, tag="Activated"):
    """A deferred decision was shown: from now on it can be rewarded."""

    decision: str


class TrainingReport(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the trainer tells of a training.

    rewards           that it read, those held out included
    seconds           it took
    validation_loss   of the net, on the rewards held out; in units of their variance, or a log
                      loss. None: the descent diverged
    ridge_loss        of a ridge regression of the same rewards, on the same ones held out
    explained         standard errors by which the net's loss on these is below that of their level
    """

    rewards: int
    seconds: float
    validation_loss: float | None
    ridge_loss: float
    explained: float


class VersionStaged(Change, frozen=True, kw_only=True, tag="VersionStaged"):
    """A trained encoder and the head rebuilt in its features. From this position on it learns
    beside the version that serves.

    born        revision of the experiment that the policy's head started at
    artifact    SHA-256 of the blob, hex      size        bytes
    watermark   the head in the artifact holds the policy's events up to this position
    rewards     how many rewards of the policy its net was trained on
    training    None: the head alone was made anew, and no gate holds it back
    of          the earlier version whose net it has; None: it has one of its own
    """

    policy: str
    born: int
    version: int
    artifact: str
    size: int
    watermark: int
    rewards: int
    training: TrainingReport | None = None
    of: int | None = None


class GateEnded(Change, frozen=True, kw_only=True):
    """A gate let a staged version serve, or rejected it.

    gate     what it saw; None: it compared nothing
    reason   in words
    """

    policy: str
    born: int
    version: int
    gate: GateFigures | None = None
    reason: str = ""


class VersionActivated(GateEnded, frozen=True, kw_only=True, tag="VersionActivated"):
    """The staged version serves from this position on."""


class VersionRejected(GateEnded, frozen=True, kw_only=True, tag="VersionRejected"):
    """The staged version never serves."""


class ChangeDetected(Event, frozen=True, kw_only=True, tag="ChangeDetected"):
    """A change of the world, shown by a policy's residuals: it forgets stale settlements.

    number           1 for the first change since the head was born, and so on
    stratum          where, in words
    columns          of x: settlements with a value in one of them are stale; empty: all are
    since            log position of the change, as estimated
    schema_version   of x
    """

    policy: str
    born: int
    number: int
    stratum: str
    columns: list[int]
    since: int
    schema_version: int


class Erased(Change, frozen=True, kw_only=True, tag="Erased"):
    """The erasure of decisions: their rows are gone, and tombstones stand at the positions of their
    events. A replay begins after those, at the origin.

    keyed   those among the decisions whose ids stand for an Idempotency-Key
    """

    decisions: list[str]
    positions: list[int]
    keyed: list[str] = []


class Skipped(Change, frozen=True, kw_only=True, tag="Skipped"):
    """No replica folds the event at `position`. reason: why, for people."""

    position: int
    reason: str


class LogTruncated(Event, frozen=True, kw_only=True, tag="LogTruncated"):
    """The log had lost its end, and other events follow.

    held   position of the last event when that was noticed
    last   the last position that is known to have been lost; 0: rows alone
    rows   decision rows that are known to have been lost
    """

    held: int
    last: int
    rows: int


class Tombstone(Event, frozen=True, kw_only=True, tag="Tombstone"):
    """Replaces an event of an erased decision. Its first rewards still count, but no head learns
    from them. inline: how many of these are of arms outside the catalogue."""

    policy: str
    schema_version: int
    rewards: int
    inline: int = 0


ChangingEvent = (
    ExperimentDefined
    | ExperimentDeleted
    | PolicyReset
    | TrafficChanged
    | RolloutStarted
    | RolloutStepped
    | ArmUpserted
    | ArmPatched
    | ArmRemoved
    | Rewarded
    | Expired
    | Corrected
    | VersionStaged
    | VersionActivated
    | VersionRejected
    | ChangeDetected
    | Erased
)
"""Events that make a revision or change what an experiment has learned."""

AnyEvent = (
    ChangingEvent
    | Activated
    | BudgetMoved
    | Exposed
    | Imported
    | Leased
    | LogTruncated
    | Skipped
    | Tombstone
)


def settlements_of(event: AnyEvent) -> Sequence[Learned]:
    """Return what an event settles, decision by decision."""
    if isinstance(event, Expired):
        return event.defaults
    return (event,) if isinstance(event, Rewarded | Corrected) else ()


def erased_rewards(event: Tombstone | Expired) -> tuple[int, int]:
    """Return how many first rewards of an event were erased, and how many of these are of arms
    outside the catalogue."""
    if isinstance(event, Tombstone):
        return event.rewards, event.inline
    return event.erased, event.erased_inline


def has_erased(event: AnyEvent) -> bool:
    """Whether something that an event held was erased: no fold can pass it."""
    return isinstance(event, Tombstone) or (isinstance(event, Expired) and event.erased > 0)


class _EventRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An event as it is stored. crc: CRC-32 of the body, starting from the schema's number."""

    schema: int
    body: msgspec.Raw = msgspec.field(name="event")
    crc: int


class _Header(msgspec.Struct, frozen=True):
    schema: int


_encode = msgspec.json.Encoder().encode
_decode_event_record = msgspec.json.Decoder(_EventRecord).decode
_decode_header = msgspec.json.Decoder(_Header).decode
_decode_event: Callable[[msgspec.Raw], AnyEvent] = msgspec.json.Decoder(AnyEvent).decode


def encode_event(event: AnyEvent) -> bytes:
    """Return the record of an event. Raises NotLoggable for an event that would not read back as it
    is: JSON has no infinite number, and such a record would stop every fold."""
    body = _encode(event)
    try:
        same = _decode_event(msgspec.Raw(body)) == event
    except msgspec.DecodeError as fault:
        raise NotLoggable(f"{type(event).__name__} cannot be read back: {fault}") from fault
    if not same:
        raise NotLoggable(f"{type(event).__name__} is read back as another event")
    return b'{"schema":%d,"event":%b,"crc":%d}' % (SCHEMA, body, crc32(body, SCHEMA))


def decode_event(payload: bytes) -> AnyEvent:
    """Read a record. Raises UnknownSchema for a record of another schema, Damaged for one that is
    unreadable or was changed."""
    try:
        record = _decode_event_record(payload)
        expect_known(record.schema)
        if record.crc != crc32(record.body, record.schema):
            raise Damaged("a log record was changed: its checksum does not match")
        return _decode_event(record.body)
    except (msgspec.DecodeError, UnicodeDecodeError) as fault:
        with suppress(msgspec.DecodeError, UnicodeDecodeError):
            expect_known(_decode_header(payload).schema)
        raise Damaged(f"a log record cannot be read: {fault}") from fault


def expect_known(schema: int) -> None:
    """Raise UnknownSchema where a record was written under another schema."""
    if schema != SCHEMA:
        raise UnknownSchema(
            f"the log holds records of schema {schema}, and this Forage reads schema {SCHEMA}: "
            "start the Forage that wrote them"
        )
