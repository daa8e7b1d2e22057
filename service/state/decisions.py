"""Decisions: the rows of the log that say what was shown, and by which chances."""

import re
import struct
from math import exp
from sys import float_info
from typing import Literal, NamedTuple
from zlib import crc32

import msgspec
import numpy as np
from msgspec import structs

from service.errors import Damaged
from service.features.row import Row
from service.features.schema import Array
from service.state.events import SCHEMA, FeatureValues, expect_known

IMPORTED = "imported/0@0"
"""`model_version` of a decision from another system: nothing of it can be derived."""

MODEL_VERSION = re.compile(r"(.+)/([0-9]{1,18})@([0-9]{1,18})", re.DOTALL)


class Shown(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """One slot of an answer. propensity: the chance of this arm in this slot."""

    arm: str
    propensity: float
    row: Row
    inline: bool = False


class Shortlist(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """How a policy chose the candidates, among which the probabilities hold.

    policy       its head chose them, or, where that could not, chance alone
    method       "scan" (of every arm) or "index" (some lists of an inverted file)
    catalogue    number of arms in the catalogue
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


class WindowCount(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a rule had counted in its window when a decision was made.

    shown   showings of each arm, or group of arms, in the order of the candidates
    """

    rule: str
    decisions: int
    shown: tuple[int, ...]


FallbackReason = Literal["scores"]
"""Why the fallback decides in place of the assigned policy. scores: that has no finite ones."""


class DecisionFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What bounded chance in a decision, beside the state that made it.

    untried     places of the candidates that were tried for their own sake
    shortlist   how the policy chose the candidates; None: the request named them, or all arms
    exclude     arms that the request did not want
    only        arms among which the request wanted the choice; None: all
    if_empty    no arm was eligible, and the one that the rules name in their place was shown
    counts      of the rules with a window
    slots       that were to be shown, where there are counts, which may leave fewer; else 0
    off         rules that were off for its unit, to measure what they cost
    fallback    why the fallback decided; '' where the assigned policy did
    failed      number of the version of the assigned policy in whose place it did, else 0
    """

    untried: tuple[int, ...] = ()
    shortlist: Shortlist | None = None
    exclude: tuple[str, ...] = ()
    only: tuple[str, ...] | None = None
    if_empty: bool = False
    counts: tuple[WindowCount, ...] = ()
    slots: int = 0
    off: tuple[str, ...] = ()
    fallback: FallbackReason | Literal[""] = ""
    failed: int = 0


NO_FACTS = DecisionFacts()


class Decision(
    msgspec.Struct, frozen=True, kw_only=True, array_like=True, forbid_unknown_fields=True, gc=False
):
    """One answer of /select, complete for evaluation, training and audit.

    id               short, 22 characters         at               unix seconds
    policy           the assigned one             model_version    of the head that decided
    unit             keyed hash, or None          assignment       chance that this policy was taken
    context          as sent                      inline           features of other arms
    arms             the candidates, in order     probabilities    of slot 1, `as_logged`
    seed             of every draw                bank             seed of the posterior draws' bank
    slate_log        ln of the whole slate's chance        reward_by, accept_until   unix seconds
    deferred         not shown, and not learned, before its activation
    key              the name of the caller's API key, '' where keys are off
    facts            what bounded the probabilities
    rules            names of those that held a chance where it was, or removed an arm
    relaxed          names of the rules that yielded to others
    attributes       of the arms in `inline` that have any
    """

    id: str
    at: float
    policy: str
    assignment: float
    model_version: str
    schema_version: int
    unit: str | None
    context: FeatureValues
    arms: list[str]
    inline: dict[str, FeatureValues]
    probabilities: list[float]
    seed: int
    bank: int
    shown: list[Shown]
    slate_log: float
    reward_by: float
    accept_until: float
    deferred: bool = False
    key: str = ""
    facts: DecisionFacts = NO_FACTS
    rules: tuple[str, ...] = ()
    relaxed: tuple[str, ...] = ()
    attributes: dict[str, FeatureValues] = {}

    @property
    def sticky(self) -> str:
        """What the draws of policies, versions and rules depend on: the unit, or the decision."""
        return self.unit or self.id

    @property
    def series(self) -> str:
        """What the rows of its policy are counted by."""
        return series_of(self.policy, self.schema_version)

    @property
    def slots(self) -> int:
        """Slots of the slate that was to be shown."""
        return self.facts.slots or len(self.shown)

    @property
    def slate(self) -> float | None:
        """Chance of the whole slate; None where a float cannot hold it."""
        if len(self.shown) == 1:
            return self.shown[0].propensity
        chance = exp(self.slate_log)
        return chance if chance >= float_info.min else None


def series_of(policy: str, schema_version: int) -> str:
    """Name the decisions of a policy under a schema: a deleted experiment, and another one of its
    name, have no schema in common."""
    return f"{policy}@{schema_version}"


class ModelVersion(NamedTuple):
    """`model_version` of a decision, policy/version@position, in parts."""

    policy: str
    version: int
    position: int

    def of(self, policy: str) -> int:
        """Return the number of the version of a policy; 0 where another one decided."""
        return self.version if self.policy == policy else 0


def model_version(text: str) -> ModelVersion | None:
    """Return the parts of a `model_version`; None where it has another form."""
    found = MODEL_VERSION.fullmatch(text)
    return ModelVersion(found[1], int(found[2]), int(found[3])) if found else None


def is_whole(decision: Decision) -> bool:
    """Whether its parts fit together: each candidate has a probability (imported decisions may
    have none), and only candidates are shown."""
    p, arms, shown = decision.probabilities, set(decision.arms), {arm.arm for arm in decision.shown}
    complete = len(p) == len(decision.arms) and min(p, default=-1.0) >= 0 < sum(p)
    return (
        (complete or (not p and is_imported(decision)))
        and len(arms) == len(decision.arms)
        and 0 < len(decision.shown) == len(shown)
        and shown <= arms
        and decision.attributes.keys() <= decision.inline.keys()
        and all(0 <= place < len(decision.arms) for place in decision.facts.untried)
        and model_version(decision.model_version) is not None
    )


def is_imported(decision: Decision) -> bool:
    return decision.model_version == IMPORTED


class _Timed(msgspec.Struct, array_like=True):
    """The first fields of a `Decision`."""

    id: str
    at: float


_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(tuple[Decision, bytes]).decode
_unpack_time = msgspec.msgpack.Decoder(tuple[_Timed, bytes]).decode
_ROW = b"FR"
"""The first bytes of every row."""

_FRAME = struct.Struct("<2sBIB")
"""The begin of a row: _ROW, its schema, the CRC-32 of what follows the frame, starting from schema
and length, and the length of the unit's hash."""


def as_logged(p: Array, first: int, propensity: float) -> list[float]:
    """Return probabilities (K,) as a row holds them: 4-byte numbers, but for the arm shown first,
    whose propensity is a double."""
    rounded = p.astype(np.float32).astype(np.float64)
    rounded[first] = propensity
    logged: list[float] = rounded.tolist()
    return logged


def encode_decision(decision: Decision) -> bytes:
    """Return the row of a decision, whose probabilities are `as_logged`: the hash of its unit, by
    which an erasure finds it, then the rest packed, the probabilities as 4-byte floats. zlib would
    make a row of the pet shop a third shorter, and take three times as long as this."""
    unit = (decision.unit or "").encode()
    chances = np.array(decision.probabilities, "<f4").tobytes()
    body = unit + _pack((structs.replace(decision, unit=None, probabilities=[]), chances))
    return _FRAME.pack(_ROW, SCHEMA, crc32(body, SCHEMA << 8 | len(unit)), len(unit)) + body


def unit_of(row: bytes) -> str | None:
    """Return the hash of the unit of a row, which may be damaged."""
    length = row[_FRAME.size - 1] if len(row) >= _FRAME.size else 0
    return row[_FRAME.size : _FRAME.size + length].decode("ascii", "replace") or None


def decode_decision(payload: bytes) -> Decision:
    """Read a row. Raises as `decode_event`."""
    try:
        body, length = _body_of(payload)
        found, chances = _unpack(body[length:])
        probabilities = np.frombuffer(chances, "<f4").tolist()
        for first in found.shown[:1]:
            if first.arm in found.arms[: len(probabilities)]:
                probabilities[found.arms.index(first.arm)] = first.propensity
        unit = body[:length].decode() or None
        return structs.replace(found, unit=unit, probabilities=probabilities)
    except (struct.error, msgspec.DecodeError, ValueError, LookupError) as fault:
        raise Damaged(f"a decision row cannot be read: {fault}") from fault


def time_of(payload: bytes) -> float:
    """Read the time alone of a row, in a fifth of the time. Raises as `decode_event`."""
    try:
        body, length = _body_of(payload)
        return _unpack_time(body[length:])[0].at
    except (struct.error, msgspec.DecodeError) as fault:
        raise Damaged(f"a decision row cannot be read: {fault}") from fault


def _body_of(payload: bytes) -> tuple[bytes, int]:
    """Return what follows the frame of a row, and the length of the unit's hash that it begins
    with."""
    kind, schema, crc, length = _FRAME.unpack_from(payload)
    if kind != _ROW:
        raise Damaged("a decision row cannot be read: it begins as no row does")
    expect_known(schema)
    body = payload[_FRAME.size :]
    if crc != crc32(body, schema << 8 | length):
        raise Damaged("a decision row was changed: its checksum does not match")
    return body, length
