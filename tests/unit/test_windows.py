"""Caps and floors over a window: paced shares, counts that are never passed, what a log counts."""

import asyncio
from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np
import pytest

from service.bandits.constraints.window import affordable, paced_cap, paced_floor
from service.definition.experiment import Definition
from service.definition.reward_request import RewardRequest
from service.definition.select_request import Envelope, SelectRequest
from service.errors import Conflict, NoEligibleArm
from service.http.services import Services
from service.log.stores import Store
from service.log.stores.memory import MemoryStore
from service.offline.audit import Audit
from service.settings import Settings
from service.state.decisions import decode_decision
from service.state.events import Exposed, decode_event
from service.state.exposure import Exposure
from service.state.fold import State
from tests.support.clock import clock_of_loop, run_virtual
from tests.support.service import virtual_services
from tests.support.stores import Disk, SharedStore

ARMS = ["best", "good", "fair", "poor"]
CLICKS = {"best": 0.8, "good": 0.4, "fair": 0.3, "poor": 0.05}


def definition(kind: str = "linucb", **rules: Any) -> Definition:
    return Definition.model_validate(
        {
            "features": {"arm": {"name": {"type": "categorical", "values": ARMS}}},
            "arms": {arm: {"name": arm} for arm in ARMS},
            "policies": {"main": {"kind": kind}},
            "rules": rules,
        }
    )


def cap(share: float, every: Any, **more: Any) -> dict[str, Any]:
    return {"cap": {"arm": "best", "share": share, "every": every, **more}}


async def opened(store: Store, *, begins: Definition | None = None, seed: int = 1) -> Services:
    services = virtual_services(Settings(store="memory://"), store, rng=Random(seed))
    await services.log.open()
    if begins is not None:
        await services.admin.define("shop", begins, "")
    return services


async def shown(services: Services, rng: Random, slots: int = 1) -> list[str]:
    """Decide once and report what a visitor does."""
    answer = await services.selector.select(SelectRequest({}, "shop", top_k=slots))
    arms = [arm.arm for arm in answer.decision.shown]
    rewards = {arm: float(rng.random() < CLICKS[arm]) for arm in arms}
    await services.settlements.reward(RewardRequest(answer.token, rewards=rewards))
    return arms


def state_of(services: Services) -> State:
    state = services.log.replicas.state("shop")
    assert state is not None
    return state


# -- pacing ----------------------------------------------------------------------------------------


def test_a_cap_follows_the_share_so_far_and_stops_before_its_window_is_full() -> None:
    shown_so_far = np.array([0, 1, 2, 3])
    by_time = paced_cap(0.2, shown_so_far, 10, None)
    assert by_time == pytest.approx([1.0, 0.6, 0.2, 0.0])
    assert paced_cap(0.2, shown_so_far, 10, 15) == pytest.approx([1.0, 0.6, 0.2, 0.0])
    assert paced_cap(0.2, np.array([2, 3]), 14, 15) == pytest.approx(
        [0.2 + 4 * (0.2 - 2 / 14), 0.0]
    )
    assert paced_cap(0.2, np.array([0]), 0, 15) == pytest.approx([1.0])


def test_a_floor_runs_ahead_and_takes_all_that_is_left_where_it_must() -> None:
    assert paced_floor(0.1, np.array([0, 1, 2, 9]), 10, None) == pytest.approx(
        [0.5, 0.14, 0.025, 0.025]
    )
    assert paced_floor(0.1, np.array([5, 9]), 95, 100) == pytest.approx([1.0, 0.2])
    assert paced_floor(0.1, np.array([10]), 95, 100)[0] < 0.15


def test_floors_that_take_too_much_lose_what_they_have_above_their_shares_first() -> None:
    paced, shares = np.array([0.5, 0.5, 0.05]), np.array([0.1, 0.3, 0.1])
    assert affordable(paced, shares, 2.0) == pytest.approx([0.5, 0.5, 0.05])
    assert affordable(paced, shares, 0.75) == pytest.approx([0.3, 0.4, 0.05])
    assert affordable(paced, shares, 0.225) == pytest.approx([0.05, 0.15, 0.025])


# -- shares ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["linucb", "squarecb", "auto"])
def test_no_window_is_over_its_cap_or_under_its_floor(kind: str) -> None:
    rules = {
        "most": cap(0.2, 200),
        "least": {"floor": {"arm": "poor", "share": 0.05, "every": 200}},
    }

    async def run() -> None:
        services, rng, arms = (
            await opened(MemoryStore(), begins=definition(kind, **rules)),
            Random(2),
            list[str](),
        )
        for _ in range(1_000):
            arms += await shown(services, rng)
        windows = [arms[start : start + 200] for start in range(0, 1_000, 200)]
        assert all(window.count("best") <= 40 for window in windows)
        assert all(window.count("poor") >= 10 for window in windows)
        assert min(window.count("best") for window in windows) >= 30
        await services.log.close()

    run_virtual(run())


def test_a_share_of_a_time_is_paced_and_begins_anew_with_the_next_one() -> None:
    async def run() -> None:
        services, rng = (
            await opened(MemoryStore(), begins=definition(most=cap(0.3, "1h"))),
            Random(2),
        )
        arms = list[str]()
        for number in range(600):
            arms += await shown(services, rng)
            if number >= 100:
                assert arms.count("best") <= 0.3 * 1.02 * len(arms)
        clock_of_loop().skip(3_600)
        before = len(arms)
        arms += await shown(services, rng)
        assert arms[before:] == ["best"]  # nothing of this hour was shown yet
        await services.log.close()

    run_virtual(run())


def test_groups_and_segments_count_for_themselves() -> None:
    rules = {"most": {"cap": {"of": "name", "share": 0.4, "every": 100}}}

    async def run() -> None:
        services, rng, arms = (
            await opened(MemoryStore(), begins=definition(**rules)),
            Random(2),
            list[str](),
        )
        for _ in range(300):
            arms += await shown(services, rng)
        for start in (0, 100, 200):
            window = arms[start : start + 100]
            assert max(window.count(arm) for arm in ARMS) <= 40
        await services.log.close()

    run_virtual(run())


# -- counts ----------------------------------------------------------------------------------------


def test_a_count_is_never_passed_not_by_a_pin_nor_in_a_slate() -> None:
    rules = {
        "pinned": {"pin": {"arm": "best", "share": 0.9}},
        "most": {"cap": {"arm": "best", "count": 30, "every": "1h"}},
    }

    async def run() -> None:
        services, rng = await opened(MemoryStore(), begins=definition(**rules)), Random(2)
        for _ in range(3):
            arms = list[str]()
            for _ in range(60):
                arms += await shown(services, rng, slots=2)
            assert arms.count("best") == 30
            clock_of_loop().skip(3_600)
        await services.log.close()

    run_virtual(run())


def test_a_key_of_a_slate_that_counts_made_shorter_has_the_same_answer() -> None:
    rules = {"most": {"cap": {"of": "arm", "count": 1, "every": "day"}}}

    async def run() -> None:
        services, rng = await opened(MemoryStore(), begins=definition(**rules)), Random(2)
        await shown(services, rng, slots=2)
        request, envelope = SelectRequest({}, "shop", top_k=3), Envelope("key")
        first, second = [await services.selector.select(request, envelope) for _ in range(2)]
        assert len(first.decision.shown) == 2
        assert second.decision == first.decision
        await services.log.close()

    run_virtual(run())


def test_where_counts_leave_no_arm_a_request_is_refused_and_a_slate_is_shorter() -> None:
    rules = {"most": {"cap": {"of": "arm", "count": 2, "every": "day"}}}

    async def run() -> None:
        store = MemoryStore()
        services, rng = await opened(store, begins=definition(**rules)), Random(2)
        lengths = [len(await shown(services, rng, slots=3)) for _ in range(3)]
        assert sum(lengths) == 8
        assert lengths == [3, 3, 2]
        report = await Audit(store, "shop").run()
        assert (report.decisions, report.total, report.kept) == (3, 0, [])
        with pytest.raises(NoEligibleArm, match="'most' removed the last 4 arms"):
            await shown(services, rng)
        await services.log.close()

    run_virtual(run())


def test_decisions_of_one_turn_see_what_those_before_them_show() -> None:
    rules = {
        "most": cap(0.2, 100),
        "few": {"cap": {"arm": "good", "count": 9, "every": "day"}},
    }

    async def run() -> None:
        services, rng = await opened(MemoryStore(), begins=definition(**rules)), Random(2)
        for _ in range(300):
            await shown(services, rng)
        clock_of_loop().skip(86_400)
        arms = [arm for [arm] in await asyncio.gather(*(shown(services, rng) for _ in range(90)))]
        assert arms.count("best") <= 20
        assert arms.count("good") <= 9
        await services.log.close()

    run_virtual(run())


# -- what the log counts ---------------------------------------------------------------------------


def counted(rows: Sequence[bytes], events: Sequence[Any]) -> tuple[int, int]:
    """Showings of `best` in the rows, and in the events that count them."""
    in_rows = sum(decode_decision(row).shown[0].arm == "best" for row in rows)
    labels = [
        shown["most"]
        for event in events
        if isinstance(event, Exposed)
        for _, _, shown in event.decisions
    ]
    return in_rows, sum(each == ["best"] for each in labels)


async def rows_of(store: MemoryStore) -> list[bytes]:
    return [row.payload for row in await store.decisions("shop", 0, 10_000)]


async def events_of(store: MemoryStore) -> list[Any]:
    return [decode_event(each.payload) for each in await store.read("shop", 0, 10_000)]


def test_each_row_is_counted_in_its_transaction_and_a_restart_goes_on() -> None:
    store = MemoryStore()

    async def run() -> None:
        arms, begins = list[str](), definition(most=cap(0.2, 100))
        for life in range(4):
            services = await opened(store, begins=None if life else begins, seed=life)
            rng = Random(life)
            for _ in range(50):
                arms += await shown(services, rng)
            window = state_of(services).exposure.windows["most"]
            assert window.decisions == (len(arms) - 1) % 100 + 1
            await services.log.close()
        assert max(arms[:100].count("best"), arms[100:].count("best")) <= 20
        in_rows, in_events = counted(await rows_of(store), await events_of(store))
        assert in_rows == in_events == arms.count("best")

    run_virtual(run())


def test_rows_that_wait_in_memory_are_counted_when_they_are_written() -> None:
    store = Disk()

    async def run() -> None:
        services, arms = await opened(store, begins=definition(most=cap(0.2, 100))), list[str]()
        for number in range(60):
            store.full = 20 <= number < 40
            answer = await services.selector.select(SelectRequest({}, "shop"))
            arms.append(answer.decision.shown[0].arm)
        await asyncio.sleep(10)
        await services.log.committer.drain()
        in_rows, in_events = counted(await rows_of(store), await events_of(store))
        assert in_rows == in_events == arms.count("best")
        assert state_of(services).exposure.windows["most"].decisions == 60
        await services.log.close()

    run_virtual(run())


def test_counts_outlive_a_snapshot_and_rules_that_stay_keep_theirs() -> None:
    async def run() -> None:
        rules = {"most": cap(0.2, 100), "other": cap(0.9, "day")}
        services, rng = await opened(MemoryStore(), begins=definition(**rules)), Random(2)
        for _ in range(30):
            await shown(services, rng)
        state = state_of(services)
        assert State.restore(state.snapshot()).exposure.members() == state.exposure.members()
        changed = definition(**{**rules, "other": cap(0.8, "day")})
        await services.admin.define("shop", changed, "")
        windows = state_of(services).exposure.windows
        assert (windows["most"].decisions, windows["other"].decisions) == (30, 0)
        await services.log.close()

    run_virtual(run())


def test_an_audit_derives_decisions_from_the_counts_that_they_used() -> None:
    store = MemoryStore()
    rules = {
        "most": cap(0.2, 50),
        "least": {"floor": {"of": "name", "is": "poor", "share": 0.1, "every": "1h"}},
        "few": {"cap": {"arm": "good", "count": 9, "every": "day"}},
    }

    async def run() -> None:
        services, rng = await opened(store, begins=definition(**rules)), Random(2)
        for number in range(120):
            await shown(services, rng, slots=1 + number % 2)
        await services.selector.select(SelectRequest({}, "shop", top_k=2), Envelope("key"))
        with pytest.raises(Conflict):
            await services.selector.select(SelectRequest({}, "shop", top_k=3), Envelope("key"))
        await services.log.close()
        report = await Audit(store, "shop").run()
        assert (report.decisions, report.total, report.kept) == (121, 0, [])

    run_virtual(run())


# -- several processes -----------------------------------------------------------------------------


def test_several_processes_share_a_count_and_never_pass_it() -> None:
    store = SharedStore()
    rules = {"most": {"cap": {"arm": "best", "count": 40, "every": "1h"}}}

    async def run() -> None:
        first = await opened(store, begins=definition(**rules), seed=1)
        second = await opened(store, seed=2)
        rng, arms = Random(2), list[str]()
        for number in range(400):
            for services in (first, second):
                await services.log.replicas.follow(seconds=0.0)
            arms += await shown([first, second][number % 2], rng)
        assert 30 <= arms.count("best") <= 40
        windows = [state_of(each).exposure.windows["most"] for each in (first, second)]
        leases = windows[0].leases["best"]
        assert len(leases) == 2
        assert sum(leases.values()) <= 40
        for services in (first, second):
            await services.log.close()

    run_virtual(run())


def test_processes_that_ask_at_once_lease_no_more_than_there_is() -> None:
    exposure = Exposure()
    few = {"cap": {"arm": "best", "count": 40, "every": "1h"}}
    exposure.define(definition(few=few).rules)
    for process, at, given in [("a", 10.0, 30), ("b", 11.0, 10), ("a", 12.0, 0)]:
        before = exposure.windows["few"].leased(at, "best").get(process, 0)
        exposure.lease(at, "few", process, {"best": 30})
        assert exposure.windows["few"].leased(at, "best")[process] == before + given
    exposure.lease(3_700.0, "few", "b", {"best": 30})
    assert exposure.windows["few"].leased(3_700.0, "best") == {"b": 30}
    assert exposure.windows["few"].leased(3_500.0, "best") == {}
    exposure.lease(3_500.0, "few", "a", {"best": 5})  # an hour that is over
    exposure.lease(3_700.0, "gone", "a", {"best": 5})
    assert exposure.windows["few"].leased(3_700.0, "best") == {"b": 30}


def test_a_decision_waits_for_its_part_of_counts_and_is_refused_once_there_is_none() -> None:
    rules = {"most": {"cap": {"of": "arm", "count": 2, "every": "1h"}}}

    async def run() -> None:
        services = await opened(SharedStore(), begins=definition(**rules))
        rng, arms = Random(2), list[str]()
        for _ in range(2 * len(ARMS)):
            arms += await shown(services, rng)
        assert sorted(arms) == sorted(2 * ARMS)
        with pytest.raises(NoEligibleArm):
            await shown(services, rng)
        await services.log.close()

    run_virtual(run())
