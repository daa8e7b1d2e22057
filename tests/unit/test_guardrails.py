"""Guardrails of rollouts: when each is breached, what it says, and what follows."""

from fractions import Fraction
from math import comb, nan
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.definition.rollout import Guardrails
from service.state.guardrails import (
    FAILED,
    LEAST_DECISIONS,
    LEVEL,
    NO_VISITORS,
    DecisionSample,
    DrawnVisitors,
    Finding,
    GuardrailName,
    SegmentReading,
    binomial_tail,
    exceeds,
    findings_here,
    findings_of_log,
)
from service.state.rollout import (
    Rollout,
    advance,
    applied,
    guarded_step,
    next_step,
    resume,
    standing,
)
from tests.unit.test_rollout import DAY_LATER, reading, rollout, still_open, worse

QUICK = DecisionSample(0.001, 1, False, 0.5)
FELL_BACK = QUICK._replace(fallback=True, entropy=nan)
SLOW = QUICK._replace(seconds=0.0021)
CERTAIN = QUICK._replace(entropy=0.0)
ALL_ON: dict[str, Any] = {
    "entropy": {"least": 0.1},
    "segments": {"where": {"germany": "country == 'DE'"}},
}
LOSES = SegmentReading(214, 900, 0.103, 0.201, -0.02, 0.3, True)
KEEPS = SegmentReading(214, 900, 0.21, 0.201, 0.1, 0.0, False)


def found(
    own: list[DecisionSample],
    others: list[DecisionSample] | None = None,
    visitors: DrawnVisitors = NO_VISITORS,
    segments: dict[str, SegmentReading] | None = None,
    **guardrails: Any,
) -> dict[GuardrailName, Finding]:
    """What is found, by guardrail, with all of them on unless it is said otherwise."""
    declared = Guardrails.model_validate({**ALL_ON, **guardrails})
    here = findings_here(declared, "new", "old", own, others or [])
    logged = findings_of_log(declared, "new", "old", 0.1, visitors, segments or {})
    return {each.guardrail: each for each in [*here, *logged]}


# -- the tail of a binomial distribution ---------------------------------------------------------


@given(st.integers(0, 60), st.integers(0, 62), st.sampled_from(["1/100", "1/1000", "1/2", "9/10"]))
def test_a_tail_is_that_of_an_exact_enumeration(n: int, k: int, chance: str) -> None:
    p = Fraction(chance)
    exact = sum((comb(n, j) * p**j * (1 - p) ** (n - j) for j in range(k, n + 1)), Fraction(0))
    assert binomial_tail(k, n, float(p)) == pytest.approx(float(exact), rel=1e-11, abs=0)


def test_a_tail_of_a_thousand_is_exact_where_it_decides() -> None:
    p = Fraction(1, 100)
    for k in (11, 28, 29, 30, 100, 1_000):
        exact = sum(comb(1_000, j) * p**j * (1 - p) ** (1_000 - j) for j in range(k, 1_001))
        assert binomial_tail(k, 1_000, 0.01) == pytest.approx(float(exact), rel=1e-10, abs=0)


@pytest.mark.parametrize(("n", "least"), [(2, None), (3, 3), (10, 5), (100, 9), (1_000, 29)])
def test_so_many_of_so_many_are_more_than_one_percent(n: int, least: int | None) -> None:
    counts = [count for count in range(n + 1) if exceeds(count, n, 0.01)]
    assert counts == ([] if least is None else [*range(least, n + 1)])
    assert LEVEL == 1e-6


# -- each guardrail ------------------------------------------------------------------------------


def test_a_challenger_that_the_fallback_decides_for() -> None:
    finding = found([QUICK] * 475 + [FELL_BACK] * 37)["fallbacks"]
    assert (finding.state, finding.on_breach) == ("breached", "back")
    assert (finding.value, finding.bound, finding.decisions) == (37 / 512, 0.01, 512)
    assert finding.metric == "share of decisions by the fallback"
    assert finding.sentence == (
        "'new' let the fallback decide 37 of its last 512 decisions, 7.2 percent: at most 1 "
        "percent is allowed."
    )
    few = found([QUICK] * 990 + [FELL_BACK] * 10)["fallbacks"]
    assert (few.state, few.value, few.sentence) == ("ok", 0.01, "")
    assert found([FELL_BACK] * 30, fallbacks={"most": 0.9})["fallbacks"].state == "ok"


def test_a_challenger_that_fails() -> None:
    finding = found([FAILED] * 3)["errors"]
    assert (finding.state, finding.on_breach, finding.value) == ("breached", "back", 1.0)
    assert finding.sentence.startswith("'new' failed at 3 of its last 3 decisions, 100 percent:")
    assert found([FAILED] * 2)["errors"].state == "ok"
    assert found([QUICK] * 500)["errors"].state == "ok"


def test_a_slow_challenger() -> None:
    finding = found([QUICK] * 100 + [SLOW] * 20, [QUICK] * LEAST_DECISIONS)["latency"]
    assert (finding.state, finding.on_breach) == ("breached", "hold")
    assert (finding.value, finding.bound, finding.decisions) == (20 / 120, 0.01, 120)
    assert finding.sentence == (
        "'new' took longer than 2 ms for 20 of its last 120 decisions, 17 percent, where 99 "
        "percent of those of 'old' took 1 ms at most: at most 1 percent is allowed."
    )
    assert found([SLOW] * 120, [SLOW] * LEAST_DECISIONS)["latency"].state == "ok"
    patient = found([SLOW] * 120, [QUICK] * LEAST_DECISIONS, latency={"times": 3})
    assert patient["latency"].state == "ok"


def test_the_time_of_the_baseline_is_what_99_percent_keep_to() -> None:
    usual, rare = [QUICK] * 198, [SLOW] * 2
    assert found([SLOW] * 120, usual + rare)["latency"].state == "breached"
    assert found([SLOW] * 120, [*usual[1:], *rare, SLOW])["latency"].state == "ok"


def test_few_decisions_of_the_baseline_say_nothing_of_times() -> None:
    few = found([SLOW] * 120, [QUICK] * (LEAST_DECISIONS - 1) + [FAILED])["latency"]
    assert (few.state, few.value) == ("no data", None)
    assert found([FAILED] * 120, [QUICK] * 1_000)["latency"].state == "no data"


def test_decisions_that_share_their_scoring_are_compared_as_a_whole_and_in_part() -> None:
    """One alone takes 20 ms; of 16 together each takes 3 ms, and all wait for 48 ms."""
    alone, together = DecisionSample(0.02, 1, False, nan), DecisionSample(0.048, 16, False, nan)
    assert found([alone] * 100, [together] * 1_000)["latency"].state == "ok"
    assert found([together] * 100, [alone] * 1_000)["latency"].state == "ok"
    slower = alone._replace(seconds=0.1)
    assert found([slower] * 100, [together] * 1_000)["latency"].state == "breached"


def test_no_time_below_a_millisecond_is_slow() -> None:
    tiny, small = QUICK._replace(seconds=5e-6), QUICK._replace(seconds=9e-4)
    assert found([small] * 100, [tiny] * 1_000)["latency"].state == "ok"


def test_choices_that_leave_too_little_to_chance() -> None:
    own = [CERTAIN] * 900 + [QUICK] * 100 + [FELL_BACK] * 3
    finding = found(own)["entropy"]
    assert (finding.state, finding.on_breach) == ("breached", "warn")
    assert (finding.value, finding.bound, finding.decisions) == (0.05, 0.1, 1_000)
    assert finding.sentence == (
        "The choices of 'new' had 5 percent of the entropy of uniform chance in its last 1,000 "
        "decisions: at least 10 percent is asked for."
    )
    assert found([QUICK] * 300)["entropy"].state == "ok"
    assert found([CERTAIN] * (LEAST_DECISIONS - 1) + [FELL_BACK])["entropy"].state == "no data"
    assert found([CERTAIN] * 300, entropy={"least": 0})["entropy"].state == "off"


def test_visitors_that_are_missing() -> None:
    finding = found([], visitors=DrawnVisitors(1_000, 150, 200.4, 46.2))["sample_ratio"]
    assert (finding.state, finding.on_breach) == ("breached", "hold")
    assert (finding.value, finding.bound) == (pytest.approx(50.4), 46.2)
    assert finding.sentence == (
        "'new' has 150 of 1,000 visitors by their first decisions, and should have 200, give or "
        "take 46: rows are missing or doubled."
    )
    assert found([], visitors=DrawnVisitors(1_000, 160, 200.4, 46.2))["sample_ratio"].state == "ok"


def test_a_segment_that_loses() -> None:
    finding = found([], segments={"germany": LOSES})["segments"]
    assert (finding.state, finding.on_breach, finding.segment) == ("breached", "hold", "germany")
    assert (finding.value, finding.bound, finding.decisions) == (-0.02, 0.0, 1_114)
    assert finding.sentence == (
        "In the segment 'germany', 'new' earned 0.1 a decision after 214 settlements, and 'old' "
        "0.2: the loss is beyond the margin of 10 percent."
    )
    assert found([], segments={"germany": KEEPS})["segments"].state == "ok"


def test_a_segment_in_which_bets_are_won() -> None:
    bets = SegmentReading(1, 900, 0.0, 0.2, 0.4, 1.2, True)
    finding = found([], segments={"germany": bets})["segments"]
    assert (finding.state, finding.value, finding.bound) == ("breached", 1.2, 1.0)
    assert "after 1 settlement, and" in finding.sentence


def test_a_segment_may_have_a_margin_of_its_own() -> None:
    declared = Guardrails.model_validate({"segments": {**ALL_ON["segments"], "margin": 0.3}})
    [_, found] = findings_of_log(declared, "new", "old", 0.1, NO_VISITORS, {"germany": LOSES})
    assert "the margin of 30 percent" in found.sentence


def test_without_decisions_there_is_no_data_and_no_breach() -> None:
    unknown = SegmentReading(0, 0, nan, nan, nan, 0.0, False)
    for segments in ({}, {"germany": unknown}):
        states = {name: each.state for name, each in found([], segments=segments).items()}
        assert set(states.values()) == {"no data"}
        assert len(states) == 6


def test_each_can_be_switched_off() -> None:
    off = Guardrails.model_validate(dict.fromkeys(Guardrails.model_fields, "none"))
    visitors = DrawnVisitors(9, 9, 0.0, 1.0)
    here = findings_here(off, "new", "old", [FAILED] * 9, [])
    logged = findings_of_log(off, "new", "old", 0.1, visitors, {"germany": LOSES})
    assert [each.state for each in [*here, *logged]] == ["off"] * 6


def test_without_a_least_entropy_and_segments_these_two_are_off() -> None:
    here = findings_here(Guardrails(), "new", "old", [CERTAIN] * 300, [])
    logged = findings_of_log(Guardrails(), "new", "old", 0.1, NO_VISITORS, {"germany": LOSES})
    off = {each.guardrail for each in [*here, *logged] if each.state == "off"}
    assert off == {"entropy", "segments"}


# -- what follows --------------------------------------------------------------------------------


def breach(on_breach: Any, guardrail: GuardrailName = "latency") -> Finding:
    return Finding(
        guardrail=guardrail, on_breach=on_breach, state="breached", value=0.2, bound=0.01,
        decisions=120, sentence="It is so.",
    )  # fmt: skip


BACK, HOLD, WARN = breach("back", "errors"), breach("hold"), breach("warn", "entropy")


def kind_of(found: Rollout, *breaches: Finding, **figures: Any) -> str | None:
    step = next_step(found, still_open(**figures), DAY_LATER, breaches)
    return None if step is None else step.kind


@pytest.mark.parametrize("state", ["running", "held", "undecided"])
def test_a_breach_gives_the_traffic_back_at_once(state: Any) -> None:
    found = rollout(state=state)
    step = next_step(found, still_open(), DAY_LATER, [WARN, HOLD, BACK])
    assert step is not None
    assert (step.kind, step.state) == ("roll back", "rolled_back")
    assert (step.metric, step.value, step.bound) == ("share of failed decisions", 0.2, 0.01)
    assert (step.decisions, step.own, step.baseline) == (120, 214, 4_000)
    assert step.sentence == "It is so. 'old' has its traffic back."
    assert applied(found, step).share == 0


def test_a_breach_holds_a_rollout_until_a_person_decides() -> None:
    found = rollout()
    step = next_step(found, reading(), DAY_LATER, [WARN, HOLD])
    assert step is not None
    assert (step.kind, step.state, step.stage) == ("ask", "held", 0)
    assert (step.metric, step.decisions) == ("share of slow decisions", 120)
    assert step.sentence == "It is so. The rollout is held at 5 percent until a person decides."
    held = applied(found, step)
    assert held.waits
    assert kind_of(held, HOLD) is None


def test_a_breach_that_warns_takes_no_step_and_is_told() -> None:
    assert kind_of(rollout(), WARN) is None
    step = next_step(rollout(), reading(), DAY_LATER, [WARN])
    assert step is not None
    assert step.kind == "advance"
    told = standing(rollout(), still_open(), DAY_LATER, [WARN])
    assert told.endswith("'new' has 5 percent of the traffic. It is so.")


def test_a_loss_beyond_the_margin_is_no_matter_of_asking() -> None:
    step = next_step(rollout(), worse(), DAY_LATER, [HOLD])
    assert step is not None
    assert (step.kind, step.metric) == ("roll back", "upper bound of the reward above the margin")


def test_what_a_person_let_go_on_only_warns_at_this_stage() -> None:
    breached = next_step(rollout(), still_open(), DAY_LATER, [HOLD])
    assert breached is not None
    held = applied(rollout(), breached)
    step = resume(held, still_open(), DAY_LATER)
    resumed = applied(held, step)
    assert (step.metric, step.value, step.bound) == (HOLD.metric, HOLD.value, HOLD.bound)
    assert kind_of(resumed, HOLD) is None
    later = DAY_LATER + 86_400.0
    asked = next_step(resumed, reading(later), later)
    assert asked is not None
    assert (asked.kind, asked.state) == ("ask", "held")
    assert resumed.only_warns(HOLD)
    assert kind_of(resumed, BACK) == "roll back"
    moved = applied(resumed, advance(resumed, still_open(), DAY_LATER))
    assert kind_of(moved, HOLD) == "ask"


def test_a_rollout_that_a_person_held_is_held_by_guardrails_once_it_goes_on() -> None:
    held = rollout(state="held")
    resumed = applied(held, resume(held, still_open(), DAY_LATER))
    assert kind_of(resumed, HOLD) == "ask"


@pytest.mark.parametrize("state", ["rolled_back", "finished"])
def test_nothing_follows_once_a_rollout_has_ended(state: Any) -> None:
    found = rollout(state=state)
    assert next_step(found, worse(), DAY_LATER, [BACK]) is None
    assert guarded_step(found, worse(), DAY_LATER, [BACK]) is None


def test_guardrails_alone_neither_advance_nor_end_a_rollout() -> None:
    late = rollout(waiting_since=0.0, on_undecided="ship")
    assert guarded_step(late, reading(), DAY_LATER, [WARN]) is None
    assert guarded_step(late, worse(), DAY_LATER, []) is None
