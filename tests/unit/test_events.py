"""Log records: they read back as they were written, and others are refused."""

from contextlib import suppress
from typing import Any
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.errors import Damaged, UnknownSchema
from service.state.events import (
    SCHEMA,
    AnyEvent,
    ArmRemoved,
    ArmUpserted,
    ChangeDetected,
    Corrected,
    Decision,
    ExperimentDefined,
    ExperimentDeleted,
    Expired,
    Rewarded,
    Settled,
    SettledReward,
    Shown,
    VersionActivated,
    VersionStaged,
    decode_decision,
    decode_event,
    encode_decision,
    encode_event,
    outcomes,
)

names = st.text(max_size=12)
counts = st.integers(0, 2**53)
finite = st.floats(allow_nan=False, allow_infinity=False)
x = st.lists(finite, max_size=4)
values = st.dictionaries(names, st.booleans() | finite | names | x, max_size=3)
settled = st.builds(Settled, names, finite, x, st.booleans())
learned = {
    "at": finite,
    "decision": names,
    "policy": names,
    "schema_version": counts,
    "settled": st.lists(settled, max_size=3),
}
version = {"at": finite, "policy": names, "born": counts, "version": counts}
events: st.SearchStrategy[AnyEvent] = st.one_of(
    st.builds(
        ExperimentDefined, at=finite, revision=counts, schema_version=counts, definition=values
    ),
    st.builds(ExperimentDeleted, at=finite, revision=counts),
    st.builds(ArmUpserted, at=finite, arm=names, features=values),
    st.builds(ArmRemoved, at=finite, arm=names),
    st.builds(Rewarded, **learned),
    st.builds(Expired, **learned),
    st.builds(
        Corrected,
        **learned,
        was=st.lists(st.none() | finite, max_size=3),
        since=st.lists(st.none() | counts, max_size=3),
    ),
    st.builds(
        VersionStaged, **version, artifact=names, size=counts, watermark=counts, rewards=counts
    ),
    st.builds(VersionActivated, **version),
    st.builds(
        ChangeDetected,
        at=finite,
        policy=names,
        born=counts,
        number=counts,
        stratum=names,
        columns=st.lists(counts, max_size=3),
        since=counts,
        schema_version=counts,
    ),
)
decisions = st.builds(
    Decision,
    id=names,
    at=finite,
    policy=names,
    assignment=finite,
    model_version=names,
    schema_version=counts,
    unit=st.none() | names,
    context=values,
    arms=st.lists(names, max_size=3),
    inline=st.dictionaries(names, values, max_size=2),
    probabilities=x,
    seed=st.integers(0, 2**63 - 1),
    bank=counts,
    shown=st.lists(st.builds(Shown, names, finite, x, st.booleans()), max_size=3),
    slate=finite,
    reward_by=finite,
    accept_until=finite,
)


@given(events)
def test_every_event_comes_back_as_it_was(event: AnyEvent) -> None:
    again = decode_event(encode_event(event))
    assert again == event
    assert type(again) is type(event)


@given(decisions)
def test_every_decision_comes_back_as_it_was(decision: Decision) -> None:
    assert decode_decision(encode_decision(decision)) == decision


@given(st.binary(max_size=40))
def test_garbage_is_damaged(payload: bytes) -> None:
    for decode in (decode_event, decode_decision):
        with pytest.raises(Damaged):
            decode(payload)


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


def test_a_record_without_a_checksum_is_damaged() -> None:
    body, _, _ = encode_event(ArmRemoved(at=1.0, arm="a")).partition(b',"crc":')
    with pytest.raises(Damaged):
        decode_event(body + b"}")


def test_a_key_that_is_no_utf_8_is_damaged() -> None:
    payload = encode_event(ArmRemoved(at=0.0, arm="a"))
    with pytest.raises(Damaged):
        decode_event(payload.replace(b'"arm"', b'"\xd1rm"'))


@pytest.mark.parametrize(
    "body",
    [
        b'"event":{"type":"ArmRemoved","at":1.0,"arm":"a"}',
        b'"event":{"type":"ArmRemoved","at":1.0,"arm":"a","why":"sold out"}',
        b'"event":{"type":"ChangeDetected","at":1.0}',
        b'"decision":{"id":7}',
        b'"anything":[]',
    ],
)
def test_a_record_of_another_schema_is_refused_whatever_it_holds(body: bytes) -> None:
    for schema in (SCHEMA - 1, SCHEMA + 1):
        payload = b'{"schema":%d,%s}' % (schema, body)
        for decode in (decode_event, decode_decision):
            with pytest.raises(UnknownSchema, match=f"schema {schema}, .*reads schema {SCHEMA}"):
                decode(payload)


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


def test_outcomes_carry_what_was_learned_before_and_since_when() -> None:
    rows = [Settled("a", 1.0, []), Settled("b", 0.5, [])]
    common: dict[str, Any] = {
        "at": 0.0, "decision": "d", "policy": "p", "schema_version": 1, "settled": rows,
    }  # fmt: skip
    assert outcomes(Rewarded(**common)) == [SettledReward(rows[0]), SettledReward(rows[1])]
    corrected = Corrected(**common, was=[0.0, None], since=[7, None])
    assert outcomes(corrected) == [SettledReward(rows[0], 0.0, 7), SettledReward(rows[1])]
