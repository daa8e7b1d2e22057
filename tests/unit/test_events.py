"""Log records: what is written comes back, what cannot be read is said, old logs still replay."""

import copy
import hashlib
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.definition.experiment import Definition
from service.errors import Damaged, LogTooNew, Outdated
from service.log.follower import Follower
from service.log.stores.base import Append, Snapshot
from service.log.stores.memory import MemoryStore
from service.observability.telemetry import Telemetry
from service.state import codec
from service.state.artifacts import SNAPSHOT_SCHEMA, read_artifact
from service.state.events import (
    SCHEMA,
    AnyEvent,
    ArmRemoved,
    ArmUpserted,
    ChangeDetected,
    Corrected,
    Decision,
    EpochOpened,
    Erased,
    ExperimentDefined,
    ExperimentDeleted,
    Expired,
    PolicyReset,
    Rewarded,
    Settled,
    SettledReward,
    Shown,
    Skipped,
    Tombstone,
    VersionActivated,
    VersionStaged,
    decode_decision,
    decode_event,
    encode_decision,
    encode_event,
    outcomes,
)
from service.state.fold import State
from tests.support.clock import run_virtual
from tests.unit.folding import bits, replay

DATA = Path(__file__).parents[1] / "data"

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
def test_a_changed_byte_is_read_or_damaged_or_too_new_and_nothing_else(
    event: AnyEvent, data: st.DataObject
) -> None:
    payload = bytearray(encode_event(event))
    index = data.draw(st.integers(0, len(payload) - 1))
    payload[index] = data.draw(st.integers(0, 255))
    with suppress(Damaged, LogTooNew):
        decode_event(bytes(payload))


@given(decisions, st.data())
def test_a_flipped_bit_is_found(decision: Decision, data: st.DataObject) -> None:
    payload = bytearray(encode_decision(decision))
    bit = data.draw(st.integers(0, 8 * len(payload) - 1))
    payload[bit // 8] ^= 1 << bit % 8
    with pytest.raises((Damaged, LogTooNew)):
        decode_decision(bytes(payload))


def test_a_record_without_a_checksum_is_read() -> None:
    """As an older Forage wrote it."""
    payload = encode_event(ArmRemoved(at=1.0, arm="a"))
    body, _, crc = payload.partition(b',"crc":')
    assert int(crc.removesuffix(b"}")) > 0
    assert decode_event(body + b"}") == ArmRemoved(at=1.0, arm="a")


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
    assert outcomes(Rewarded(**common)) == [SettledReward(rows[0]), SettledReward(rows[1])]
    corrected = Corrected(**common, was=[0.0, None], since=[7, None])
    assert outcomes(corrected) == [SettledReward(rows[0], 0.0, 7), SettledReward(rows[1])]


# -- what was written by schema 1 ---------------------------------------------------------------


def old_log() -> list[tuple[AnyEvent, bytes | None]]:
    """The committed log; its artifact goes with the version that was staged."""
    artifact = (DATA / "artifact_schema_1.bin").read_bytes()
    lines = (DATA / "log_schema_1.jsonl").read_bytes().splitlines()
    read = [decode_event(line) for line in lines]
    return [(event, artifact if isinstance(event, VersionStaged) else None) for event in read]


LATER = {ChangeDetected, EpochOpened, Erased, PolicyReset, Skipped, Tombstone}
"""Events that schema 1 had not."""


def test_an_old_log_holds_every_type_of_its_events_and_still_replays() -> None:
    """linucb: 3 rewards of 2.0 in all. popularity: a default of 0 corrected to 1. The sums of
    the heads that no matrix product comes before have the bits that schema 1 folded."""
    records = old_log()
    assert {type(event) for event, _ in records} == set(AnyEvent.__args__) - LATER
    state = replay(records[:-1])
    assert (state.position, state.revision, state.schema_version) == (14, 2, 1)
    assert list(state.arms) == ["toy1", "food1"]
    totals = {name: (tally.count, tally.total) for name, tally in state.reward_sums.items()}
    assert totals == {
        "linucb": (3, 2.0),
        "lints_disjoint": (2, 1.0),
        "popularity": (1, 1.0),
        "neural_ucb": (2, 1.5),
    }
    _, folded = codec.unpack((DATA / "snapshot_schema_1.bin").read_bytes(), 1)
    for index, (policy, names) in enumerate(
        [("linucb", "Ab"), ("lints_disjoint", "Ab"), ("popularity", ["counts"])]
    ):
        head = state.learners[policy].active.head
        assert head is not None
        for name in names:
            assert head.arrays()[name].tobytes() == folded[f"{index}.head.{name}"].tobytes()
    assert replay(records).deleted


def test_a_version_of_an_old_artifact_is_passed_over_and_the_cold_head_goes_on() -> None:
    """Its head is of other features: 2 rewards are in the head of 9 random ones that serves."""
    state = replay(old_log()[:-1])
    learner = state.learners["neural_ucb"]
    assert (learner.active.number, learner.staged, learner.rewards) == (0, None, 2)
    head = learner.active.head
    assert head is not None
    assert head.health().effective_count == 2
    assert learner.training_due_at == 4
    with pytest.raises(Outdated, match=f"schema 1, this Forage reads {SNAPSHOT_SCHEMA}"):
        read_artifact(learner, (DATA / "artifact_schema_1.bin").read_bytes())


def test_an_old_window_of_the_training_is_the_policys_own() -> None:
    """Of a definition as schema 1 logged it; one that says both keeps the policy's."""
    definition = copy.deepcopy(old_definition())
    policy = definition["policies"]["neural_ucb"]
    assert policy["training"]["window"] is None
    for window in (None, 500):
        policy["training"]["window"] = window
        parsed: Any = Definition.model_validate(definition).policies["neural_ucb"]
        assert parsed.window == window
        assert "window" not in parsed.training.model_dump()
    policy["window"] = 700
    assert Definition.model_validate(definition).policies["neural_ucb"].window == 700


def old_definition() -> dict[str, Any]:
    first, _ = old_log()[0]
    assert isinstance(first, ExperimentDefined)
    return first.definition


def test_an_old_snapshot_is_passed_over_for_the_whole_log() -> None:
    snapshot = Snapshot(14, (DATA / "snapshot_schema_1.bin").read_bytes())
    with pytest.raises(Outdated):
        State.restore(snapshot)
    store = MemoryStore()
    lines = (DATA / "log_schema_1.jsonl").read_bytes().splitlines()[:-1]

    async def recovered() -> State:
        await store.commit([Append("shop", line, {str(n): ""}) for n, line in enumerate(lines)])
        artifact = (DATA / "artifact_schema_1.bin").read_bytes()
        await store.put_blob("shop", hashlib.sha256(artifact).hexdigest(), artifact)
        await store.save_snapshot("shop", snapshot)
        return await Follower(store, Telemetry()).discover("shop")

    assert bits(run_virtual(recovered())) == bits(replay(old_log()[:-1]))


def test_an_old_decision_is_still_read() -> None:
    decision = decode_decision((DATA / "decision_schema_1.json").read_bytes())
    assert (decision.policy, decision.shown[0].arm, decision.seed) == ("linucb", "toy1", 123)
