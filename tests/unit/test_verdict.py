"""What is said of a log: which policy pays, since when, and why nothing can be said."""

import re
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from service.analysis.history import DELETED, OPEN, REPEATED
from service.analysis.outcomes import NOT_DRAWN, NOT_SHOWN
from service.analysis.verdict import verdict_on
from service.analysis.verdict_answer import Uplift, Verdict
from service.analysis.verdict_table import table
from service.errors import NotFound
from service.features.row import Row
from service.log.stores.memory import MemoryStore
from service.state.decisions import Shown
from service.state.events import ExperimentDeleted, LogTruncated, PolicyReset
from tests.support.archived import SHOP, Shop, a_decision
from tests.support.assigned import Traffic
from tests.support.clock import run_virtual

HALF = {"auto": 1.0, "control": 1.0}
BETTER, EQUAL, WORSE = ({"auto": rate, "control": 0.4} for rate in (0.55, 0.4, 0.25))


def judged(play: Callable[[Traffic], Awaitable[None]], seed: int = 0) -> Verdict:
    async def run() -> Verdict:
        store = MemoryStore()
        await play(Traffic(Shop(store), seed))
        return await verdict_on(store, SHOP)

    return run_virtual(run())


def after(
    count: int,
    rates: Mapping[str, float],
    shares: Mapping[str, float] = HALF,
    *,
    visits: Mapping[str, Any] | None = None,
    **more: Any,
) -> Verdict:
    async def play(traffic: Traffic) -> None:
        await traffic.define(shares, **more)
        await traffic.visits(count, rates, **(visits or {}))

    return judged(play)


def only(verdict: Verdict) -> Uplift:
    [uplift] = verdict.uplifts
    return uplift


# -- sentences -------------------------------------------------------------------------------------


def test_a_better_policy_is_told_with_its_uplift_and_since_when() -> None:
    verdict = after(2_000, BETTER)
    found = re.fullmatch(
        r"`auto` earns ([\d.]+) to ([\d.]+) percent more than `control` \(95 percent, valid at any "
        r"time\); safe to say since (\d\d:\d\d) UTC, ([\d,]+) decisions\.",
        verdict.sentence,
    )
    assert found, verdict.sentence
    assert 0 < float(found[1]) < 37.5 < float(found[2])
    uplift = only(verdict)
    assert (verdict.state, uplift.state, uplift.sentence) == ("better", "better", verdict.sentence)
    assert uplift.interval[0] < 0.15 < uplift.interval[1]
    assert uplift.interval[0] < uplift.fixed_interval[0] < uplift.fixed_interval[1]
    assert uplift.safe_decisions == int(found[4].replace(",", ""))
    assert uplift.safe_since
    assert uplift.safe_since[11:16] == found[3]


def test_a_worse_policy_is_told_as_a_loss() -> None:
    verdict = after(2_000, WORSE)
    assert verdict.state == "worse"
    assert re.match(r"`auto` earns [\d.]+ to [\d.]+ percent less than `control` ", verdict.sentence)


def test_of_rewards_below_0_the_difference_is_told() -> None:
    verdict = after(2_000, BETTER, reward={"range": [-1, 1]})
    assert re.match(r"`auto` earns [\d.]+ to [\d.]+ more a decision than `contr", verdict.sentence)
    assert (only(verdict).ratio, only(verdict).ratio_interval) == (None, None)


def test_what_is_forecast_comes_true() -> None:
    """The interval has the told width when the told time is over, but for rounding."""
    verdict = after(1_000, EQUAL)
    found = re.fullmatch(
        r"No difference between `control` and `auto` can be told yet: at today's rate an uplift of "
        r"10 percent would show in about (\d+) hours\.",
        verdict.sentence,
    )
    assert verdict.state == "open"
    assert found, verdict.sentence
    later = only(after(1_000 + int(found[1]) * 360, EQUAL))
    low, high = later.interval
    assert (high - low) / 2 == pytest.approx(0.1 * only(verdict).control, rel=0.05)


def test_once_an_uplift_would_have_shown_a_smaller_one_is_forecast() -> None:
    assert "an uplift of 5 percent would show in about" in after(9_000, EQUAL).sentence
    assert "every decision has earned the same" in after(100, dict.fromkeys(HALF, 0.0)).sentence


def test_of_several_the_surest_is_told_and_the_best_named() -> None:
    shares = {"auto": 1.0, "lints": 1.0, "control": 1.0}
    verdict = after(3_000, {"auto": 0.6, "lints": 0.45, "control": 0.3}, shares)
    assert verdict.sentence.startswith("`auto` earns ")
    assert verdict.sentence.endswith(
        " Best of all is `auto`, with a chance of more than 99 percent."
    )
    assert [each.policy for each in verdict.uplifts] == ["auto", "lints", None]
    assert verdict.uplifts[2].sentence.startswith("Everything else earns ")
    assert sum(each.best or 0.0 for each in verdict.policies) == pytest.approx(1)


def test_an_open_comparison_is_told_before_a_lost_one() -> None:
    shares = {"auto": 1.0, "lints": 1.0, "control": 1.0}
    verdict = after(3_000, {"auto": 0.4, "lints": 0.1, "control": 0.4}, shares)
    assert verdict.state == "open"
    assert "`control` and `auto`" in verdict.sentence


# -- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "say"),
    [
        ({"control": None}, "Set `control` to the policy"),
        ({"shares": {"auto": 1.0, "control": 0.0}}, "Give the control `control` and another"),
        ({"shares": {"auto": 0.0, "control": 1.0}}, "Give the control `control` and another"),
        ({"reward": {"range": [0, 1], "default": None}}, "Give it a default."),
    ],
)
def test_why_nothing_can_be_told_and_what_to_do(more: dict[str, Any], say: str) -> None:
    verdict = after(100, EQUAL, **more)
    assert verdict.state == "refused"
    assert say in verdict.sentence
    assert (verdict.policies, verdict.uplifts) == ([], [])


def test_before_the_first_outcome_nothing_can_be_told() -> None:
    verdict = after(30, EQUAL, visits={"settled": False})
    assert (verdict.state, verdict.left_out) == ("refused", {OPEN: 30})
    assert "none whose policy was drawn has its outcome" in verdict.sentence


def test_a_few_visitors_are_too_few_however_often_they_come() -> None:
    """Twenty visitors with 100 decisions each: 10 of each count, half of 20 in effect."""
    units = [f"unit-{number % 20}" for number in range(2_000)]
    verdict = after(2_000, BETTER, visits={"units": units})
    assert verdict.state == only(verdict).state == "refused"
    assert only(verdict).units == pytest.approx(10)
    assert (only(verdict).decisions, only(verdict).repeats) == (200, 1_800)
    assert "share has decided for 10 visitors in effect, and 50 are needed" in verdict.sentence
    assert only(verdict).safe_since is None


def beside_a_crawler(visits: int) -> Verdict:
    """120 visitors who come five times, and among them a unit that comes so often and whose
    decisions are all clicked. Clicks of the others do not depend on it."""
    units = [*(f"unit-{number % 120}" for number in range(600)), *["crawler"] * visits]
    Random(0).shuffle(units)

    async def play(traffic: Traffic) -> None:
        await traffic.define(HALF)
        come = Counter[str]()
        for unit in units:
            come[unit] += 1
            traffic.rng = Random(f"{unit} {come[unit]}")
            rates = {"auto": 1.0, "control": 1.0} if unit == "crawler" else EQUAL
            await traffic.visits(1, rates, units=[unit])

    return judged(play)


def test_one_unit_with_300_decisions_neither_refuses_a_verdict_nor_makes_its_mean() -> None:
    """Of 900 decisions 300 are its own. Were all to count, there were 4 visitors in effect, and the
    mean of its policy .66; as ten of 610 they move it by .01 to .02."""
    without, beside = beside_a_crawler(0), beside_a_crawler(300)
    assert without.state == beside.state == "open"
    assert (beside.decisions, only(beside).decisions, only(beside).repeats) == (610, 610, 290)
    assert beside.left_out == {REPEATED: 290}
    assert f"290 left out: {REPEATED}." in table(beside)
    assert only(beside).units == pytest.approx(610**2 / (120 * 25 + 100) / 2)
    for one, other in zip(without.policies, beside.policies, strict=True):
        assert other.mean == pytest.approx(one.mean, abs=0.025)
    assert beside.fits, "a visitor counts once in the sample ratio of policies"


def test_a_visitor_who_comes_back_counts_again_once_a_comparison_begins_anew() -> None:
    units = [f"unit-{number % 100}" for number in range(1_000)]

    async def play(traffic: Traffic) -> None:
        await traffic.define(HALF)
        await traffic.visits(1_000, EQUAL, units=units)
        await traffic.shop.append(PolicyReset(at=traffic.at, policy="auto", revision=2))
        traffic.position += 1
        await traffic.visits(300, EQUAL, units=units)

    uplift = only(judged(play))
    assert (uplift.decisions, uplift.repeats) == (300, 0)


def test_a_deleted_experiment_has_no_verdict() -> None:
    async def play(traffic: Traffic) -> None:
        await traffic.define(HALF)
        await traffic.shop.append(ExperimentDeleted(at=traffic.at, revision=2))

    with pytest.raises(NotFound, match="deleted"):
        judged(play)


# -- which decisions count -------------------------------------------------------------------------


def test_after_the_oldest_open_decision_clicks_alone_would_count() -> None:
    """Misses of the second part are still open: with them, only its clicks are settled."""

    async def play(traffic: Traffic) -> None:
        await traffic.define(HALF)
        await traffic.visits(500, EQUAL)
        await traffic.visits(1, EQUAL, settled=False)
        await traffic.visits(50, {"auto": 1.0, "control": 1.0})

    verdict = judged(play)
    assert (verdict.decisions, verdict.left_out) == (500, {OPEN: 51})
    assert all(each.mean == pytest.approx(0.4, abs=0.1) for each in verdict.policies)


def test_overdue_decisions_count_by_the_default() -> None:
    async def play(traffic: Traffic) -> None:
        await traffic.define(HALF)
        await traffic.visits(300, EQUAL, settled=False)
        traffic.rest()
        await traffic.visits(100, {"auto": 1.0, "control": 1.0})

    verdict = judged(play)
    assert (verdict.decisions, verdict.left_out) == (400, {})
    assert [each.mean for each in verdict.policies] == pytest.approx([0.25, 0.25], abs=0.02)


def test_named_and_unshown_decisions_do_not_count() -> None:
    async def play(traffic: Traffic) -> None:
        await traffic.define(HALF)
        await traffic.visits(200, EQUAL)
        await traffic.visits(7, EQUAL, assignment=1.0)
        await traffic.visits(5, EQUAL, settled=False, deferred=True)
        traffic.rest()
        await traffic.visits(100, EQUAL)

    verdict = judged(play)
    assert (verdict.decisions, verdict.left_out) == (300, {NOT_DRAWN: 7, NOT_SHOWN: 5})


def test_a_slate_earns_what_its_arms_earn() -> None:
    """Of three arms; those that are not settled by the end were not seen."""

    async def play(traffic: Traffic) -> None:
        await traffic.define(HALF)
        await traffic.visits(400, EQUAL, slots=3)
        traffic.rest()
        decision = a_decision(9_999, traffic.at, 3, policy="auto", model_version="auto/0@1")
        await traffic.shop.decide(replace(decision, assignment=0.5))
        await traffic.shop.reward(decision, a=1.0, b=1.0, c=1.0)

    verdict = judged(play)
    assert verdict.decisions == 401
    low, high = verdict.policies[0].interval or (0.0, 0.0)
    assert low < 0.4 < high
    assert only(verdict).history[0].high > 6  # at first, a slate may earn 3 with a chance of 1/2


def test_a_change_of_shares_alone_counts_as_the_same_definition_with_other_shares() -> None:
    grown = {"auto": 3.0, "control": 1.0}

    def told(change: Callable[[Traffic], Awaitable[None]]) -> Verdict:
        async def play(traffic: Traffic) -> None:
            await traffic.define(HALF)
            await traffic.visits(500, BETTER)
            await change(traffic)
            await traffic.visits(500, BETTER)

        return judged(play)

    verdict = told(lambda traffic: traffic.share(grown))
    assert verdict == told(lambda traffic: traffic.define(grown))
    assert only(verdict).decisions == 1_000


def test_a_comparison_begins_where_its_policies_are_what_they_are_now() -> None:
    """A share changes nothing, another setting of a policy all that it is compared in."""

    async def play(traffic: Traffic) -> None:
        shares = {**HALF, "lints": 1.0}
        await traffic.define(shares)
        await traffic.visits(100, {**EQUAL, "lints": 0.4})
        await traffic.define({**shares, "lints": 2.0})
        await traffic.visits(100, {**EQUAL, "lints": 0.4})
        policies = {
            "auto": {"kind": "random"},
            "control": {"kind": "random"},
            "lints": {"kind": "popularity", "share": 2.0},
        }
        await traffic.define({**shares, "lints": 2.0}, policies=policies)
        await traffic.visits(100, {**EQUAL, "lints": 0.4})

    verdict = judged(play)
    assert {each.policy: each.decisions for each in verdict.uplifts} == {
        "auto": 300,
        "lints": 100,
        None: 300,
    }
    assert len({each.since for each in verdict.policies if each.policy != "lints"}) == 1


def test_a_reset_begins_a_comparison_anew() -> None:
    async def play(traffic: Traffic) -> None:
        await traffic.define(HALF)
        await traffic.visits(100, EQUAL)
        await traffic.shop.append(PolicyReset(at=traffic.at, policy="auto", revision=2))
        traffic.position += 1
        await traffic.visits(80, EQUAL)

    assert only(judged(play)).decisions == 80


def test_a_changed_chance_weighs_each_decision_by_its_own() -> None:
    """Nine tenths of the later traffic, which clicks much less, are the first policy's: its plain
    mean would be that of the later time."""

    async def play(traffic: Traffic) -> None:
        await traffic.define(HALF)
        await traffic.visits(2_000, {"auto": 0.8, "control": 0.8})
        await traffic.define({"auto": 9.0, "control": 1.0})
        await traffic.visits(2_000, {"auto": 0.2, "control": 0.2})

    verdict = judged(play)
    assert verdict.state == "open"
    assert [each.mean for each in verdict.policies] == pytest.approx([0.5, 0.5], abs=0.06)


# -- what was drawn against what the log holds -----------------------------------------------------


def half_shown(lost: float) -> Verdict:
    """Each of two arms has half of the chances; the rows of one are lost with a chance."""

    async def play(traffic: Traffic) -> None:
        await traffic.define(HALF)
        for _ in range(3_000):
            arm = traffic.rng.choice("ab")
            if arm == "b" and traffic.rng.random() < lost:
                continue
            shown = [Shown(arm, 0.5, Row(b"", ()))]
            await traffic.visits(
                1, EQUAL, arms=["a", "b"], probabilities=[0.5, 0.5], shown=shown, settled=False
            )
        traffic.rest()
        await traffic.visits(1, EQUAL)

    return judged(play)


def test_a_log_that_lacks_rows_of_an_arm_is_not_trusted() -> None:
    verdict = half_shown(0.3)
    assert (verdict.state, verdict.fits) == ("refused", False)
    assert re.match(r"The log does not hold what was drawn: arm `[ab]` is in it [\d,]+ times, wh",
                    verdict.sentence)  # fmt: skip
    assert verdict.sentence == verdict.sample_ratio
    assert only(verdict).decisions > 2_000
    whole = half_shown(0.0)
    assert (whole.state, whole.fits) == ("open", True)
    assert whole.sample_ratio in table(whole)


def test_rows_that_the_log_has_lost_are_told() -> None:
    """They are of a time, whatever was shown: nothing is refused."""

    async def play(traffic: Traffic) -> None:
        await traffic.define(HALF)
        await traffic.visits(200, EQUAL)
        held = traffic.position
        await traffic.shop.append(LogTruncated(at=traffic.at, held=held, last=0, rows=12))
        traffic.position += 1
        await traffic.visits(200, EQUAL)

    verdict = judged(play)
    assert "The log has lost 12 decisions or more." in verdict.sample_ratio
    assert (verdict.state, verdict.fits, verdict.decisions) == ("open", True, 400)


def test_decisions_that_one_policy_never_shows_are_no_mismatch() -> None:
    """They are made ahead, and the page drops those of one policy: they were drawn all the same."""

    async def play(traffic: Traffic) -> None:
        await traffic.define(HALF)
        for number in range(600):
            unit = f"unit-{number}"
            dropped = Random(unit).random() < 0.5
            await traffic.visits(1, EQUAL, units=[unit], settled=not dropped, deferred=True)
        traffic.rest()
        await traffic.visits(1, EQUAL)

    verdict = judged(play)
    assert verdict.left_out[NOT_SHOWN] > 200
    assert verdict.fits


def test_of_an_experiment_that_was_deleted_only_the_later_life_counts() -> None:
    """Its policies and shares are others."""

    async def play(traffic: Traffic) -> None:
        await traffic.define({"old": 1.0, "control": 9.0})
        await traffic.visits(400, {"old": 0.9, "control": 0.9})
        await traffic.shop.append(ExperimentDeleted(at=traffic.at, revision=2))
        traffic.position += 1
        await traffic.define(HALF)
        await traffic.visits(200, EQUAL)

    verdict = judged(play)
    assert (verdict.decisions, verdict.left_out, verdict.fits) == (200, {DELETED: 400}, True)


def test_a_log_that_lacks_visitors_of_a_policy_is_not_trusted() -> None:
    """A visitor counts once: those who come often are no mismatch."""

    def seen(lost: float, often: int) -> Verdict:
        async def play(traffic: Traffic) -> None:
            await traffic.define(HALF)
            units = [f"unit-{number}" for number in range(1_500)]
            kept = [
                unit
                for unit in units
                for _ in range(often if Random(unit).random() < 0.5 else 1)
                if Random(unit).random() < 0.5 or traffic.rng.random() >= lost
            ]
            await traffic.visits(len(kept), EQUAL, units=kept)

        return judged(play)

    assert seen(0.0, 3).fits
    assert seen(0.5, 1).sample_ratio.startswith("The log does not hold what was drawn: policy `")


def test_the_table_names_all() -> None:
    verdict = after(1_000, BETTER)
    sentence, _, head, auto, control, *_ = table(verdict).splitlines()
    assert sentence == verdict.sentence
    assert head.split()[:3] == ["policy", "decisions", "reward"]
    assert (auto.split()[0], control.split()[0]) == ("auto", "control")
