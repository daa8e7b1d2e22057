"""Slates of which users see the upper slots more often: misses weigh, and the log says how much."""

from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from pydantic import ValidationError

from service.definition.experiment import RewardRules
from service.definition.select_request import SelectRequest
from service.features.row import Row
from service.http.services import Services
from service.offline.audit import Audit
from service.settle.marks import MarkedSettlement, ShownReward, arm_mark, read_arm
from service.settle.weighing import weigh
from service.state.decisions import Shown
from service.state.events import AnyEvent, Corrected, Expired, Learned, decode_event, encode_event
from service.state.examination import ARMS, Examination, seen_chance
from service.state.fold import State
from tests.statistics.positions import KINDS, Page, falling
from tests.unit.test_cascade import clicked, shown, sound, state_of
from tests.unit.test_settlement import PET, events_of, serving, told

GIVEN = [1.0, 0.5, 0.25]


# -- by hand -----------------------------------------------------------------------------------


def test_a_miss_weighs_the_chance_that_it_was_seen() -> None:
    """Half of the users look, and 3 in 10 of them click: of the 85 in 100 that do not click, 35
    looked."""
    assert seen_chance(0.5, 0.3) == pytest.approx(0.35 / 0.85)
    assert seen_chance(1.0, 0.3) == 1.0
    assert seen_chance(0.5, 0.0) == 0.5
    assert 0 < seen_chance(0.5, 7.0) < 0.01


def test_chances_start_at_the_discount_of_dcg() -> None:
    """1 / log2(k + 1), and a bound of three standard errors of ln theta after one click."""
    examination = Examination()
    assert examination.likely == [1.0]
    assert examination.lower(1) == 1.0
    assert examination.lower(3) == pytest.approx(0.5 * np.exp(-3))


def test_a_chance_is_what_an_arm_got_in_the_slot_beside_what_it_got_in_the_first() -> None:
    """400 visits with 100 clicks in the first slot and with 50 in the second: half of the users
    look there, whatever was predicted. All of I = 50 (1 - 50/150) + 1 = 34.3 clicks."""
    examination = Examination()
    for number in range(400):
        examination.learn("a", 1, float(number % 4 == 0), 0.1)
        examination.learn("a", 2, float(number % 8 == 0), 0.1)
    assert examination.likely[1] == pytest.approx(0.5, abs=0.02)
    bound = examination.likely[1] * np.exp(-3 / np.sqrt(34.3))
    assert examination.lower(2) == pytest.approx(bound, rel=0.02)


def test_an_arm_that_stays_in_its_slot_says_nothing_of_the_slot() -> None:
    """Its 100 clicks of 400 may be half of the users or all of them: the bound stays at three
    standard errors of one click."""
    examination = Examination()
    for number in range(400):
        examination.learn("a", 1, float(number % 4 == 0), 0.25)
        examination.learn("b", 2, float(number % 4 == 0), 0.25)
    assert examination.lower(2) == pytest.approx(examination.likely[1] * np.exp(-3))


def test_rewards_of_any_size_teach_as_much_as_clicks_of_the_same_number() -> None:
    clicks, small = Examination(), Examination()
    for number in range(400):
        for slot in (1, 2):
            clicked_ = float(number % (4 * slot) == 0)
            clicks.learn("a", slot, clicked_, 0.1)
            small.learn("a", slot, 0.001 * clicked_, 0.0001)
    assert small.likely == pytest.approx(clicks.likely)
    assert small.lower(2) == pytest.approx(clicks.lower(2))


def test_a_late_click_moves_the_sums_to_where_they_were() -> None:
    late, once = Examination(), Examination()
    late.learn("a", 2, 0.0, 0.3)
    late.correct("a", 2, 1.0, 0.0)
    once.learn("a", 2, 1.0, 0.3)
    assert late.clicks == once.clicks == 1
    assert late.rewards.tolist() == once.rewards.tolist()


def test_arms_beyond_the_first_thousand_and_outside_the_catalogue_share_a_row() -> None:
    examination = Examination()
    for number in range(ARMS + 5):
        examination.learn(f"arm{number}", 1, 0.0, 1.0)
    examination.learn(None, 1, 0.0, 1.0)
    assert examination.predicted.shape == (ARMS + 1, 1)
    assert examination.predicted[0, 0] == 6.0


# -- the definition ----------------------------------------------------------------------------


@pytest.mark.parametrize("value", [None, "position", [1.0], [1, 0.5, 0.33], [0.5, 0.9, 0.9]])
def test_rules_that_hold(value: object) -> None:
    assert RewardRules.model_validate({"examination": value}).examination == value


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("cascade", '"position", or a list of chances'),
        (0.5, '"position", or a list of chances'),
        ([], "needs the chance of at least one slot"),
        ([1.0, 0.0], "above 0 and are at most 1: not 0"),
        ([1.5], "above 0 and are at most 1: not 1.5"),
        ([1.0, float("nan")], "above 0 and are at most 1: not nan"),
        ([True], "chances are numbers"),
        (["1"], "chances are numbers"),
    ],
)
def test_rules_that_do_not_hold_say_why(value: object, reason: str) -> None:
    with pytest.raises(ValidationError, match=reason) as fault:
        RewardRules.model_validate({"examination": value})
    assert [each["loc"] for each in fault.value.errors()] == [("examination",)]


# -- through the service -----------------------------------------------------------------------


def slates(
    scenario: Callable[[Services], Awaitable[None]], examination: object = GIVEN, **reward: Any
) -> None:
    """A head without features but one starts at the level 0.5 of no reward: it predicts 0."""
    serving(scenario, range=[0, 1], examination=examination, **reward)


def settled(event: AnyEvent) -> list[tuple[str, float, float]]:
    assert isinstance(event, Learned)
    return [(one.arm, one.reward, round(one.weight, 9)) for one in event.settled]


def test_misses_of_a_slate_weigh_by_their_slots_and_clicks_whole() -> None:
    """An empty head predicts 0, so the weights are the chances themselves; the fourth slot has the
    chance of the third, 0.25. A reward of 0.5 counts whole."""

    async def scenario(services: Services) -> None:
        answer = await services.selector.select(SelectRequest(PET, top_k=4))
        arms = [arm.arm for arm in answer.decision.shown]
        rewards = dict(zip(arms, (0.0, 0.5, 0.0, 0.0), strict=True))
        await told(services, answer.token, rewards=rewards)
        event = (await events_of(services))[-1]
        assert settled(event) == list(zip(arms, rewards.values(), (1, 1, 0.25, 0.25), strict=True))
        head: Any = state_of(services).learners["linucb"].active.head
        assert head.n == 2.5
        await sound(services)

    slates(scenario)


def test_a_click_after_the_default_takes_the_weight_of_the_default_back() -> None:
    """Defaults of weights 1, 0.5 and 0.25, then a click on the second: 2.25 settlements, as if it
    had come at once (test_weights.py has the sums)."""

    async def scenario(services: Services) -> None:
        answer, (_, second, _) = await shown(services, expired=True)
        assert await told(services, answer.token, rewards={second: 1.0}) == "corrected"
        *_, default, corrected = await events_of(services)
        assert isinstance(default, Expired)
        assert isinstance(corrected, Corrected)
        assert [one.weight for one in default.defaults[0].settled] == GIVEN
        assert [(one.was, one.weighed) for one in corrected.settled] == [(0.0, 0.5)]
        assert settled(corrected) == [(second, 1.0, 1.0)]
        head: Any = state_of(services).learners["linucb"].active.head
        assert head.n == 2.25
        assert head.b.sum() == 1.0
        await sound(services)

    slates(scenario)


@pytest.mark.parametrize("expired", [False, True])
def test_a_cascade_says_who_was_seen_and_counts_whole(expired: bool) -> None:
    """In time, and after defaults of weights 1, 0.5 and 0.25: the second was seen for certain, and
    of the third nothing is learned."""

    async def scenario(services: Services) -> None:
        answer, (first, second, _) = await shown(services, expired=expired)
        await clicked(services, answer, second)
        event = (await events_of(services))[-1]
        assert settled(event)[:2] == [(first, 0.0, 1.0), (second, 1.0, 1.0)]
        if expired:
            assert isinstance(event, Corrected)
            assert [one.weighed for one in event.settled] == GIVEN
        head: Any = state_of(services).learners["linucb"].active.head
        assert head.n == pytest.approx(2.0)
        await sound(services)

    slates(scenario)


def test_a_reported_miss_after_the_default_keeps_the_weight_of_the_default() -> None:
    async def scenario(services: Services) -> None:
        answer, (_, second, _) = await shown(services, expired=True)
        assert await told(services, answer.token, rewards={second: 0.0}) == "corrected"
        event = (await events_of(services))[-1]
        assert isinstance(event, Corrected)
        assert (settled(event), event.settled[0].weighed) == ([(second, 0.0, 0.5)], 0.5)
        await sound(services)

    slates(scenario)


def test_a_reward_that_becomes_a_miss_gets_the_weight_of_a_miss() -> None:
    async def scenario(services: Services) -> None:
        answer, (_, second, _) = await shown(services)
        await told(services, answer.token, rewards={second: 1.0}, reward_id="a")
        await told(services, answer.token, rewards={second: 0.0}, reward_id="b")
        event = (await events_of(services))[-1]
        assert isinstance(event, Corrected)
        assert [one.weighed for one in event.settled] == [1.0]
        assert event.settled[0].weight < 0.5  # by now, a click is predicted of the arm
        head: Any = state_of(services).learners["linucb"].active.head
        assert head.n == pytest.approx(event.settled[0].weight)
        await sound(services)

    slates(scenario, aggregation="last")


def test_learned_chances_are_a_fold_over_the_log() -> None:
    """What a slot teaches is in the events; `bits` compares snapshots."""

    async def scenario(services: Services) -> None:
        for number in range(4):
            answer, arms = await shown(services, expired=number == 1)
            await told(services, answer.token, rewards={arms[number % 3]: 1.0})
            await services.expiry.expire(state_of(services), answer.decision)
        examination = state_of(services).examination
        assert examination is not None
        assert (examination.settled, examination.clicks) == (12, 4)
        assert examination.rewards.shape[1] == len(examination.likely) == 3
        await sound(services)
        again = State.restore(state_of(services).snapshot())
        assert again.examination is not None
        assert same(again.examination, examination)

    slates(scenario, "position")


def test_without_the_rule_events_and_marks_are_what_they_were() -> None:
    async def scenario(services: Services) -> None:
        answer, _ = await shown(services, expired=True)
        payload = (await services.store.read("shop", 0, 100))[-1].payload
        for name in (b"weight", b"slot", b"predicted", b"weighed"):
            assert name not in payload
        mark = arm_mark(answer.decision.id, answer.decision.shown[2].arm)
        [value] = (await services.store.marks("shop", [mark])).values()
        assert value.value == "[0.0, true, 0]"
        assert read_arm(value).weight == 1.0

    slates(scenario, None)


def test_the_audit_finds_a_changed_weight() -> None:
    """The mark has the weight that was decided."""

    async def scenario(services: Services) -> None:
        await shown(services, expired=True)
        record = (await services.store.read("shop", 0, 100))[-1]
        event = decode_event(record.payload)
        assert isinstance(event, Expired)
        [default] = event.defaults
        first, second, third = default.settled
        settled = [first, structs.replace(second, weight=0.6), third]
        changed = Expired.of([structs.replace(default, settled=settled)])
        store: Any = services.store
        store._experiments["shop"].events[record.position] = encode_event(changed)
        report = await Audit(store, "shop").run()
        assert [each.kind for each in report.kept] == ["fields"]

    slates(scenario)


def test_a_policy_that_predicts_nothing_weighs_by_the_chance_and_teaches_none() -> None:
    page = Page("linucb", [0.3, 0.2], [1.0, 0.5], [1.0, 0.5], 0)
    state = page.state
    rules = state.definition.reward
    arms = [ShownReward(Shown(f"arm{n}", 1.0, Row(b"", (0,))), 0.0, n + 1) for n in range(2)]
    settlement = MarkedSettlement("d", "gone", 1, 0.0, 0.0, arms, True, "", rules)
    weigh(state, settlement)
    assert [(arm.weight, arm.taught) for arm in arms] == [(1.0, 0), (0.5, 0)]


# -- what it is for ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_the_best_arm_comes_first_though_few_look_at_the_last_slots(kind: str) -> None:
    """Slot k is looked at by 1 / k: five of six arms, .50, .40, .30 ..., 500 visits.
    The slow form (tests/statistics/test_positions.py) counts runs."""
    looks = [1 / slot for slot in range(1, 6)]
    for seed, examination in enumerate(("position", looks), start=1):
        assert Page(kind, falling(6, 0.5, 0.1), looks, examination, seed).run(500).first == 0


def test_where_misses_count_whole_chance_decides_which_arm_stays_first() -> None:
    looks = [1 / slot for slot in range(1, 6)]
    pages = [Page("linucb", falling(6, 0.5, 0.1), looks, None, seed) for seed in range(8)]
    assert sum(page.run(500).first != 0 for page in pages) >= 2


ARM_SLOTS = st.tuples(st.sampled_from("abc"), st.integers(1, 5), st.booleans(), st.floats(0, 1))


@given(st.lists(ARM_SLOTS, max_size=60), st.integers(0, 60))
def test_chances_stay_chances_and_a_restored_fold_goes_on(
    settlements: list[tuple[str, int, bool, float]], cut: int
) -> None:
    examination, straight = Examination(), Examination()
    for number, (arm, slot, clicked_, predicted) in enumerate(settlements):
        if number == cut:
            examination = Examination.restore(*examination.dump())
        for each in (examination, straight):
            each.learn(arm, slot, float(clicked_), predicted)
    assert same(examination, straight)
    assert all(0 < straight.lower(slot) <= straight_likely(straight, slot) for slot in range(1, 6))


def straight_likely(examination: Examination, slot: int) -> float:
    return (examination.likely + [1.0] * slot)[slot - 1]


def same(one: Examination, other: Examination) -> bool:
    (meta, arrays), (expected, others) = one.dump(), other.dump()
    return meta == expected and all(np.array_equal(arrays[name], others[name]) for name in others)
