"""The frozen log of tests/data: how it is written and read.

`python -m tests.unit.frozen_log` writes it anew, with the state that this Forage folds from it.
Do so only together with a new number of a schema.
"""

import base64
import json
import struct
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from service.features.row import Row
from service.state.decisions import (
    Decision,
    DecisionFacts,
    Shortlist,
    Shown,
    WindowCount,
    encode_decision,
)
from service.state.events import (
    Activated,
    AnyEvent,
    Default,
    Erased,
    Exposed,
    Imported,
    Leased,
    LogTruncated,
    Skipped,
    decode_event,
    encode_event,
)
from service.state.fold import State
from service.state.guardrails import Finding
from service.state.rollout import Rollout, RolloutReading, RolloutStep, advance, guarded_step
from service.state.snapshot import Snapshot
from tests.unit.folding import POLICIES, Log, shop

DATA = Path(__file__).parents[1] / "data"
LOG, DECISION = DATA / "log.jsonl", DATA / "decision.bin"
SNAPSHOT, STATE = DATA / "snapshot.bin", DATA / "state.json"


class FrozenRecord(NamedTuple):
    """artifact: the blob that a `VersionStaged` names."""

    payload: bytes
    event: AnyEvent
    artifact: bytes | None


def read() -> list[FrozenRecord]:
    found = []
    for line in LOG.read_text().splitlines():
        record = json.loads(line)
        payload = record["record"].encode()
        artifact = record["artifact"] and base64.b64decode(record["artifact"])
        found.append(FrozenRecord(payload, decode_event(payload), artifact))
    return found


def described(state: State) -> dict[str, Any]:
    """What a state holds, as JSON: of each array of a head its shape, sum and Euclidean norm."""
    policies = {}
    for name, learner in state.folded.items():
        head, sums = learner.active.head, state.reward_sums.get(name)
        policies[name] = {
            "version": learner.active.number,
            "rewards": learner.rewards,
            "count": sums and sums.count,
            "total": sums and sums.total,
            "head": {
                part: [list(array.shape), float(array.sum()), float(np.linalg.norm(array))]
                for part, array in ({} if head is None else head.arrays()).items()
            },
        }
    return {
        "position": state.position,
        "revision": state.revision,
        "traffic": json.loads(json.dumps(state.traffic.members())),
        "arms": sorted(state.arms),
        "attributes": state.attributes,
        "exposure": state.exposure.members(),
        "skips": state.skips,
        "policies": policies,
        "fallback": state.fallback.learner.rewards,
    }


def written() -> tuple[Log, Snapshot]:
    """A log with every type of event, and a snapshot in the middle of it."""
    log = Log()
    log.define(shop(linucb={"kind": "linucb"}))
    log.settle("linucb", {"toy1": 1.0})
    log.delete()
    few = {"cap": {"arm": "toy1", "count": 50, "every": "1h"}}
    never_below = {"policy": "random", "by": 0.25}
    dark = {"kind": "lints", "draws": 16, "shadow": True}
    whole = {**shop(**POLICIES, dark=dark), "rules": {"few": few}, "never_below": never_below}
    log.define(whole)
    log.upsert("food9", {"kind": "food"}, {"stock": 2.0, "sale": True})
    log.patch("food9", {"kind": "toy"}, {"stock": 1.0, "brand": "Acme", "sale": None})
    log.remove("food2")
    log.share(linucb=2.0)
    log.roll_out("static", "linucb", 0.2, 0.5)
    log.step("static", advance)
    log.step("static", _held)
    log.move_budget(0.5)
    log.write(Imported(at=0.0, by="ops", policy="linucb", visits=3))
    log.write(Activated(at=0.0, decision="ahead"))
    log.write(Skipped(at=0.0, position=log.state.position + 1, reason="damaged"))
    _settle_some(log, 24)
    log.expire("linucb", [["toy1"], ["toy2", "bed1"], ["toy1"]], {"pet": "dog", "age": 2.0})
    for policy in ("neural", "ensemble", "static"):
        log.stage(policy, lag=3)
        log.activate(policy)
    log.stage("neural", lag=2, gated=True)
    log.reject("neural")
    log.stage("neural", lag=2, gated=True)
    log.roll_out("neural", "neural", 0.2, version=log.state.learners["neural"].numbered)
    log.write(Leased(at=7_200.0, rule="few", process="a", asked={"toy1": 5}))
    shown = [("a", 7_250.0, {"few": ["toy1"]}), ("b", 7_260.0, {"few": list[str]()})]
    log.write(Exposed(at=7_260.0, decisions=shown))
    snapshot = log.state.snapshot()
    log.write(LogTruncated(at=0.0, held=log.state.position, last=99, rows=0))
    log.change("changing", [], log.state.position)
    log.reset("popularity")
    _settle_some(log, 12)
    first = log.settled[1].event.decision
    log.write(Erased(at=0.0, decisions=[first], positions=[]))
    return log, snapshot


def _held(rollout: Rollout, reading: RolloutReading, now: float) -> RolloutStep:
    slow = Finding(
        guardrail="latency",
        on_breach="hold",
        state="breached",
        value=0.25,
        bound=0.01,
        decisions=120,
        sentence="'static' is slow.",
    )
    step = guarded_step(rollout, reading, now, [slow])
    assert step is not None
    return step


def _settle_some(log: Log, count: int) -> None:
    """Rewards, defaults, corrections and a withdrawal, of each policy in turn."""
    arms = sorted(log.state.arms)
    for number, policy in zip(range(count), [*POLICIES] * count, strict=False):
        arm, other = arms[number % len(arms)], arms[(number + 3) % len(arms)]
        shown = log.settle(
            policy, {arm: float(number % 2), other: 0.5}, {"pet": "dog", "age": number}
        )
        if number % 4 == 1:
            log.correct(log.settle(policy, {arm: 0.0}, kind=Default), 1.0)
        if number % 8 == 3:
            log.withdraw(shown, other)


DECIDED = Decision(
    id="abcdefghijklmnopqrstuv",
    at=1.5,
    policy="linucb",
    assignment=0.25,
    model_version="linucb/0@7",
    schema_version=1,
    unit=None,
    context={"pet": "cat", "age": 3.0},
    arms=["toy1", "food1"],
    inline={"food1": {"kind": "food"}},
    probabilities=[0.75, 0.25],
    seed=123,
    bank=5,
    shown=[Shown("food1", 0.25, Row(struct.pack("<d", 0.3), (1, 2)), True)],
    slate_log=-1.3862943611198906,
    reward_by=60.0,
    accept_until=120.0,
    deferred=True,
    key="shop",
    facts=DecisionFacts(
        (1,),
        Shortlist("linucb", "scan", 900, 1, 3, 1),
        exclude=("toy2",),
        only=("toy1", "food1"),
        counts=(WindowCount("few", 7, (3,)),),
        off=("varied",),
        fallback="scores",
        failed=2,
    ),
    rules=("exclude", "few"),
    relaxed=("pinned",),
    attributes={"food1": {"stock": 3.0, "brand": "Acme"}},
)


def main() -> None:
    log, snapshot = written()
    with LOG.open("w") as file:
        for event, artifact in log.records:
            packed = artifact and base64.b64encode(artifact).decode()
            line = {"record": encode_event(event).decode(), "artifact": packed}
            file.write(json.dumps(line) + "\n")
    SNAPSHOT.write_bytes(snapshot.payload)
    STATE.write_text(json.dumps(described(log.state), indent=1) + "\n")
    DECISION.write_bytes(encode_decision(DECIDED))


if __name__ == "__main__":
    main()
