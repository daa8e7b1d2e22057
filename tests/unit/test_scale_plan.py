"""The model of processes: its shares add up, and what is said to end is where a core is full."""

import pytest

from service.offline.planning import StoragePlan, StoreKind
from service.offline.scaling import (
    COSTS,
    GATHER_S,
    PAGES,
    PROCESS_BYTES,
    USED,
    Cost,
    Load,
    ScalePlan,
    cores_of_decider,
    cores_of_learner,
    cores_of_process,
    deciders_for,
    limits,
    processes_for,
    scale,
)

FLAT = Cost(select=100, reward=50, default=20, follow=(10, 10, 10), publish=1_000, read=2_000)
LOAD = Load(selects=10_000, rewards=2_000, defaults=8_000)


def test_one_process_follows_nobody_and_more_share_all_but_the_following() -> None:
    alone = cores_of_process(FLAT, LOAD, 1)
    assert alone == pytest.approx((10_000 * 100 + 2_000 * 77 + 8_000 * 20) / 1e6)
    for processes in (2, 5):
        followed = 10_000 * (1 - 1 / processes) * 10 / 1e6
        assert cores_of_process(FLAT, LOAD, processes) == pytest.approx(
            alone / processes + followed
        )


def test_so_many_processes_are_enough_and_one_less_is_not() -> None:
    found = processes_for(FLAT, LOAD)
    assert found is not None
    assert cores_of_process(FLAT, LOAD, found) <= USED < cores_of_process(FLAT, LOAD, found - 1)
    assert processes_for(FLAT, LOAD.times(8)) is None  # following alone takes 0.8 of a core


def test_deciders_share_decisions_and_rewards_and_each_reads_what_the_learner_publishes() -> None:
    assert cores_of_learner(FLAT, LOAD) == pytest.approx(0.02 + (2_000 * 10 + 8_000 * 20) / 1e6)
    own = (10_000 * 100 + 2_000 * 77) / 1e6
    for deciders in (1, 4):
        assert cores_of_decider(FLAT, LOAD, deciders) == pytest.approx(own / deciders + 0.04)
    found = deciders_for(FLAT, LOAD)
    assert found is not None
    assert cores_of_decider(FLAT, LOAD, found) <= USED < cores_of_decider(FLAT, LOAD, found - 1)
    assert deciders_for(FLAT, LOAD.times(4)) is None  # the learner alone takes 0.74 of a core


def planned(selects: float, store: StoreKind = "redis") -> ScalePlan:
    """Plan for `auto`, of whose decisions a tenth is rewarded."""
    storage = StoragePlan("shop", store, selects, 0.1, 30.0, [], [])
    return scale("auto", Load(selects, selects / 10, 0.9 * selects), storage)


@pytest.mark.parametrize(
    ("selects", "store", "said"),
    [
        (100, "redis", "one process"),
        (5_000, "sqlite", "processes that all fold (--workers)"),
        (5_000, "redis", "a learner and 2 deciders (--role decider)"),
        (50_000, "redis", "services with experiments and a store of their own, each a learner and"),
    ],
)
def test_what_works_is_named_for_each_load(selects: float, store: StoreKind, said: str) -> None:
    found = planned(selects, store)
    assert said in found.text()
    assert (found.deciders is None) == (store == "sqlite")


def test_services_share_what_no_log_takes_and_each_takes_its_part() -> None:
    found, cost = planned(50_000), COSTS["auto"]
    assert found.by == "deciders"
    assert found.deciders is not None
    part = found.load.times(1 / found.services)
    learner = cores_of_learner(cost, part)
    assert learner <= USED < cores_of_learner(cost, found.load.times(1 / (found.services - 1)))
    each = learner + found.deciders * cores_of_decider(cost, part, found.deciders)
    assert found.cores == pytest.approx(found.services * each)
    assert found.memory == found.services * (found.deciders + 1) * PROCESS_BYTES


@pytest.mark.parametrize("kind", COSTS)
def test_an_event_costs_what_was_measured_at_each_page_and_less_the_more_come(kind: str) -> None:
    cost = COSTS[kind]  # type: ignore[index]
    assert [cost.following(page) for page in PAGES] == [*cost.follow]
    assert cost.following(0) == cost.follow[0]
    assert cost.following(1_000) == cost.follow[-1]
    assert cost.follow[1] > cost.following(30) > cost.follow[2]


def test_what_ends_is_where_a_core_is_used_as_planned() -> None:
    found = {one.what.partition(":")[0]: one.selects for one in limits(FLAT, LOAD, "redis")}
    following, learner = (
        LOAD.times(found[name] / LOAD.selects) for name in ("following", "learning")
    )
    assert following.settled * FLAT.following(GATHER_S * following.settled) / 1e6 == (
        pytest.approx(USED)
    )
    assert cores_of_learner(FLAT, learner) == pytest.approx(USED)
    assert [one.selects for one in limits(FLAT, LOAD, "redis")] == sorted(found.values())
    assert not any("deciders" in one.what for one in limits(FLAT, LOAD, "sqlite"))
