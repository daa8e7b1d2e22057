"""The model of processes: its shares add up, and what is said to end is where a core is full."""

import pytest

from service.offline.scaling import (
    COSTS,
    GATHER_S,
    PAGES,
    USED,
    Cost,
    Load,
    cores_of_learner,
    cores_of_process,
    limits,
    processes_for,
)

FLAT = Cost(select=100, reward=50, default=20, follow=(10, 10, 10))
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
