"""Any table is a world: its columns a schema, its rows visits, its classes arms."""

import gzip
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.learning.peers.base import standardised
from service.definition.experiment import Definition
from service.features.declaration import Categorical, Numeric
from service.features.schema import LARGEST_MEASURED, Schema
from simulator_client.errors import UsageError
from simulator_client.worlds import make_world
from simulator_client.worlds.classification import Classification

TABLE = """\
height,colour,flag,same,weird name!,intercept,arm,label
1,red,0,x,1e3,a,p,one
2,blue,1,x,2e3,b,q,two
3,red,0,x,3e3,a,p,two
4,,1,x,4e3,b,q,three
"""
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "table.csv"
    path.write_text(TABLE)
    return path


def mushrooms(folder: Path, name: str = "mushroom.csv") -> Path:
    path = folder / name
    path.write_text("odor,label\n" + "foul,poisonous\nnone,edible\nnone,edible\nfoul,poisonous\n")
    return path


def test_columns_become_a_schema(table: Path) -> None:
    """Numbers have no scale, which policies measure; two numbers stay numbers; constants go."""
    definition = Classification(table).definition(["random"])
    context = definition["features"]["context"]
    assert context["height"] == {"type": "numeric"}
    assert context["colour"] == {"type": "categorical", "values": ["", "blue", "red"]}
    assert context["flag"] == {"type": "numeric"}
    assert list(context) == ["height", "colour", "flag", "weird_name_", "intercept_2", "arm_2"]
    assert all(NAME.fullmatch(name) for name in context)
    assert definition["features"]["arm"] == {
        "arm": {"type": "categorical", "values": ["one", "three", "two"]}
    }
    assert definition["arms"] == {arm: {"arm": arm} for arm in ("one", "three", "two")}
    assert definition["reward"] == {"range": [0.0, 1.0]}


def test_gzip_and_another_label(table: Path, tmp_path: Path) -> None:
    packed = tmp_path / "packed"
    packed.write_bytes(gzip.compress(TABLE.encode()))
    assert Classification(packed).definition([]) == Classification(table).definition([])
    assert make_world("classification", 42, data=table, label="arm").groups == ("p", "q")
    with pytest.raises(UsageError, match="'' is no name of a class"):
        make_world("classification", 42, data=table, label="colour")
    with pytest.raises(UsageError, match="labels edible and poisonous alone"):
        make_world("classification", 42, data=table, risky=True)


def test_a_right_class_pays_1(table: Path) -> None:
    world = Classification(table)
    visit = world.stream(1).visit(0)._replace(row=2)
    third = pytest.approx(1 / 3)
    assert world.request(visit)["context"] == {
        "height": 3.0, "colour": "red", "flag": 0.0, "weird_name_": 3000.0, "intercept_2": "a",
        "arm_2": "p",
    }  # fmt: skip
    assert world.outcome(visit, ["two"]) == ({"reward": 1.0}, 1.0, 1.0, 1.0, third, "two")
    assert world.outcome(visit, ["one"]) == ({"reward": 0.0}, 0.0, 0.0, 1.0, third, "one")
    (bounds,) = world.references(10)
    assert (bounds.oracle_ctr, bounds.uniform_ctr) == (1.0, third)
    with pytest.raises(UsageError, match="arm 'four'"):
        world.outcome(visit, ["four"])


def test_rows_come_in_numpys_permutation_and_then_in_the_next(table: Path) -> None:
    world = Classification(table)
    rng = np.random.default_rng(7)
    order = [*rng.permutation(4), *rng.permutation(4), *rng.permutation(4)]
    stream = world.stream(7)
    assert [stream.visit(k).row for k in range(12)] == order
    assert world.stream(7).visit(11) == stream.visit(11)
    assert world.stream(8).visit(0).uniform != stream.visit(0).uniform


def test_mushrooms_pay_as_published(tmp_path: Path) -> None:
    """Row 0 is poisonous: eating pays 5 or -35 by the uniform, -15 on average; passing 0."""
    world = Classification(mushrooms(tmp_path))
    assert world.arms == ["eat", "pass"]
    bad = world.stream(1).visit(0)._replace(row=0, uniform=0.49)
    assert world.outcome(bad, ["eat"]) == ({"reward": 5.0}, 5.0, -15.0, 0.0, -7.5, "eat")
    worse = bad._replace(uniform=0.5)
    assert world.outcome(worse, ["eat"]) == ({"reward": -35.0}, -35.0, -15.0, 0.0, -7.5, "eat")
    assert world.outcome(bad, ["pass"]) == ({"reward": 0.0}, 0.0, 0.0, 0.0, -7.5, "pass")
    good = bad._replace(row=1)
    assert world.outcome(good, ["eat"]) == ({"reward": 5.0}, 5.0, 5.0, 5.0, 2.5, "eat")
    assert world.outcome(good, ["pass"]) == ({"reward": 0.0}, 0.0, 0.0, 5.0, 2.5, "pass")
    (bounds,) = world.references(10)
    assert (bounds.oracle_ctr, bounds.uniform_ctr) == (2.5, -2.5)
    assert world.definition([])["reward"] == {"range": [-35.0, 5.0]}
    assert world.definition(["popularity"])["policies"] == {"popularity": {"kind": "popularity"}}
    other = mushrooms(tmp_path, "fungi.csv")
    assert Classification(other).arms == ["edible", "poisonous"]
    assert make_world("classification", 1, data=other, risky=True).reward_range == (-35.0, 5.0)


def test_policies_are_disjoint_where_a_head_an_arm_is_the_form(table: Path) -> None:
    names = ["linucb", "lints", "greedy", "epsilon_greedy", "squarecb", "neural_linear_ts",
             "neural_linucb", "greedy_neural", "greedy_popularity", "neural_ucb", "popularity",
             "random", "bootstrap_ensemble", "static"]  # fmt: skip
    told = Classification(table).definition(names)["policies"]
    assert [name for name, policy in told.items() if policy.get("disjoint")] == names[:8]


@pytest.mark.parametrize(
    ("values", "kind"),
    [(11_000, "hashed"), (5_000, "hashed"), (3_000, "categorical"), (900, "categorical")],
)
def test_a_column_with_too_many_values_is_hashed(tmp_path: Path, values: int, kind: str) -> None:
    """A policy may see 4,096 columns in all."""
    path = tmp_path / "wide.csv"
    rows = "".join(f"v{k},{'ab'[k % 2]}\n" for k in range(values))
    path.write_text("many,label\n" + rows)
    context = Classification(path).definition([])["features"]["context"]
    assert context["many"]["type"] == kind


@pytest.mark.parametrize(
    ("largest", "kind"), [(LARGEST_MEASURED, "numeric"), (1.1 * LARGEST_MEASURED, "categorical")]
)
def test_numbers_that_the_service_refuses_are_categories(
    tmp_path: Path, largest: float, kind: str
) -> None:
    path = tmp_path / "large.csv"
    path.write_text(f"far,label\n1,a\n-{largest!r},b\n")
    world = Classification(path)
    definition = world.definition(["random"])
    assert definition["features"]["context"]["far"]["type"] == kind
    schema = Schema(Definition.model_validate(definition).features)
    for row in range(2):
        schema.encode_context(world.columns.row(row))


def test_peers_see_numbers_standardised_by_all_rows(table: Path) -> None:
    """1, 2, 3, 4: mean 2.5, deviation sqrt(1.25)."""
    context = standardised(Classification(table)).features.context
    height, colour = context["height"], context["colour"]
    assert isinstance(height, Numeric)
    assert (height.center, height.scale) == (2.5, pytest.approx(1.25**0.5))
    assert isinstance(colour, Categorical)
    assert colour.values == ["", "blue", "red"]


def test_peers_see_tiny_numbers_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "tiny.csv"
    path.write_text("tiny,label\n1e-200,a\n-1e-200,b\n")
    tiny = standardised(Classification(path)).features.context["tiny"]
    assert isinstance(tiny, Numeric)
    assert (tiny.center, tiny.scale) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a,b\n1,2\n", "no column 'label'; it has: a, b"),
        ("a,label\n1,x\n2,x\n", "1 classes"),
        ("a,label\n1,x\n1,y\n", "no column that varies"),
        ("a,label\n1,x\n1\n", "line 3: 1 columns, not 2"),
        ("a,a,label\n1,2,x\n", "two columns of the same name"),
        ("a,label\n", "no rows"),
        ("", "no rows"),
        ("\x1f\x8bnonsense", "compression method"),
        ("\x1f\x8b\x08" + 7 * "\x00" + "\x07", "not a CSV file"),
        (None, "No such file"),
    ],
)
def test_a_table_that_is_none_is_said(tmp_path: Path, text: str | None, said: str) -> None:
    path = tmp_path / "table.csv"
    if text is not None:
        path.write_bytes(text.encode("latin-1"))
    with pytest.raises(UsageError, match=said):
        Classification(path)


@pytest.mark.parametrize(
    ("world", "asked", "said"),
    [
        ("mars", {}, "unknown world 'mars'; known: classification, logged"),
        ("classification", {}, "needs --data"),
        ("logged", {}, "needs --data FILE, a log in the Open Bandit form"),
        ("synthetic", {}, "needs --data FILE, an experiment file"),
        ("synthetic", {"shock_at": 1, "data": Path()}, "no market shock"),
        ("classification", {"shock_at": 1, "data": Path()}, "no market shock"),
        ("logged", {"shock_at": 1, "data": Path()}, "no market shock"),
        ("ranking", {"shock_at": 1}, "no market shock"),
        ("zooplus", {"data": Path()}, "world zooplus reads no data"),
        ("zooplus", {"risky": True}, "--label and --risky are for world classification"),
    ],
)
def test_a_world_refuses_what_it_does_not_have(world: str, asked: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        make_world(world, 42, **asked)
