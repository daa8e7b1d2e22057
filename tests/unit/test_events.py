"""Log records: what is written comes back, what cannot be read is said, old logs still replay."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.errors import Damaged, LogTooNew
from service.events import (
    SCHEMA,
    AnyEvent,
    ArmRemoved,
    ArmUpserted,
    Corrected,
    Decision,
    ExperimentDefined,
    ExperimentDeleted,
    Expired,
    Outcome,
    Rewarded,
    Settled,
    Shown,
    VersionActivated,
    VersionStaged,
    decode_decision,
    decode_event,
    encode_decision,
    encode_event,
    outcomes,
)
from service.fold import State, read_artifact
from service.stores.base import Snapshot
from tests.unit.folding import bits, head_of, replay

DATA = Path(__file__).parent / "data"

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
def test_a_changed_byte_is_read_or_damaged_or_too_new_and_nothing_else(
    event: AnyEvent, data: st.DataObject
) -> None:
    payload = bytearray(encode_event(event))
    index = data.draw(st.integers(0, len(payload) - 1))
    payload[index] = data.draw(st.integers(0, 255))
    with suppress(Damaged, LogTooNew):
        decode_event(bytes(payload))


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
def test_a_record_of_a_newer_schema_is_refused_whatever_it_holds(body: bytes) -> None:
    payload = b'{"schema":%d,%s}' % (SCHEMA + 1, body)
    for decode in (decode_event, decode_decision):
        with pytest.raises(LogTooNew, match=f"schema {SCHEMA + 1}.*start a newer Forage"):
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
        decode_event(b'{"schema":%d,"event":%s}' % (SCHEMA, body))


def test_outcomes_carry_what_was_learned_before_and_since_when() -> None:
    rows = [Settled("a", 1.0, []), Settled("b", 0.5, [])]
    common: dict[str, Any] = {
        "at": 0.0, "decision": "d", "policy": "p", "schema_version": 1, "settled": rows,
    }  # fmt: skip
    assert outcomes(Rewarded(**common)) == [Outcome(rows[0]), Outcome(rows[1])]
    corrected = Corrected(**common, was=[0.0, None], since=[7, None])
    assert outcomes(corrected) == [Outcome(rows[0], 0.0, 7), Outcome(rows[1])]


# -- what was written by schema 1 ---------------------------------------------------------------


def old_log() -> list[tuple[AnyEvent, bytes | None]]:
    """The committed log; its artifact goes with the version that was staged."""
    artifact = (DATA / "artifact_schema_1.bin").read_bytes()
    lines = (DATA / "log_schema_1.jsonl").read_bytes().splitlines()
    read = [decode_event(line) for line in lines]
    return [(event, artifact if isinstance(event, VersionStaged) else None) for event in read]


def test_an_old_log_holds_every_type_of_event_and_still_replays() -> None:
    """linucb: 3 rewards of 2.0 in all. popularity: a default of 0 corrected to 1. The bits of the
    heads that no matrix product comes before are those that schema 1 folded."""
    records = old_log()
    assert {type(event) for event, _ in records} == set(AnyEvent.__args__)
    state = replay(records[:-1])
    assert (state.position, state.revision, state.schema_version) == (14, 2, 1)
    assert list(state.arms) == ["toy1", "food1"]
    totals = {name: (tally.count, tally.total) for name, tally in state.tallies.items()}
    assert totals == {
        "linucb": (3, 2.0),
        "lints_disjoint": (2, 1.0),
        "popularity": (1, 1.0),
        "neural_ucb": (2, 1.5),
    }
    assert head_of(state, "linucb") == "5e51e90062c7e53d0bdb426addbfb040"
    assert head_of(state, "lints_disjoint") == "d43cbbe662354fcf83179375ba2df472"
    assert head_of(state, "popularity") == "d69f7277b286f0bfdcf71b146df630ab"
    learner = state.learners["neural_ucb"]
    assert (learner.active.number, learner.rewards) == (1, 2)
    assert replay(records).deleted


def test_an_old_snapshot_is_still_restored_and_equals_the_old_log() -> None:
    payload = (DATA / "snapshot_schema_1.bin").read_bytes()
    state = State.restore(Snapshot(14, payload))
    replayed = replay(old_log()[:-1])
    assert state.position == 14
    for policy in ("linucb", "lints_disjoint", "popularity"):
        assert head_of(state, policy) == head_of(replayed, policy)
    assert bits(State.restore(state.snapshot())) == bits(state)


def test_an_old_artifact_and_an_old_decision_are_still_read() -> None:
    state = replay(old_log()[:9])
    artifact = (DATA / "artifact_schema_1.bin").read_bytes()
    version = read_artifact(state.learners["neural_ucb"], artifact)
    assert (version.number, version.trained_to) == (1, 8)
    decision = decode_decision((DATA / "decision_schema_1.json").read_bytes())
    assert (decision.policy, decision.shown[0].arm, decision.seed) == ("linucb", "toy1", 123)
