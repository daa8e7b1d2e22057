"""Log records: they read back as they were written, and others are refused."""

from contextlib import suppress
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin
from zlib import crc32

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.errors import Damaged, UnknownSchema
from service.features.row import Row
from service.state.decisions import Decision, as_logged, decode_decision, encode_decision
from service.state.events import (
    SCHEMA,
    AnyEvent,
    ArmRemoved,
    Corrected,
    Outcome,
    Rewarded,
    decode_event,
    encode_event,
)

names, counts = st.text(max_size=12), st.integers(0, 2**53)
finite = st.floats(allow_nan=False, allow_infinity=False)
SIMPLE: dict[Any, st.SearchStrategy[Any]] = {
    str: names,
    int: counts,
    float: finite,
    bool: st.booleans(),
    NoneType: st.none(),
    object: st.booleans() | finite | names | st.lists(finite, max_size=4),
}
SIMPLE[Any] = SIMPLE[object]


def of(kind: Any) -> st.SearchStrategy[Any]:
    """Values of a record's type, whose fields it names."""
    if kind in SIMPLE:
        return SIMPLE[kind]
    origin, parts = get_origin(kind), get_args(kind)
    if origin is list:
        return st.lists(of(parts[0]), max_size=3)
    if origin is Literal:
        return st.sampled_from(parts)
    if origin is Annotated:
        return of(parts[0])
    if kind is bytes:
        return st.binary(max_size=24)
    if origin is tuple and Ellipsis not in parts:
        return st.tuples(*map(of, parts))
    if origin is tuple:
        return st.lists(of(parts[0]), max_size=3).map(tuple)
    if origin is dict:
        return st.dictionaries(of(parts[0]), of(parts[1]), max_size=3)
    if origin in (Union, UnionType):
        return st.one_of(*map(of, parts))
    return st.builds(kind, **{one.name: of(one.type) for one in msgspec.structs.fields(kind)})


events: st.SearchStrategy[AnyEvent] = of(AnyEvent)


def logged(decision: Decision) -> Decision:
    """One as a service makes them: its numbers are those that a row can hold."""
    arms = list(dict.fromkeys(arm.arm for arm in decision.shown)) or ["a"]
    shown = [msgspec.structs.replace(arm, propensity=0.3) for arm in decision.shown]
    probabilities = as_logged(np.linspace(0.1, 0.7, len(arms)), 0, 0.3) if shown else []
    more = {"shown": shown, "probabilities": probabilities, "unit": decision.unit or None}
    return msgspec.structs.replace(decision, arms=arms, **more)


decisions: st.SearchStrategy[Decision] = of(Decision).map(logged)


@given(events)
def test_every_event_comes_back_as_it_was(event: AnyEvent) -> None:
    again = decode_event(encode_event(event))
    assert again == event
    assert type(again) is type(event)


@given(decisions)
def test_every_decision_comes_back_as_it_was(decision: Decision) -> None:
    assert decode_decision(encode_decision(decision)) == decision


@given(events, st.data())
def test_a_changed_byte_is_read_or_damaged_or_of_another_schema_and_nothing_else(
    event: AnyEvent, data: st.DataObject
) -> None:
    payload = bytearray(encode_event(event))
    index = data.draw(st.integers(0, len(payload) - 1))
    payload[index] = data.draw(st.integers(0, 255))
    with suppress(Damaged, UnknownSchema):
        decode_event(bytes(payload))


@given(decisions, st.data())
def test_a_flipped_bit_is_found(decision: Decision, data: st.DataObject) -> None:
    payload = bytearray(encode_decision(decision))
    bit = data.draw(st.integers(0, 8 * len(payload) - 1))
    payload[bit // 8] ^= 1 << bit % 8
    with pytest.raises((Damaged, UnknownSchema)):
        decode_decision(bytes(payload))


RECORD = encode_event(ArmRemoved(at=1.0, arm="a"))


@given(
    st.binary(max_size=40)
    | st.just(RECORD.partition(b',"crc":')[0] + b"}")
    | st.just(RECORD.replace(b'"arm"', b'"\xd1rm"'))
)
def test_garbage_is_damaged(payload: bytes) -> None:
    """Also a record without a checksum, and a key that is not UTF-8."""
    for decode in (decode_event, decode_decision):
        with pytest.raises(Damaged):
            decode(payload)


@pytest.mark.parametrize(
    "body",
    [
        b'"event":{"type":"ArmRemoved","at":1.0,"arm":"a"}',
        b'"event":{"type":"ArmRemoved","at":1.0,"arm":"a","why":"sold out"}',
        b'"event":{"type":"ChangeDetected","at":1.0}',
        b'"anything":[]',
    ],
)
def test_a_record_of_another_schema_is_refused_whatever_it_holds(body: bytes) -> None:
    for schema in (SCHEMA - 1, SCHEMA + 1):
        payload = b'{"schema":%d,%s}' % (schema, body)
        with pytest.raises(UnknownSchema, match=f"schema {schema}, .*reads schema {SCHEMA}"):
            decode_event(payload)


def test_a_row_of_another_schema_is_refused_whatever_follows() -> None:
    for schema in (SCHEMA - 1, SCHEMA + 1):
        with pytest.raises(UnknownSchema, match=f"schema {schema}, .*reads schema {SCHEMA}"):
            decode_decision(b"FR%c and whatever follows" % schema)


def test_a_row_holds_probabilities_in_4_bytes_and_the_propensity_in_8() -> None:
    """1/3 as a 4-byte number is 0.3333333432674408."""
    assert as_logged(np.array([1 / 3, 1 / 3, 1 / 3]), 1, 1 / 3) == [
        0.3333333432674408,
        1 / 3,
        0.3333333432674408,
    ]


@pytest.mark.parametrize(
    "body",
    [
        b'{"type":"ChangeDetected","at":1.0}',
        b'{"type":"ArmRemoved","at":1.0}',
        b'{"type":"ArmRemoved","at":"now","arm":"a"}',
        b'{"type":"ArmRemoved","at":1.0,"arm":"a","why":"sold out"}',
    ],
)
def test_a_record_of_this_schema_that_is_none_of_its_events_is_damaged(body: bytes) -> None:
    with pytest.raises(Damaged):
        decode_event(b'{"schema":%d,"event":%s,"crc":%d}' % (SCHEMA, body, crc32(body, SCHEMA)))


def test_an_outcome_says_only_what_is_not_usual() -> None:
    """A first reward says nothing of an earlier one, a correction of each arm that had one."""
    first, known = Outcome("a", 1.0, Row(b"", ())), {"was": 0.5, "since": 7}
    fields: dict[str, Any] = {"at": 0.0, "decision": "d", "policy": "p", "schema_version": 1}
    rewarded = Rewarded(**fields, settled=[first])
    assert b'"settled":[{"arm":"a","reward":1.0,"row":["",[]]}]' in encode_event(rewarded)
    moved = [Outcome("a", 1.0, Row(b"", ()), **known), Outcome("b", 0.5, Row(b"", ()))]
    corrected = Corrected(**fields, settled=moved)
    assert decode_event(encode_event(corrected)) == corrected
    assert [one.learned for one in moved] == [1.0, 0.5]
    assert msgspec.structs.replace(moved[0], withdrawn=True).learned is None
