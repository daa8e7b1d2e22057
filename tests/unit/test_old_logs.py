"""Logs that earlier versions of Forage wrote replay in this one."""

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.state.events import AnyEvent, Corrected, Expired, decode_event, encode_event
from service.state.fold import State
from tests.unit.folding import Log, bits, head_of, replay, shop

DATA = Path(__file__).parents[1] / "data"
OTHER_FEATURES = {1: {"net"}}
"""By schema: policies whose head of then was of features that this Forage does not make: their
versions are passed over."""


def log_of(schema: int) -> list[tuple[AnyEvent, bytes | None]]:
    found = []
    for line in (DATA / f"log-{schema}.jsonl").read_text().splitlines():
        record = json.loads(line)
        artifact = record["artifact"] and base64.b64decode(record["artifact"])
        found.append((decode_event(record["event"].encode()), artifact))
    return found


def expected_of(schema: int) -> dict[str, Any]:
    said: dict[str, Any] = json.loads((DATA / f"log-{schema}.json").read_text())
    return said


@pytest.mark.parametrize("schema", [1, 2, 3])
def test_an_old_log_folds_to_the_state_that_it_had(schema: int) -> None:
    state, said = replay(log_of(schema), eager=True), expected_of(schema)
    assert state.position == said["position"]
    assert sorted(state.arms) == said["arms"]
    assert state.learners.keys() == said["policies"].keys()
    for name, one in said["policies"].items():
        learner, tally = state.learners[name], state.reward_sums[name]
        assert learner.rewards == one["rewards"], name
        assert (tally.count, tally.total) == (one["count"], pytest.approx(one["total"])), name
        if name in OTHER_FEATURES.get(schema, ()):
            assert (learner.active.number, learner.passed_over) == (0, one["version"]), name
            continue
        assert learner.active.number == one["version"], name
        assert learner.active.head is not None
        arrays = learner.active.head.arrays()
        for part, (shape, total, norm) in one["head"].items():
            array = arrays[part]
            assert list(array.shape) == shape, (name, part)
            size = max(norm, 1.0)
            assert array.sum() == pytest.approx(total, abs=1e-9 * size * array.size), (name, part)
            assert np.linalg.norm(array) == pytest.approx(norm, abs=1e-9 * size), (name, part)


@pytest.mark.parametrize("schema", [1, 2, 3])
def test_an_old_log_goes_on_from_a_snapshot_anywhere(schema: int) -> None:
    records = log_of(schema)
    whole = replay(records, eager=True)
    for stop in range(1, len(records), len(records) // 5):
        state = replay(records[:stop], eager=True)
        if not state.staging:
            state = State.restore(state.snapshot())
        assert bits(replay(records, state, eager=True)) == bits(whole)


def test_a_late_correction_of_an_older_log_is_left_to_the_next_training() -> None:
    """Of schema 5 and before: the head of then held the default, and decisions were made with it.
    The same record of this schema is taken in."""
    log = Log()
    log.define(shop(glm={"kind": "neural_glm_ts", "hidden": [4], "embedding": 2, "batch": 1}))
    shown = log.settle("glm", {"food1": 0.0}, kind=Expired)
    by_default = head_of(log.state, "glm")
    log.correct(shown, 1.0)
    assert head_of(log.state, "glm") != by_default
    record = json.loads(encode_event(log.records[-1][0]))
    assert "at_once" not in record["event"]
    for schema, changed in ((5, False), (6, True)):
        old = json.dumps({"schema": schema, "event": record["event"]}).encode()
        event = decode_event(old)
        assert isinstance(event, Corrected)
        state = replay([*log.records[:-1], (event, None)])
        assert (head_of(state, "glm") != by_default) == changed
