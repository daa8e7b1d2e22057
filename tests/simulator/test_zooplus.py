"""The shop is the published one, and every policy meets the same visits."""

import numpy as np
import pytest

from simulator_client.errors import UsageError
from simulator_client.worlds.zooplus import BLOCK_VISITS, CATEGORIES, Zooplus


def test_seed_42_is_the_published_shop() -> None:
    world = Zooplus(42)
    assert world.personas[0] == "new_puppy_parent"
    assert world.categories[4] == "Dog Toy"
    assert world.categories[3] == "Cat Toy"
    assert (len(world.categories), len(world.personas)) == (50, 1000)
    assert all(world.categories.count(category) == 10 for category in CATEGORIES)


@pytest.mark.parametrize(
    ("shock_at", "bounds"),
    [(None, {0: 0.51105}), (0, {0: 0.53655}), (50, {0: 0.51105, 50: 0.53655}), (200, {0: 0.51105})],
)
def test_the_oracle_changes_at_the_shock(shock_at: int | None, bounds: dict[int, float]) -> None:
    references = Zooplus(42, shock_at=shock_at).references(200)
    assert {each.from_visit: each.oracle_ctr for each in references} == pytest.approx(bounds)
    if shock_at != 0:
        assert references[0].uniform_ctr == pytest.approx(0.2106, abs=5e-5)


def test_a_visit_is_the_same_wherever_a_run_starts() -> None:
    world = Zooplus(42)
    from_the_start = world.stream(7)
    visits = [from_the_start.visit(k) for k in range(2 * BLOCK_VISITS)]
    resumed = world.stream(7)
    for k in (2 * BLOCK_VISITS - 1, BLOCK_VISITS, BLOCK_VISITS - 1, 0):
        assert resumed.visit(k) == visits[k]
    assert world.stream(8).visit(0) != visits[0]


def test_clicks_come_as_often_as_their_chance() -> None:
    """40,000 visits of a fixed product: within 4 standard errors of the chance, per persona."""
    world = Zooplus(42)
    stream = world.stream(1)
    arm = str(world.categories.index("Dog Toy"))
    clicks: dict[str, list[float]] = {}
    for k in range(40_000):
        visit = stream.visit(k)
        clicks.setdefault(world.personas[visit.user], []).append(world.outcome(visit, [arm]).clicks)
    chances = {"new_puppy_parent": 0.5, "cat_connoisseur": 0.02, "budget_shopper": 0.15,
               "fish_hobbyist": 0.02}  # fmt: skip
    for persona, p in chances.items():
        error = np.sqrt(p * (1 - p) / len(clicks[persona]))
        assert np.mean(clicks[persona]) == pytest.approx(p, abs=4 * error)


def test_outcome_of_a_visit() -> None:
    """User 0 parents a puppy: a Dog Toy .50, a Cat Toy .05; after the shock .10 and .02 of .60."""
    world = Zooplus(42, shock_at=10)
    visit = world.stream(1).visit(0)._replace(user=0, uniform=0.3)
    any_arm = pytest.approx((0.4 + 0.5 + 0.1 + 0.05 + 0.02) / 5)
    assert world.outcome(visit, ["4"]) == ({"reward": 1.0}, 1.0, 0.5, 0.5, any_arm, "Dog Toy")
    assert world.outcome(visit, ["3"]) == ({"reward": 0.0}, 0.0, 0.05, 0.5, any_arm, "Cat Toy")
    later = visit._replace(number=10)
    any_arm = pytest.approx((0.05 + 0.1 + 0.01 + 0.02 + 0.6) / 5)
    assert world.outcome(later, ["4"]) == ({"reward": 0.0}, 0.0, 0.1, 0.6, any_arm, "Dog Toy")
    assert world.request(visit) == {"context": {"persona": "new_puppy_parent"}}


def test_what_the_world_does_not_have_is_said() -> None:
    world = Zooplus(42)
    with pytest.raises(UsageError, match=r"unknown policy 'bogus'.*known: auto, linucb"):
        world.definition(["linucb", "bogus"])
    with pytest.raises(UsageError, match="arm 'x'"):
        world.outcome(world.stream(1).visit(0), ["x"])
