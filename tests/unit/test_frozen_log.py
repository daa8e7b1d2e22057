"""The log of tests/data, which no test writes: it still reads, and folds to the same state."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from service.state.decisions import decode_decision, encode_decision
from service.state.events import AnyEvent, Tombstone, encode_event
from service.state.fold import State
from service.state.snapshot import Snapshot
from tests.unit.folding import replay
from tests.unit.frozen_log import DECIDED, DECISION, SNAPSHOT, STATE, described, read


def restored() -> State:
    return State.restore(Snapshot(0, SNAPSHOT.read_bytes()))


@pytest.mark.parametrize("start", [lambda: None, restored], ids=["whole", "snapshot"])
def test_it_folds_to_the_state_that_it_had(start: Callable[[], State | None]) -> None:
    records = [(each.event, each.artifact) for each in read()]
    said, found = json.loads(STATE.read_text()), described(replay(records, start()))
    for name, policy in said["policies"].items():
        expect_alike(found["policies"][name].pop("head"), policy.pop("head"))
    assert found == said


def expect_alike(found: dict[str, Any], said: dict[str, Any]) -> None:
    """Sums and norms as far as the order of additions, which a BLAS chooses, leaves them alike."""
    assert found.keys() == said.keys()
    for part, (shape, total, norm) in said.items():
        size = max(norm, 1.0)
        assert found[part][0] == shape, part
        assert found[part][1:] == pytest.approx([total, norm], abs=1e-8 * size, rel=1e-8), part


def test_every_record_of_it_is_written_as_it_was() -> None:
    assert {type(each.event) for each in read()} == {*AnyEvent.__args__} - {Tombstone}
    for payload, event, _ in read():
        assert encode_event(event) == payload
    assert decode_decision(DECISION.read_bytes()) == DECIDED
    assert encode_decision(DECIDED) == DECISION.read_bytes()
