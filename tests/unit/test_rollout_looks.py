"""A look at a rollout's guardrails, by a log that is written by hand: visitors and segments."""

from collections.abc import Awaitable, Callable
from math import nan

import numpy as np
import pytest

from service.analysis.history import DecisionHistory
from service.analysis.rollout_guardrails import SAMPLE_RATIO_ALPHA
from service.analysis.rollouts import (
    RolloutLook,
    RolloutLooks,
    decode_looks,
    encode_looks,
    look_at_rollouts,
)
from service.bandits.boundary import radius
from service.log.stores.memory import MemoryStore
from service.state.events import AUTOMATIC, RolloutStarted, RolloutStepped
from service.state.guardrails import NO_VISITORS, DrawnVisitors, SegmentReading
from service.state.rollout import NO_READING, RolloutPlan, advance, begun
from tests.support.archived import SHOP, Shop
from tests.support.assigned import Traffic
from tests.support.clock import run_virtual

FEATURES = {
    "context": {"country": {"type": "categorical", "values": ["DE", "FR"], "default": "FR"}}
}
EVERYWHERE, GERMANY, FRANCE = "country in ['DE', 'FR']", "country == 'DE'", "country == 'FR'"
PLAN = RolloutPlan(policy="new", baseline="old", stages=(0.2, 0.5, 1.0))
NOBODY = {"old": 0.0, "new": 0.0, "other": 0.0}


class Staged(Traffic):
    """A shop whose `new` takes over from `old` beside `other`, which has a half of the traffic."""

    async def define_segments(self, **where: str) -> None:
        rollout = {"guardrails": {"segments": {"where": where}}}
        shares = {"old": 1.0, "new": 0.0, "other": 1.0}
        await self.define(shares, control="old", features=FEATURES, rollout=rollout)

    async def start(self) -> None:
        self.position += 1
        self.begun = begun(PLAN, self.position, self.at)
        self._shares = {"old": 0.8, "new": 0.2, "other": 1.0}
        event = RolloutStarted(at=self.at, by="", revision=self.position, plan=PLAN)
        await self.shop.append(event)

    async def advance(self) -> None:
        self.position += 1
        step = advance(self.begun, NO_READING, self.at)
        self._shares = {"old": 0.5, "new": 0.5, "other": 1.0}
        event = RolloutStepped(
            at=self.at, by=AUTOMATIC, revision=self.position, policy="new", step=step
        )
        await self.shop.append(event)


def looked(play: Callable[[Staged], Awaitable[None]]) -> RolloutLook:
    async def run() -> RolloutLook:
        store = MemoryStore()
        await play(Staged(Shop(store)))
        return (await look_at_rollouts(store, SHOP)).rollouts["new"]

    return run_virtual(run())


# -- visitors ------------------------------------------------------------------------------------


def test_visitors_count_once_since_the_start_settled_or_not() -> None:
    units = [f"unit {number}" for number in range(200)]

    async def play(traffic: Staged) -> None:
        await traffic.define_segments()
        await traffic.visits(100, NOBODY)
        await traffic.start()
        await traffic.visits(200, NOBODY, units=units, settled=False)
        await traffic.visits(200, NOBODY, units=units, settled=False)
        await traffic.visits(50, NOBODY, policy="new", assignment=1.0, settled=False)

    found = looked(play)
    visitors = found.visitors
    assert 70 < visitors.count < 130  # a half of 200
    assert visitors.expected == pytest.approx(0.2 * visitors.count)
    v = np.array(0.16 * visitors.count)
    assert visitors.bound == pytest.approx(float(radius(v, 1.0, SAMPLE_RATIO_ALPHA)))
    assert abs(visitors.own - visitors.expected) < visitors.bound


def test_each_visitor_should_have_the_chance_of_its_first_stage() -> None:
    async def play(traffic: Staged) -> None:
        await traffic.define_segments()
        await traffic.start()
        await traffic.visits(100, NOBODY, policy="old", settled=False)
        await traffic.advance()
        await traffic.visits(40, NOBODY, policy="new", settled=False)

    found = looked(play).visitors
    assert (found.count, found.own) == (140, 40)
    assert found.expected == pytest.approx(100 * 0.2 + 40 * 0.5)
    bound = float(radius(np.array(100 * 0.16 + 40 * 0.25), 1.0, SAMPLE_RATIO_ALPHA))
    assert found.bound == pytest.approx(bound)


def test_without_visitors_nothing_is_known() -> None:
    async def play(traffic: Staged) -> None:
        await traffic.define_segments(germany=GERMANY)
        await traffic.start()

    found = looked(play)
    assert found.visitors == NO_VISITORS
    assert (found.segments["germany"].own, found.segments["germany"].fails) == (0, False)


# -- segments ------------------------------------------------------------------------------------


def test_a_history_keeps_the_segments_of_a_decision_by_the_conditions_of_its_time() -> None:
    """A feature that is left out has its default; a value of another type is none."""

    async def run() -> None:
        store = MemoryStore()
        traffic = Staged(Shop(store))
        for context in ({"country": "DE"}, {}):
            await traffic.define_segments(germany=GERMANY, france=FRANCE)
            await traffic.visits(1, NOBODY, context=context)
        await traffic.visits(1, NOBODY, context={"country": 3.0})
        await traffic.define_segments(all=EVERYWHERE, germany=FRANCE)
        await traffic.visits(1, NOBODY, context={"country": "FR"})
        await traffic.define_segments()
        await traffic.visits(1, NOBODY, context={"country": "FR"})
        history = DecisionHistory()
        await history.read(store, SHOP, await store.describe(SHOP))
        again = DecisionHistory.restored(history.dump())
        assert again.segments == history.segments == {"germany": 0, "france": 1, "all": 2}
        assert again.decisions.segments.tolist() == [0b001, 0b010, 0b000, 0b101, 0b000]

    run_virtual(run())


def test_the_level_of_a_stop_is_divided_among_the_segments() -> None:
    async def play(traffic: Staged) -> None:
        await traffic.define_segments(all=EVERYWHERE, germany=GERMANY)
        await traffic.start()
        rates = {"old": 0.5, "new": 0.2, "other": 0.5}
        for country in ("DE", "FR"):
            await traffic.visits(300, rates, context={"country": country})
        traffic.rest()

    found = looked(play)
    whole, germany = found.segments["all"], found.segments["germany"]
    assert (whole.own, whole.baseline) == (found.reading.own, found.reading.baseline)
    assert (whole.value, whole.baseline_value) == (
        found.reading.value,
        found.reading.baseline_value,
    )
    assert whole.evidence == pytest.approx(found.reading.evidence / 2)
    assert whole.upper > found.reading.upper
    assert 0 < germany.own < whole.own
    assert whole.own + whole.baseline > 1.5 * (germany.own + germany.baseline)


def test_a_look_keeps_what_guardrails_need_over_the_wire() -> None:
    segments = {"germany": SegmentReading(0, 3, nan, 0.5, nan, 0.1, False)}
    visitors = DrawnVisitors(7, 3, 1.4, 5.5)
    look = RolloutLook(4, NO_READING, nan, nan, nan, visitors, segments)
    found = decode_looks(encode_looks(RolloutLooks({"new": look}, {}, (0.0, 1.0), None)))
    assert found.rollouts["new"].visitors == visitors
    assert repr(found.rollouts["new"].segments) == repr(segments)
