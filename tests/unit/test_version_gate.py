"""The gate of a trained version: what both versions predict, and what follows from it when."""

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from service.bandits.version import Version
from service.state.events import AUTOMATIC, Rewarded, VersionActivated, VersionRejected
from service.state.fold import State, gates_due
from service.state.learner import Challenger, Learner
from service.state.version_gate import (
    LAST_LOOK,
    GateFigures,
    GateSums,
    gate_sentence,
    loss_of,
)
from tests.unit.folding import POLICIES, Log, bits, opened, replay, shop

NEURAL = POLICIES["neural"]


def after(gains: list[float], *, explains: bool = True) -> GateSums:
    """The sums after these gains, as far as the gate takes them."""
    sums = GateSums(explains)
    for gain in gains:
        sums.add(0.5 + gain / 2, 0.5 - gain / 2)
    return sums


# -- the outcome -------------------------------------------------------------------------------


@pytest.mark.parametrize(("sign", "outcome"), [(1.0, "serves"), (-1.0, "rejected")])
def test_it_ends_with_the_first_settlement_whose_bounds_leave_out_0(
    sign: float, outcome: str
) -> None:
    sums = GateSums()
    while sums.outcome is None:
        before = sums.figures
        sums.add(0.5 + sign * 0.2, 0.5 - sign * 0.2)
    found = sums.figures
    assert sums.outcome == outcome
    assert found is not None
    assert before is not None
    assert 10 < found.settlements < LAST_LOOK
    assert before.low <= 0 <= before.high
    assert not found.low <= 0 <= found.high
    assert found.gain == pytest.approx(sign * 0.4)
    assert (found.loss, found.challenger_loss) == pytest.approx(
        (0.5 + sign * 0.2, 0.5 - sign * 0.2)
    )


@pytest.mark.parametrize(
    ("gain", "explains", "outcome"),
    [
        (0.001, True, "serves"),
        (0.0, True, "serves"),
        (-0.004, True, "serves"),
        (-0.006, True, "rejected"),
        (0.001, False, "rejected"),
        (0.02, False, "rejected"),
    ],
)
def test_at_500_settlements_one_serves_that_is_no_worse_and_explains_rewards(
    gain: float, explains: bool, outcome: str
) -> None:
    """A loss of 0.5 may grow by a hundredth. 0 is within the bounds of all these gains."""
    gains = [gain + 0.3, gain - 0.3] * (LAST_LOOK // 2)
    assert after(gains[:-1], explains=explains).outcome is None
    sums = after(gains, explains=explains)
    found = sums.figures
    assert found is not None
    assert found.low <= 0 <= found.high
    assert (sums.outcome, found.explains) == (outcome, explains)


def test_what_comes_after_the_outcome_changes_nothing() -> None:
    sums = after([0.5] * LAST_LOOK)
    told = sums.figures
    sums.add(0.0, 1.0)
    assert sums.figures == told
    assert told is not None
    assert told.settlements < LAST_LOOK


def test_a_gain_is_at_most_1() -> None:
    sums = GateSums()
    sums.add(9.0, 1.0)
    assert sums.gains == 1


@pytest.mark.statistics
def test_versions_that_are_equal_seldom_leave_their_bounds() -> None:
    """Of 200 streams of 500 gains with the mean 0 at most 5 percent, but for the look at 500."""
    rng = np.random.default_rng(0)
    early = [after(rng.uniform(-1, 1, LAST_LOOK - 1).tolist()).outcome for _ in range(200)]
    assert sum(outcome is not None for outcome in early) <= 10


def test_losses_are_those_of_shares_of_the_range() -> None:
    assert loss_of(1.0, 0.25, log_loss=False) == 0.5625
    assert loss_of(2.0, -3.0, log_loss=False) == 1.0
    assert loss_of(1.0, 0.25, log_loss=True) == pytest.approx(1.3862943611198906)
    assert loss_of(0.0, 1.0, log_loss=True) == pytest.approx(4.605170185988091)
    assert loss_of(0.0, float("nan"), log_loss=False) == 0.0


def test_sentences_say_what_the_gate_saw() -> None:
    even = GateFigures(500, 0.01, -0.03, 0.05, 0.2, 0.19, explains=True)
    assert gate_sentence(3, 2, even, "serves") == (
        "Version 3 serves: over 500 rewards it erred by 0.01 less than version 2 (between -0.03 "
        "and 0.05 less), and its net explains rewards that it was not fitted to."
    )
    worse = GateFigures(120, -0.2, -0.3, -0.1, 0.2, 0.4, explains=True)
    assert gate_sentence(3, 2, worse, "rejected") == (
        "Version 3 was rejected: over 120 rewards it erred by 0.2 more than version 2 "
        "(between -0.3 and -0.1 less)."
    )
    empty = GateFigures(500, 0.01, -0.03, 0.05, 0.2, 0.19, explains=False)
    assert gate_sentence(3, 2, empty, "rejected").endswith(
        "and its net was not shown to explain rewards that it was not fitted to."
    )
    assert gate_sentence(1, 0, None, "serves") == (
        "Version 1 serves: it was not compared with version 0."
    )


# -- in the fold -------------------------------------------------------------------------------


def rewarded(log: Log, count: int) -> None:
    for number in range(count):
        arm = ["food1", "toy1", "bed1"][number % 3]
        log.settle("p", {arm: float(number % 2)}, {"pet": "dog", "age": number % 7})


def gated(policy: dict[str, Any] = NEURAL, rewards: int = 6) -> Log:
    """A log whose policy has a version at its gate."""
    log = opened(policy)
    rewarded(log, rewards)
    log.stage("p", gated=True)
    return log


def learner_of(log: Log) -> Learner:
    return log.state.learners["p"]


def seen(log: Log) -> GateSums:
    challenger = learner_of(log).challenger
    assert challenger is not None
    return challenger.seen


def expected(version: Version, row: Any, arm: str) -> float:
    [mean] = version.expected(version.phi_of([row]), [arm]).tolist()
    return min(max(mean, 0.0), 1.0)


def test_both_versions_predict_a_reward_before_they_learn_it() -> None:
    log = gated()
    schema, own = log.state.schema, [0.0, 0.0]
    for number in range(5):
        learner = learner_of(log)
        assert isinstance(learner.challenger, Challenger)
        context = schema.encode_context({"pet": "dog", "age": number % 7})
        arm = ["food1", "toy1", "bed1"][number % 3]
        row = schema.row(context, log.state.rows[arm])
        for index, version in enumerate((learner.active, learner.challenger.version)):
            own[index] += (float(number % 2) - expected(version, row, arm)) ** 2
        log.settle("p", {arm: float(number % 2)}, {"pet": "dog", "age": number % 7})
    sums = seen(log)
    assert [sums.losses, sums.challenger_losses] == pytest.approx(own)
    assert sums.gains == pytest.approx(own[0] - own[1])
    assert sums.settlements == 5
    assert own[0] != own[1]


def test_one_reward_of_a_decision_counts_once() -> None:
    """Neither a later arm of a slate nor a correction, nor a miss that the user may not have
    seen, nor what another system showed, nor another policy's."""
    log = gated()
    shown = log.settle("p", {"food1": 1.0, "toy1": 0.0})
    assert seen(log).settlements == 1
    log.correct(shown, 0.0)
    log.settle("p", {"food1": 1.0}, imported=True)
    [one] = log.settle("other", {"food1": 1.0}).event.settled
    for odd in (replace(one, weight=0.5), replace(one, slot=2)):
        log.write(replace(shown.event, decision="odd", settled=[odd]))
    assert seen(log).settlements == 1
    log.write(replace(shown.event, decision="first", settled=[replace(one, slot=1)]))
    assert seen(log).settlements == 2


def test_a_frozen_policy_compares_nothing() -> None:
    log = gated()
    log.define(shop(p=NEURAL | {"learning": False}))
    rewarded(log, 3)
    assert seen(log).settlements == 0
    log.define(shop(p=NEURAL))
    rewarded(log, 1)
    assert seen(log).settlements == 1


def test_another_range_of_rewards_begins_the_gate_anew() -> None:
    log = gated()
    rewarded(log, 3)
    log.define(shop(p=NEURAL | {"epsilon": 0.1}))
    assert seen(log).settlements == 3
    log.define(shop(p=NEURAL | {"epsilon": 0.1}) | {"reward": {"range": [0, 2]}})
    challenger = learner_of(log).challenger
    assert challenger is None or challenger.seen.settlements == 0


def due(log: Log) -> list[VersionActivated | VersionRejected]:
    return gates_due(log.state, 7.0)


def test_without_a_gate_a_version_serves_at_once() -> None:
    """So does one whose net is not new, and one beside a policy that predicts nothing."""
    off = NEURAL | {"training": {"first": 4, "gate": "off"}}
    heads, cold = opened(NEURAL), gated(POLICIES["static"])
    rewarded(heads, 6)
    heads.stage("p")
    for log in (gated(off), heads, cold):
        [event] = due(log)
        assert isinstance(event, VersionActivated)
        assert (event.at, event.by, event.version, event.gate) == (7.0, AUTOMATIC, 1, None)
        assert event.reason == "Version 1 serves: it was not compared with version 0."
        log.write(event)
        assert learner_of(log).active.number == 1
        assert due(log) == []
    assert due(gated()) == []


def test_a_gate_that_is_switched_off_lets_its_version_serve() -> None:
    log = gated()
    assert due(log) == []
    log.define(shop(p=NEURAL | {"training": {"first": 4, "gate": "off"}}))
    assert isinstance(due(log)[0], VersionActivated)


def ended(log: Log, sign: float) -> Any:
    """The event that ends the gate, whose version is better or worse by half of the range."""
    sums = seen(log)
    while sums.outcome is None:
        sums.add(0.5 + sign * 0.25, 0.5 - sign * 0.25)
    [event] = due(log)
    return event


def test_what_the_gate_saw_is_in_the_event_that_ends_it() -> None:
    log = gated()
    event = ended(log, 1.0)
    assert isinstance(event, VersionActivated)
    assert event.gate == seen(log).figures
    assert event.reason.startswith("Version 1 serves: over ")
    log.write(event)
    learner = learner_of(log)
    assert (learner.active.number, learner.challenger, learner.next_version) == (1, None, (1, 2))


def test_after_a_rejection_the_next_training_falls_due_as_if_the_version_served() -> None:
    """Trained at 6 rewards, the next at 12: not again at once; the number counts on."""
    log = gated()
    assert not learner_of(log).training_due
    event = ended(log, -1.0)
    assert isinstance(event, VersionRejected)
    log.write(event)
    learner = learner_of(log)
    assert (learner.active.number, learner.challenger) == (0, None)
    assert (learner.next_version, learner.training_due_at) == ((1, 2), 12)
    rewarded(log, 6)
    assert learner.training_due
    log.stage("p", gated=True)
    assert (seen(log).settlements, learner.training_due, learner.training_due_at) == (0, False, 24)
    log.write(event)  # of the version before
    assert learner.challenger is not None
    log.activate("p")
    assert learner.active.number == 2


def test_a_version_at_its_gate_is_part_of_every_snapshot() -> None:
    """Bit for bit: its head, its sums and its number; a replay from anywhere goes on the same."""
    log = gated(NEURAL | {"window": 5})
    rewarded(log, 3)
    snapshot = log.state.snapshot()
    restored = State.restore(snapshot)
    assert restored.snapshot() == snapshot
    challenger = restored.learners["p"].challenger
    assert challenger is not None
    assert (challenger.trained, challenger.seen) == (True, seen(log))
    rewarded(log, 4)
    log.correct(log.settled[2], 0.5)
    log.activate("p")
    assert bits(replay(log.records, restored)) == bits(replay(log.records)) == bits(log.state)


def test_a_definition_with_other_columns_drops_the_version_at_the_gate() -> None:
    """Its net stays fit for nothing: the next training is due as if this one had not been."""
    log = gated()
    definition = shop(p=NEURAL | {"features": ["pet", "kind"]})
    log.define(shop(p=NEURAL | {"ridge": 2.0}))
    assert learner_of(log).challenger is None
    log = opened(NEURAL | {"features": ["pet", "kind"]})
    rewarded(log, 6)
    log.stage("p", gated=True)
    definition["features"]["context"]["member"] = {"type": "boolean", "default": False}
    log.define(definition)
    learner = learner_of(log)
    assert (learner.challenger, learner.active.settled) == (None, 6)
    assert (learner.training_due, learner.training_due_at) == (True, 4)
    assert learner.next_version == (2, 2)
    assert isinstance(log.settled[0].event, Rewarded)
