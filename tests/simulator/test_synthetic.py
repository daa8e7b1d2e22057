"""A world for an experiment of one's own."""

import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.definition.experiment import Definition
from simulator_client.errors import UsageError
from simulator_client.worlds import make_world
from simulator_client.worlds.synthetic import Synthetic

EXAMPLES = Path(__file__).parents[2] / "service/definition/examples"
SHOP = """
[features.context]
device = { type = "categorical", values = ["phone", "desktop"] }
age = { type = "numeric", min = 18, max = 90 }
member = { type = "boolean", default = false }
city = { type = "hashed", buckets = 16 }
taste = { type = "vector", size = 3 }

[features.arm]
kind = { type = "categorical", values = ["toy", "food"], unknown = "other" }
price = { type = "numeric", center = 10.0, scale = 5.0, default = 10.0 }

[arms]
ball = { kind = "toy", price = 3.5 }
kibble = { kind = "food" }
rope = { kind = "toy", price = 20 }

[policies]
main = { kind = "lints" }
random = { kind = "random" }

[reward]
range = [1.0, 5.0]
default = 1.0
"""


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    path = tmp_path / "shop.toml"
    path.write_text(SHOP)
    return path


def world_of(path: Path, seed: int = 1, **more: Any) -> Any:
    return make_world("synthetic", seed, data=path, **more)


@pytest.mark.parametrize("effects", ["linear", "crosses", "net"])
@pytest.mark.parametrize("clicks", [0.02, 0.3])
def test_a_random_arm_is_clicked_at_the_rate_and_the_best_one_more_often(
    shop: Path, effects: str, clicks: float
) -> None:
    world = world_of(shop, effects=effects, clicks=clicks)
    [reference] = world.references(1_000)
    assert reference.uniform_ctr == pytest.approx(clicks, rel=1e-6)
    assert reference.oracle_ctr > 1.3 * clicks
    stream = world.stream(7)
    outcomes = [world.outcome(visit, ["ball"]) for visit in map(stream.visit, range(2_000))]
    uniform = np.mean([outcome.uniform for outcome in outcomes])
    assert uniform == pytest.approx(clicks, rel=0.1)
    clicked = np.mean([outcome.clicks for outcome in outcomes])
    expected = np.mean([outcome.expected for outcome in outcomes])
    assert clicked == pytest.approx(expected, abs=4 * (expected / 2_000) ** 0.5)
    assert all(outcome.best >= outcome.expected for outcome in outcomes)


def test_effects_depend_on_the_visitor_only_where_they_cross(shop: Path) -> None:
    def best_arms(effects: str) -> set[str]:
        world = world_of(shop, effects=effects, clicks=0.2)
        visits = map(world.stream(3).visit, range(300))
        chances = [world.chances(visit.context) for visit in visits]
        return {max(each, key=lambda arm: each[arm]) for each in chances}

    assert len(best_arms("linear")) == 1
    assert len(best_arms("crosses")) > 1
    assert len(best_arms("net")) > 1


def test_visits_are_of_the_definition_and_the_same_for_a_seed(shop: Path) -> None:
    world = world_of(shop)
    first, again, other = world.stream(5), world.stream(5), world.stream(6)
    visits = [first.visit(index) for index in range(50)]
    assert visits[:20] == [again.visit(index) for index in range(20)]
    assert again.visit(1_100) == world.stream(5).visit(1_100)
    assert visits != [other.visit(index) for index in range(50)]
    for visit in visits:
        context = world.request(visit)["context"]
        assert context.keys() == {"device", "age", "member", "city", "taste"}
        assert 18 <= context["age"] <= 90
        assert context["device"] in ("phone", "desktop")
        assert len(context["taste"]) == 3


def test_the_definition_is_that_of_the_file(shop: Path) -> None:
    world = world_of(shop)
    defined = world.definition(["main", "random", "linucb"])
    parsed = Definition.model_validate(defined)
    written = {k: v for k, v in tomllib.loads(SHOP).items() if k != "policies"}
    assert {key: defined[key] for key in written} == written
    assert list(parsed.policies) == ["main", "random", "linucb"]
    stream = world.stream(1)
    visit = stream.visit(0)
    rewards = {world.outcome(stream.visit(n), ["ball"]).feedback["reward"] for n in range(300)}
    assert rewards == {1.0, 5.0}
    with pytest.raises(UsageError, match="'bone', which the file has not"):
        world.outcome(visit, ["bone"])


@pytest.mark.parametrize("example", sorted(EXAMPLES.glob("*.toml")), ids=lambda path: path.stem)
def test_every_example_has_a_world(example: Path) -> None:
    world = world_of(example)
    assert isinstance(world, Synthetic)
    assert len(world.groups) <= 14
    Definition.model_validate(world.definition(["linucb"]))


def test_arms_without_features_are_told_apart_by_their_ids(tmp_path: Path) -> None:
    path = tmp_path / "bare.toml"
    path.write_text('[arms]\na = {}\nb = {}\n[features.context]\nage = {type = "numeric"}\n')
    chances = [world_of(path, seed).chances({"age": age}) for seed in (1, 2) for age in (-1, 1)]
    assert len({tuple(each.values()) for each in chances}) == 4


@pytest.mark.parametrize(
    ("text", "told"),
    [("[arms]\na = {}\n", "two arms or more"), ("arms =", "no experiment file")],
)
def test_what_does_not_fit_is_refused(shop: Path, text: str, told: str) -> None:
    shop.write_text(text)
    with pytest.raises(UsageError, match=told):
        make_world("synthetic", 1, data=shop)
    with pytest.raises(UsageError, match="are for world synthetic"):
        make_world("zooplus", 1, clicks=0.1)
