"""What the head of `auto` says of arms as forms of a context, and when it says it so."""

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.bandits.heads import averaged_forms
from service.bandits.heads.averaged import AveragedHead
from service.bandits.heads.averaged_forms import Average, Counting, Forms
from service.bandits.heads.averaged_rows import MemberRows, Rows
from service.bandits.heads.base import Observation
from service.bandits.linalg import Array
from service.definition.reward_request import RewardRequest
from service.definition.select_request import SelectRequest
from service.features.view import View
from service.http.services import Services
from service.log.stores.memory import MemoryStore
from tests.support.clock import run_virtual
from tests.unit.audited import audited, decisions_of, define, live
from tests.unit.folding import shop
from tests.unit.test_averaged_head import ARMS, learned, seeds, view_of, world

ONE = Average(0.0, np.ones(1), np.ones((1, 1, 1)), np.ones(1))
NEVER = 10**9


def asked(view: View, contexts: int, arms: int, seed: int) -> Array:
    """Rows of every arm in one context after another."""
    rng = np.random.default_rng(seed)
    own = rng.standard_normal((arms, view.schema.arm.width))
    return np.concatenate(
        [
            view.rows(np.hstack([np.broadcast_to(x, (arms, len(x))), own]))
            for x in rng.standard_normal((contexts, view.schema.context.width))
        ]
    )


def expect_same(head: AveragedHead, phi: Array, arms: list[str]) -> None:
    """That forms, which are made by now, say what members predict."""
    for _ in range(2):
        head.spread(phi, arms)
    plain, forms = head.spread(phi, arms, by_forms=False), head.spread(phi, arms)
    np.testing.assert_allclose(forms, plain, rtol=1e-12)


@given(st.integers(0, 3), st.integers(1, 3), st.sampled_from([0, 12]), st.booleans(), seeds)
def test_forms_say_what_each_member_predicts(
    context: int, arm: int, settled: int, idle: bool, seed: int
) -> None:
    """Of arms that are known, and of one that is not; also where a fading member has forgotten so
    much that it says no more than its prior."""
    view = view_of(context, arm)
    head, phi = learned(view, world(view, settled, seed)), asked(view, 3, 5, seed)
    rows, level = Rows(view, "auto"), head.rewards.level
    seen, places = MemberRows(rows, phi, 5), head._places([*ARMS, "new"])
    now = head.settled + (2_000 if idle else 0)
    for member in head.members:
        mean, v = member.predict(seen, places, level, now)
        form = Forms([member.forms(rows.shared_columns(seen.arms), places, level, now)], ONE)
        found = form.spread(seen.own)
        np.testing.assert_allclose(found[0], mean, rtol=1e-10, atol=1e-14)
        np.testing.assert_allclose(found[2], v, rtol=1e-10)


def test_forms_of_hashed_crosses_say_what_members_predict() -> None:
    view = view_of(20, 20)
    head, phi = learned(view, world(view, 30, 1)), asked(view, 30, 5, 2)
    expect_same(head, phi, [*ARMS, "new"])


def observed(head: AveragedHead, row: Observation) -> None:
    head.observe(row)


def revised(head: AveragedHead, row: Observation) -> None:
    head.revise(row._replace(reward=1.0 - row.reward), row.reward)


def withdrawn(head: AveragedHead, row: Observation) -> None:
    head.withdraw(row)


def restored(head: AveragedHead, row: Observation) -> None:
    head.restore(learned(view_of(2, 2), [row] * 3).arrays())


@pytest.mark.parametrize("change", [observed, revised, withdrawn, restored])
def test_forms_hold_until_the_head_changes(
    change: Callable[[AveragedHead, Observation], None],
) -> None:
    view = view_of(2, 2)
    rows = world(view, 40, 1)
    head, phi = learned(view, rows), asked(view, 8, 4, 2)
    expect_same(head, phi, ARMS)
    before = np.array(head.spread(phi, ARMS))
    change(head, rows[3])
    assert not np.allclose(head.spread(phi, ARMS), before)
    expect_same(head, phi, ARMS)


def test_each_set_of_arms_has_forms_of_its_own() -> None:
    """Others of them, in another order, with other features."""
    view = view_of(2, 2)
    head = learned(view, world(view, 40, 1))
    for arms in (ARMS, ARMS[:3], ARMS[::-1], ["new", *ARMS[1:]], ARMS):
        for seed in (1, 2):
            expect_same(head, asked(view, 8, len(arms), seed), arms)


def test_means_and_widths_that_a_fold_reads_do_not_hang_on_what_was_asked() -> None:
    view = view_of(2, 2)
    rows = world(view, 40, 1)
    quiet, read, phi = learned(view, rows), learned(view, rows), asked(view, 64, 4, 2)
    read.spread(phi, ARMS)
    for one in np.split(phi, 64):
        assert np.array_equal(read.mean(one, ARMS), quiet.mean(one, ARMS))
        assert np.array_equal(read.width(one, ARMS), quiet.width(one, ARMS))


def counting(members: int = 4) -> Counting:
    return Counting(np.arange(members), np.full(members, 1 / members))


def pays(found: Counting, context: int, contexts: int, arms: int, seed: int = 1) -> bool:
    """Whether forms pay, now that arms of two columns were asked for in so many contexts."""
    rows = Rows(view_of(context, 2), "auto")
    seen = MemberRows(rows, asked(view_of(context, 2), contexts, arms, seed), arms)
    told = found.asked(seen, np.arange(arms), rows.shared_width)
    return told is not None and told.pays


@pytest.mark.parametrize(("context", "enough"), [(2, 4), (9, 10)])
def test_forms_pay_after_some_contexts_of_the_same_arms(context: int, enough: int) -> None:
    found = counting()
    assert [pays(found, context, 1, 5) for _ in range(enough)] == [False] * (enough - 1) + [True]
    assert not pays(found, context, enough - 1, 5, seed=2)
    assert pays(found, context, 1, 5, seed=2)
    assert pays(counting(), context, enough, 5)


def test_forms_that_take_long_are_not_made() -> None:
    """In contexts of 20 columns, 100 arms take 11 million products a member. So do ten members that
    count for 10 arms, of which three sets have forms until the head learns."""
    assert pays(counting(3), 20, 64, 100)
    assert not pays(counting(4), 20, 64, 100)
    many = counting(10)
    assert [pays(many, 20, 64, 10, seed) for seed in range(4)] == [True, True, True, False]
    assert [pays(many, 20, 64, 10, seed) for seed in range(4)] == [True, True, True, False]


def test_of_many_sets_of_arms_the_latest_are_known() -> None:
    found = counting()
    for seed in range(averaged_forms.MOST_SETS):
        assert pays(found, 2, 4, 5, seed)
    assert not pays(found, 2, 3, 5, seed=99)
    assert not pays(found, 2, 3, 5, seed=0)


@pytest.mark.parametrize(("context", "arms"), [(2, 5), (14, 60)])
def test_the_estimate_of_memory_is_no_less_than_what_forms_take(context: int, arms: int) -> None:
    """Of a few arms, each set has forms; of many, the first sets."""
    view, names = view_of(context, 2), [f"arm {number}" for number in range(arms)]
    head, width = learned(view, world(view, 40, 1)), Rows(view, "auto").shared_width
    for seed in range(averaged_forms.MOST_SETS):
        head.spread(asked(view, 64, arms, seed), names)
    known = [each.forms for each in head._counting._asked.values()]
    made = [forms for forms in known if forms is not None]
    assert (len(made) == averaged_forms.MOST_SETS) == (arms == 5)
    taken = sum(forms._quadratic.size + forms._linear.size for forms in made)
    estimate = averaged_forms.most_numbers(arms, 1 + context, width)
    assert estimate / 3 < taken < estimate


# -- decided by forms, and audited -----------------------------------------------------------------


def visits(seed: int) -> Callable[[Services], Any]:
    """Batches of decisions by `auto`, and what came of some: one arm or three, the catalogue or
    some arms of it, of which several are alike."""

    async def play(services: Services) -> None:
        await define(services, shop(auto={"kind": "auto", "share": 1.0}))
        rng = Random(seed)
        for _ in range(12):
            asked_for = [
                SelectRequest(
                    {"pet": rng.choice(["cat", "dog"]), "age": rng.gauss(3.0, 2.0)},
                    "shop",
                    "auto",
                    arms=rng.choice([None, None, ["toy2", "food1", "bed1"]]),
                    top_k=rng.choice([1, 1, 1, 3]),
                )
                for _ in range(rng.randrange(1, 20))
            ]
            answers = await asyncio.gather(*map(services.selector.select, asked_for))
            for answer in answers[: rng.randrange(6)]:
                rewards = {arm.arm: float(rng.random() < 0.4) for arm in answer.decision.shown}
                await services.settlements.reward(RewardRequest(answer.token, rewards=rewards))

    return play


@pytest.mark.parametrize("live_enough", [1, NEVER])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_an_audit_derives_decisions_by_forms_and_by_members_alike(
    live_enough: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = list[Forms]()

    class Made(Forms):
        def __init__(self, *told: Any) -> None:
            super().__init__(*told)
            made.append(self)

    monkeypatch.setattr("service.bandits.heads.averaged.Forms", Made)
    monkeypatch.setattr(averaged_forms, "ASKED_ENOUGH", live_enough)
    store = MemoryStore()
    run_virtual(live(store, visits(seed), Random(seed)))
    assert (len(made) > 5) == (live_enough == 1)
    assert len(decisions_of(store)) > 60
    for enough in (1, 4, NEVER):
        monkeypatch.setattr(averaged_forms, "ASKED_ENOUGH", enough)
        found = audited(store)
        assert found.kept == []
        assert (found.underived, found.clean) == (0, True)
