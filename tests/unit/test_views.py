"""What a policy sees of base columns: chosen features, crosses, the constant."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.features.declaration import Features
from service.features.schema import Schema
from service.features.view import View

SCHEMA = Schema(
    Features.model_validate(
        {
            "context": {
                "age": {"type": "numeric"},
                "pet": {"type": "categorical", "values": ["cat", "dog"]},
                "user": {"type": "vector", "size": 2},
            },
            "arm": {
                "item": {"type": "vector", "size": 2},
                "kind": {"type": "categorical", "values": ["food", "toy", "bed"]},
                "tags": {"type": "vector", "size": 3},
            },
        }
    )
)
CONTEXT = SCHEMA.encode_context({"age": 5, "pet": "dog", "user": [2.0, 3.0]})
ARM = SCHEMA.encode_arm({"item": [10.0, 100.0], "kind": "bed", "tags": [7.0, 8.0, 9.0]})
names = st.lists(
    st.sampled_from(
        [
            "intercept",
            *["age", "pet", "user", "item", "kind", "tags"],
            *["pet x kind", "user x item", "age x pet", "user x tags", "age x user x item"],
            *["item x user x kind", "intercept x age"],
        ]
    ),
    min_size=1,
    max_size=6,
    unique=True,
)


def seen(*features: str) -> list[float]:
    view = View(SCHEMA, features)
    rows = view.design(CONTEXT[None], ARM[None])
    assert rows.shape == (1, view.width)
    return rows[0].tolist()


@pytest.mark.parametrize(
    ("feature", "columns"),
    [
        ("intercept", [1.0]),
        ("age", [5.0]),
        ("kind", [0.0, 0.0, 1.0]),
        ("pet x kind", [0.0] * 5 + [1.0]),
        ("kind x pet", [0.0] * 5 + [1.0]),
        ("age x pet", [0.0, 5.0]),
        ("intercept x age", [5.0]),
        ("user x item", [20.0, 300.0]),
        ("user x tags", [14.0, 21.0, 16.0, 24.0, 18.0, 27.0]),
        ("tags x user", [14.0, 21.0, 16.0, 24.0, 18.0, 27.0]),
        ("age x user x item", [100.0, 150.0, 1000.0, 1500.0]),
    ],
)
def test_a_feature_and_a_cross_by_hand(feature: str, columns: list[float]) -> None:
    """Equal-length vectors multiply by element, all else outer: 2 x 3 kinds are 6 columns."""
    assert seen(feature) == columns


def test_the_order_of_the_names_has_no_part_in_that_of_the_columns() -> None:
    for names in permutations(["kind", "age", "intercept", "user x item"]):
        assert seen(*names) == [1, 5, 0, 0, 1, 20, 300]


@given(names, st.integers(1, 5), st.integers(0, 99))
def test_rows_of_base_vectors_equal_the_design(features: list[str], arms: int, seed: int) -> None:
    """What training and the fold see of an event is what the decision scored."""
    rng = np.random.default_rng(seed)
    context, rows = rng.standard_normal(5), rng.standard_normal((arms, 8))
    view = View(SCHEMA, features)
    x = np.hstack([np.tile(context, (arms, 1)), rows])
    assert np.array_equal(view.rows(x), view.design(context[None], rows))


@given(names)
def test_arm_columns_are_those_that_the_view_depends_on(features: list[str]) -> None:
    view = View(SCHEMA, features)
    rng = np.random.default_rng(0)
    context, arm = rng.standard_normal(5) + 3, rng.standard_normal(8) + 3
    for column in range(8):
        changed = arm.copy()
        changed[column] += 1.0
        same = np.array_equal(
            view.design(context[None], arm[None]), view.design(context[None], changed[None])
        )
        assert same == (column not in view.arm_columns)


@pytest.mark.parametrize(
    ("names", "square"),
    [
        (["user x item"], 2),
        (["intercept", "pet", "age"], 3),
        (["pet x item"], 2),
        (["user", "tags"], 5),
    ],
)
def test_a_row_is_expected_to_be_as_long_as_its_numbers_are_many(
    names: list[str], square: int
) -> None:
    """A category counts 1 whatever its values; equal vectors crossed by element count once."""
    assert View(SCHEMA, names).expected_square == square
