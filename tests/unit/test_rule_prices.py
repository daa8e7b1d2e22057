"""What is said of a rule: what it costs in a day, and why nothing can be said."""

from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from random import Random
from typing import Any

import pytest

from service.analysis.history import MOST_PLACES, OPEN, DecisionHistory
from service.analysis.rule_prices import prices_of
from service.analysis.rule_prices_answer import PricedRule, RulePrice, RulePrices
from service.analysis.verdict_sentences import DAY
from service.errors import NotFound
from service.log.stores.memory import MemoryStore
from service.state.decisions import DecisionFacts
from service.state.events import ExperimentDeleted
from tests.support.archived import MORNING, SHOP, Shop
from tests.support.assigned import EVERY_S, Traffic
from tests.support.clock import SetClock, run_virtual

CAP = {"cap": {"of": "arm", "share": 0.3}}
EVEN = {"explore": {"share": 0.1}}
ONE = {"control": 1.0}

Play = Callable[[Traffic], Awaitable[None]]


async def define(traffic: Traffic, measure: float | None = 0.5, **rules: Any) -> None:
    given = {} if measure is None else {"measure": measure}
    await traffic.define(ONE, rules={**(rules or {"varied": CAP}), **given})


async def visit(traffic: Traffic, reward: float, *off: str, unit: str | None = None) -> None:
    units = None if unit is None else [unit]
    facts = DecisionFacts(off=off)
    await traffic.visits(1, {"control": reward}, units=units, facts=facts)


async def visits(
    traffic: Traffic, count: int, off: float, on: float, rule: str = "varied", measure: float = 0.5
) -> None:
    """Decide for new visitors, whose rewards are clicks at these rates."""
    rng = Random(count)
    for _ in range(count):
        if rng.random() < measure:
            await visit(traffic, off, rule)
        else:
            await visit(traffic, on)


def priced(play: Play, clock: SetClock | None = None) -> RulePrices:
    async def run() -> RulePrices:
        store = MemoryStore()
        await play(Traffic(Shop(store)))
        return await prices_of(store, SHOP, clock=clock or SetClock())

    return run_virtual(run())


def only(found: RulePrices) -> PricedRule:
    [rule] = found.rules
    return rule


def price(found: RulePrices) -> RulePrice:
    known = only(found).price
    assert known is not None
    return known


def after(count: int, off: float, on: float, **rules: Any) -> PricedRule:
    async def play(traffic: Traffic) -> None:
        await define(traffic, **rules)
        await visits(traffic, count, off, on)

    return only(priced(play))


# -- figures ---------------------------------------------------------------------------------------


async def four(traffic: Traffic) -> None:
    await define(traffic)
    for reward, off in ((1.0, ["varied"]), (0.0, []), (1.0, []), (0.0, ["varied"])):
        await visit(traffic, reward, *off)


def test_the_price_of_four_decisions_can_be_computed_by_hand() -> None:
    """Terms without the rule: 0 + 1 / .5, 1, 1, 1 - 1 / .5; with it: 0, 0, 0 + 1 / .5, .5."""
    found = price(priced(four))
    assert (found.decisions, found.repeats, found.units) == (4, 0, pytest.approx(2.0))
    assert found.off == pytest.approx((2 + 1 + 1 - 1) / 4)
    assert found.on == pytest.approx((0 + 0 + 2 + 0.5) / 4)
    assert found.difference == pytest.approx(0.125)
    assert (found.decisions_per_day, found.per_day) == (4.0, pytest.approx(0.5))
    assert found.interval == (-1.0, 1.0)
    assert found.per_day_interval == (-4.0, 4.0)


def test_a_day_has_the_decisions_of_all_days_over_their_number() -> None:
    async def play(traffic: Traffic) -> None:
        await define(traffic)
        await visit(traffic, 1.0, "varied")
        traffic.at += 4 * DAY - 3 * EVERY_S
        for _ in range(3):
            await visit(traffic, 0.0)

    found = price(priced(play))
    assert found.decisions_per_day == pytest.approx(1.0)
    assert found.per_day == pytest.approx(found.difference)


def test_a_visitor_counts_ten_times() -> None:
    async def play(traffic: Traffic) -> None:
        await define(traffic)
        for _ in range(13):
            await visit(traffic, 1.0, "varied", unit="crawler")
        await visit(traffic, 0.0)

    found = price(priced(play))
    assert (found.decisions, found.repeats) == (11, 3)


# -- sentences -------------------------------------------------------------------------------------


def test_a_rule_that_costs_is_told_with_its_price_a_day() -> None:
    found = after(1_000, 0.6, 0.3)
    assert found.price is not None
    low, high = found.price.per_day_interval
    assert found.state == "costs"
    assert 0 < low < 300 < high
    assert found.sentence == (
        f"'varied' costs {found.price.per_day:,.0f} rewards a day, between {low:,.0f} and "
        f"{high:,.0f} (95 percent, valid at any time)."
    )


def test_a_rule_that_earns_is_told_as_a_gain() -> None:
    found = after(1_000, 0.2, 0.5)
    assert found.price is not None
    low, high = found.price.per_day_interval
    assert found.state == "earns"
    assert found.sentence.startswith(
        f"'varied' earns {-found.price.per_day:,.0f} rewards a day, between {-high:,.0f} and "
        f"{-low:,.0f} "
    )


def test_what_does_not_show_is_told_with_the_decisions_that_a_cost_needs() -> None:
    found = after(400, 0.4, 0.4)
    assert found.state == "open"
    assert found.sentence.startswith("Nothing can be told yet of 'varied': there are 400 of about ")
    assert found.sentence.endswith(" decisions after which a cost of 10 percent shows.")


def test_few_visitors_without_the_rule_tell_nothing() -> None:
    """Half of 100 decisions are those of the 50 visitors that are needed."""
    found = only(priced(four))
    assert (found.state, found.measured) == ("refused", True)
    assert found.sentence == (
        "Nothing can be told yet of 'varied': there are 4 of about 100 decisions that are needed."
    )


def test_without_a_decision_there_is_no_price() -> None:
    found = only(priced(lambda traffic: define(traffic)))
    assert (found.state, found.measured, found.price) == ("refused", True, None)
    assert "none of the decisions since its last change has its outcome" in found.sentence


def test_decisions_that_wait_are_left_out() -> None:
    async def play(traffic: Traffic) -> None:
        await four(traffic)
        await traffic.visits(2, {"control": 1.0}, settled=False)

    found = priced(play)
    assert (price(found).decisions, found.left_out) == (4, {OPEN: 2})


# -- what is not measured --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "verb"),
    [
        ({"eligible_if": "stock > 0"}, "eligible"),
        ({"pin": {"arm": "a", "share": 0.1}}, "pin"),
        ({"cap": {"arm": "a", "count": 5, "every": "day"}}, "cap"),
        ({**EVEN, "always": True}, "explore"),
    ],
)
def test_a_rule_that_always_holds_says_so(rule: Mapping[str, Any], verb: str) -> None:
    async def play(traffic: Traffic) -> None:
        rules = {"kept": rule, "varied": CAP, "measure": 0.5}
        await traffic.define(ONE, rules=rules, attributes={"stock": "number"})

    kept, varied = priced(play).rules
    assert (kept.name, kept.verb, kept.measured, kept.price) == ("kept", verb, False, None)
    assert kept.sentence == "What 'kept' costs is not measured: it holds for every unit."
    assert (varied.verb, varied.measured) == ("cap", True)


def test_without_measure_or_a_default_reward_nothing_is_measured() -> None:
    found = only(priced(lambda traffic: define(traffic, None)))
    assert (found.measured, found.state) == (False, "unmeasured")
    assert "`measure` of the rules is left out" in found.sentence

    async def play(traffic: Traffic) -> None:
        rules = {"varied": CAP, "measure": 0.5}
        await traffic.define(ONE, rules=rules, reward={"default": "none"})

    found = only(priced(play))
    assert not found.measured
    assert 'reward.default = "none"' in found.sentence


def test_the_names_of_rules_have_a_bound() -> None:
    """A rule of one more name is not measured; the others are."""

    async def play(traffic: Traffic) -> None:
        await define(traffic, first=CAP, last=CAP)
        for number in range(MOST_PLACES):
            await visit(traffic, 1.0, "first" if number == 0 else f"gone {number}")
        await visit(traffic, 1.0, "last")

    first, last = priced(play).rules
    assert first.price is not None
    assert first.price.off > 0
    assert last.sentence == (
        "What 'last' costs is not measured: 63 rules of other names were measured before it."
    )


def test_rows_that_were_lost_make_no_price() -> None:
    async def play(traffic: Traffic) -> None:
        await define(traffic)
        wrong = {"probabilities": [0.1, 0.9, 0.0]}
        await traffic.visits(400, {"control": 0.5}, **wrong)

    found = only(priced(play))
    assert found.state == "refused"
    assert found.sentence.startswith("The log does not hold what was drawn")


# -- since when, and when --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "counts"),
    [
        ({}, 8),
        ({"even": EVEN}, 8),
        ({"measure": 0.25}, 4),
        ({"varied": {"cap": {"of": "arm", "share": 0.4}}}, 4),
    ],
)
def test_a_price_begins_with_the_last_change_of_its_rule(
    changed: dict[str, Any], counts: int
) -> None:
    async def play(traffic: Traffic) -> None:
        await four(traffic)
        await define(traffic, **{"varied": CAP, **changed})
        for _ in range(4):
            await visit(traffic, 0.0)

    known = priced(play).rules[0].price
    assert known is not None
    assert known.decisions == counts


def test_a_price_begins_with_other_reward_rules() -> None:
    async def play(traffic: Traffic) -> None:
        await four(traffic)
        rules = {"varied": CAP, "measure": 0.5}
        await traffic.define(ONE, rules=rules, reward={"range": [0, 2]})
        await visit(traffic, 0.0)

    assert price(priced(play)).decisions == 1


def test_only_decisions_within_the_times_of_a_rule_count() -> None:
    begin, until = (
        datetime.fromtimestamp(MORNING + number * EVERY_S, UTC).isoformat() for number in (2, 4)
    )

    async def play(traffic: Traffic) -> None:
        await define(traffic, varied={**CAP, "from": begin, "until": until})
        for _ in range(5):
            await visit(traffic, 0.0)

    clock = SetClock()
    clock.skip(MORNING + 2 * EVERY_S - clock.time())
    found = priced(play, clock)
    assert (price(found).decisions, only(found).holds) == (2, True)
    clock.skip(2 * EVERY_S)
    assert not only(priced(play, clock)).holds


def test_a_deleted_experiment_has_no_prices() -> None:
    async def play(traffic: Traffic) -> None:
        await four(traffic)
        await traffic.shop.append(ExperimentDeleted(at=traffic.at, revision=9))

    with pytest.raises(NotFound):
        priced(play)


def test_the_level_is_shared_by_the_rules_that_are_measured() -> None:
    """A second measured rule makes the interval of the first wider; one that always holds not."""
    widths = list[float]()
    for rules in (
        {"varied": CAP},
        {"varied": CAP, "even": {**EVEN, "always": True}},
        {"varied": CAP, "even": EVEN},
    ):

        async def play(traffic: Traffic, rules: Mapping[str, Any] = rules) -> None:
            await define(traffic, **rules)
            await visits(traffic, 300, 0.5, 0.5)

        known = priced(play).rules[0].price
        assert known is not None
        widths.append(known.interval[1] - known.interval[0])
    assert widths[0] == widths[1] < widths[2]


def test_a_history_keeps_which_rules_were_off() -> None:
    async def run() -> None:
        store = MemoryStore()
        traffic = Traffic(Shop(store))
        await four(traffic)
        await visit(traffic, 0.0, "even", "varied")
        await visit(traffic, 0.0, "even")
        history = DecisionHistory()
        await history.read(store, SHOP, await store.describe(SHOP))
        again = DecisionHistory.restored(history.dump())
        assert again.rules == history.rules == {"varied": 0, "even": 1}
        assert again.decisions.off.tolist() == [1, 0, 0, 1, 3, 2]

    run_virtual(run())
