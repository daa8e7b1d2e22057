"""The steps of a rollout: what brings each about, and what it says."""

from math import inf, isfinite, nan
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.state.rollout import (
    BEYOND,
    DAY_S,
    DAYS,
    EVIDENCE,
    HOUR_S,
    LEAST_UNITS,
    LONGEST_SILENCE_S,
    WITHIN,
    Rollout,
    RolloutReading,
    RolloutStep,
    advance,
    applied,
    hold,
    next_step,
    reading_state,
    resume,
    roll_back,
    standing,
)

START = 1_700_000_000.0
DAY_LATER = START + DAY_S


def rollout(**changed: Any) -> Rollout:
    return Rollout(
        policy="new",
        baseline="old",
        **{"started_at": START, "stage_since": START, "waiting_since": START, **changed},
    )


def reading(now: float = DAY_LATER, **changed: Any) -> RolloutReading:
    """Within the margin, with new data, unless changed."""
    figures: dict[str, Any] = {
        "own": 214, "baseline": 4_000, "value": 0.21, "baseline_value": 0.201, "within": 0.03,
        "lower": 0.01, "upper": 0.05, "evidence": 0.1, "units": 200.0, "newest": now,
    }  # fmt: skip
    return RolloutReading(**{**figures, **changed})


def worse(now: float = DAY_LATER, **changed: Any) -> RolloutReading:
    figures = {"value": 0.103, "within": -0.08, "lower": -0.14, "upper": -0.02}
    return reading(now, **{**figures, **changed})


def still_open(now: float = DAY_LATER, **changed: Any) -> RolloutReading:
    return reading(now, **{"lower": -0.01, **changed})


numbers = st.sampled_from([-inf, -0.1, -1e-9, 0.0, 1e-9, 0.1, inf, nan])
rollouts = st.builds(
    rollout,
    stage=st.integers(0, 2),
    state=st.sampled_from(["running", "held", "undecided", "rolled_back", "finished"]),
    stage_hours=st.sampled_from([0.0, 24.0]),
    on_undecided=st.sampled_from(["ask", "ship", "back"]),
    ask=st.booleans(),
)
readings = st.builds(
    reading,
    own=st.integers(0, 200),
    value=numbers,
    lower=numbers,
    upper=numbers,
    evidence=st.sampled_from([0.0, 0.9, 1.0, 7.0, nan]),
    units=st.sampled_from([0.0, 49.9, 50.0, nan]),
    newest=st.none() | st.floats(START, START + 20 * DAY_S),
)
times = st.floats(START, START + 20 * DAY_S)


@given(rollouts, readings, times)
def test_no_rollout_goes_forward_without_new_data(
    found: Rollout, seen: RolloutReading, now: float
) -> None:
    """Nor before its hours, nor with few visitors, nor while it is held."""
    step = next_step(found, seen, now)
    if step is None or step.stage == found.stage:
        return
    assert step.stage > found.stage
    assert found.state == "running"
    assert seen.newest is not None
    assert now - seen.newest <= LONGEST_SILENCE_S
    assert all(isfinite(each) for each in msgspec.structs.astuple(seen))
    if step.metric == DAYS:
        assert found.on_undecided == "ship"
        assert now - START >= 14 * DAY_S
        return
    assert step.metric == WITHIN
    assert seen.lower > 0
    assert seen.units >= LEAST_UNITS
    assert now - found.stage_since >= found.stage_hours * HOUR_S
    assert not found.ask


@given(rollouts, readings, times)
def test_a_stop_has_no_floor(found: Rollout, seen: RolloutReading, now: float) -> None:
    step = next_step(found, seen, now)
    loses = -inf < seen.upper < 0 or seen.evidence >= 1
    if found.state in ("rolled_back", "finished"):
        assert step is None
    elif loses:
        assert step is not None
        assert step.kind == "roll back"
    elif step is not None and step.kind == "roll back":
        assert (step.metric, found.on_undecided) == (DAYS, "back")


@given(rollouts, readings, times)
def test_each_step_has_its_figures_and_one_stage(
    found: Rollout, seen: RolloutReading, now: float
) -> None:
    step = next_step(found, seen, now)
    if step is None:
        return
    assert step.at == now
    assert (step.own, step.baseline) == (seen.own, seen.baseline)
    assert step.metric in (WITHIN, BEYOND, EVIDENCE, DAYS)
    assert step.bound is not None
    assert step.value is None or isfinite(step.value)
    assert step.sentence.endswith(".")
    assert "earned nan" not in step.sentence
    after = applied(found, step)
    assert after.state == step.state
    assert after.stage == step.stage < len(found.stages)
    assert after.stage_since == (now if after.stage != found.stage else found.stage_since)
    assert msgspec.json.decode(msgspec.json.encode(step), type=RolloutStep) == step


@given(rollouts, st.floats(-0.2, 0.0), st.floats(0.0, 0.2), st.floats(0, 13.9 * DAY_S))
def test_nothing_happens_while_the_bounds_hold_0(
    found: Rollout, lower: float, upper: float, after: float
) -> None:
    now = START + after
    assert next_step(found, reading(now, lower=lower, upper=upper), now) is None


def test_a_challenger_within_the_margin_goes_through_the_stages() -> None:
    found, now, kinds = rollout(), START, list[str]()
    for hour in range(24 * 5):
        now = START + hour * HOUR_S
        step = next_step(found, reading(now), now)
        if step is not None:
            kinds.append(f"{step.kind} {hour}")
            found = applied(found, step)
    assert kinds == ["advance 24", "advance 48", "finish 72"]
    assert (found.share, found.state) == (1.0, "finished")


def test_a_loss_says_what_was_earned() -> None:
    step = next_step(rollout(), worse(), DAY_LATER)
    assert step is not None
    assert (step.kind, step.metric, step.value, step.bound) == ("roll back", BEYOND, -0.02, 0.0)
    assert step.sentence == (
        "'new' earned 0.1 a decision after 214 settlements, and 'old' 0.2: the loss is beyond the "
        "margin of 10 percent. 'old' has its traffic back."
    )
    assert applied(rollout(), step).share == 0


def test_bets_stop_a_challenger_that_its_bound_does_not() -> None:
    step = next_step(rollout(), still_open(own=0, evidence=1.2), DAY_LATER)
    assert step is not None
    assert (step.kind, step.metric, step.value, step.bound) == ("roll back", EVIDENCE, 1.2, 1.0)


def test_a_stop_waits_for_nothing() -> None:
    early = worse(START, own=1, units=1.0, newest=None)
    step = next_step(rollout(), early, START)
    assert step is not None
    assert step.kind == "roll back"


@pytest.mark.parametrize("state", ["held", "undecided"])
def test_a_held_rollout_does_not_advance_but_stops(state: Any) -> None:
    found = rollout(state=state)
    assert next_step(found, reading(), DAY_LATER) is None
    step = next_step(found, worse(), DAY_LATER)
    assert step is not None
    assert step.state == "rolled_back"


def test_a_quiet_log_is_no_data() -> None:
    late = DAY_LATER + LONGEST_SILENCE_S + 1
    assert reading_state(reading(), DAY_LATER + LONGEST_SILENCE_S) == "keeps"
    assert reading_state(reading(), late) == "no data"
    assert reading_state(reading(value=nan), DAY_LATER) == "no data"
    assert next_step(rollout(), reading(), late) is None
    said = standing(rollout(), reading(), late)
    assert said.startswith("There is no data since 2023-11-15T22:13:20+00:00. 'new' has 5 percent")
    assert said.endswith("It cannot advance without data.")


def test_a_person_confirms_each_stage_where_the_rollout_asks() -> None:
    found = rollout(ask=True)
    step = next_step(found, reading(), DAY_LATER)
    assert step is not None
    assert (step.kind, step.state, step.stage) == ("ask", "held", 0)
    assert "It may take 20 percent of the traffic once a person confirms it." in step.sentence
    confirmed = advance(applied(found, step), reading(), DAY_LATER)
    after = applied(found, confirmed)
    assert (after.share, after.state) == (0.2, "running")


@pytest.mark.parametrize(
    ("end", "kind", "state", "share"),
    [
        ("ask", "ask", "undecided", 0.05),
        ("ship", "finish", "finished", 1.0),
        ("back", "roll back", "rolled_back", 0.0),
    ],
)
def test_a_rollout_without_an_outcome_ends_as_it_says(
    end: Any, kind: str, state: str, share: float
) -> None:
    found, now = rollout(on_undecided=end), START + 14 * DAY_S
    assert next_step(found, still_open(now - 1), now - 1) is None
    step = next_step(found, still_open(now), now)
    assert step is not None
    assert (step.kind, step.state) == (kind, state)
    assert (step.metric, step.value, step.bound) == (DAYS, 14.0, 14.0)
    assert applied(found, step).share == share


def test_nothing_ships_without_data() -> None:
    now = START + 14 * DAY_S
    step = next_step(rollout(on_undecided="ship"), still_open(newest=None), now)
    assert step is not None
    assert (step.kind, step.state) == ("ask", "undecided")


def test_a_challenger_within_the_margin_is_not_undecided() -> None:
    now = START + 14 * DAY_S
    assert next_step(rollout(stage_since=now - HOUR_S), reading(now), now) is None


def test_a_person_holds_and_resumes_a_rollout() -> None:
    later = START + 15 * DAY_S
    found = applied(rollout(), hold(rollout(), still_open(), DAY_LATER))
    assert found.state == "held"
    assert next_step(found, still_open(later), later) is None
    found = applied(found, resume(found, still_open(later), later))
    assert found.state == "running"
    assert next_step(found, still_open(later), later) is None
    end = later + 14 * DAY_S
    step = next_step(found, still_open(end), end)
    assert step is not None
    assert step.kind == "ask"


def test_a_person_rolls_back_what_has_no_figures() -> None:
    step = roll_back(rollout(), reading(upper=nan, newest=None), DAY_LATER)
    assert (step.state, step.value) == ("rolled_back", None)
    assert "no data" in step.sentence


def test_few_visitors_do_not_advance_a_rollout() -> None:
    seen = reading(units=LEAST_UNITS - 0.1)
    assert next_step(rollout(), seen, DAY_LATER) is None
    assert next_step(rollout(), reading(units=LEAST_UNITS), DAY_LATER) is not None
    assert "too few of the 50 that an advance needs" in standing(rollout(), seen, DAY_LATER)


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ("running", "'new' has 5 percent of the traffic."),
        ("held", "'new' has 5 percent of the traffic, and the rollout is held."),
        ("undecided", "and the rollout is held until a person decides."),
        ("rolled_back", "The rollout was rolled back, and 'old' has the traffic."),
        ("finished", "'new' has 5 percent of the traffic, and the rollout is finished."),
    ],
)
def test_each_state_is_told(state: Any, said: str) -> None:
    told = standing(rollout(state=state), still_open(), DAY_LATER)
    assert told.endswith(said)
    assert "cannot be told yet" in told


def test_the_smallest_share_bounds_the_chances() -> None:
    assert rollout().least_share == 0.05
    assert rollout(stages=(0.2, 0.9, 1.0)).least_share == pytest.approx(0.1)
