"""Named features to base columns; numbers within bounds."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from service.errors import Invalid
from service.features.declaration import CLIP, Features
from service.features.schema import Schema, width


def schema(context: dict[str, Any], arm: dict[str, Any] | None = None, crosses: Any = ()) -> Schema:
    return Schema(
        Features.model_validate({"context": context, "arm": arm or {}, "crosses": list(crosses)})
    )


def encoded(feature: dict[str, Any], value: Any) -> list[float]:
    return schema({"f": feature}).encode_context({"f": value}).tolist()


def faults(feature: dict[str, Any], values: dict[str, Any]) -> list[tuple[str, str]]:
    with pytest.raises(Invalid) as caught:
        schema({"f": feature}).encode_context(values)
    return sorted((fault.path, fault.message) for fault in caught.value.faults)


CATEGORICAL = {"type": "categorical", "values": ["cat", "dog"]}
OTHER = CATEGORICAL | {"unknown": "other"}
NUMERIC = {"type": "numeric", "center": 10.0, "scale": 4.0}
VECTOR = {"type": "vector", "size": 2, "center": 1.0, "scale": 2.0}
HASHED = {"type": "hashed", "buckets": 8}
AGE: dict[str, Any] = {"type": "numeric", "center": 40.0, "scale": 10.0}
IMAGE: dict[str, Any] = {"type": "vector", "size": 2, "scale": 2.0}


@pytest.mark.parametrize(
    ("feature", "value", "columns"),
    [
        (NUMERIC, 16, [1.5]),
        (NUMERIC, 8.0, [-0.5]),
        ({"type": "boolean"}, True, [1.0]),
        ({"type": "boolean"}, False, [0.0]),
        (CATEGORICAL, "cat", [1.0, 0.0]),
        (CATEGORICAL, "dog", [0.0, 1.0]),
        (OTHER, "dog", [0.0, 1.0, 0.0]),
        (OTHER, "axolotl", [0.0, 0.0, 1.0]),
        (VECTOR, [1.0, 5.0], [0.0, 2.0]),
        (AGE | {"clip": 3.0}, 70.0, [3.0]),
        (AGE | {"clip": 3.0}, 70.1, [3.0]),
        (AGE | {"clip": 3.0}, 1e308, [3.0]),
        (AGE | {"clip": 3.0}, -1e308, [-3.0]),
        (AGE | {"clip": 3.0}, 10**18, [3.0]),
        (AGE | {"clip": 3.0}, 69.0, [2.9]),
        (IMAGE | {"clip": 1.5}, [9e9, -2.0], [1.5, -1.0]),
        (IMAGE | {"clip": 1.5}, [1e308, -1e308], [1.5, -1.5]),
        (AGE | {"min": 0.0, "max": 120.0}, 120.0, [8.0]),
        (AGE | {"min": 0.0, "clip": 2.0}, 1e9, [2.0]),
    ],
)
def test_each_type_has_its_columns(feature: dict, value: Any, columns: list[float]) -> None:
    assert encoded(feature, value) == columns
    assert width(schema({"f": feature}).features.context["f"]) == len(columns)


@pytest.mark.parametrize(
    ("feature", "columns"),
    [
        (NUMERIC | {"default": 14.0}, [1.0]),
        ({"type": "boolean", "default": True}, [1.0]),
        (CATEGORICAL | {"default": "dog"}, [0.0, 1.0]),
        (OTHER | {"default": "none of them"}, [0.0, 0.0, 1.0]),
    ],
)
def test_a_missing_value_takes_the_default(feature: dict, columns: list[float]) -> None:
    assert schema({"f": feature}).encode_context({}).tolist() == columns


@pytest.mark.parametrize("feature", [NUMERIC, CATEGORICAL, OTHER, VECTOR, HASHED])
def test_a_missing_value_without_a_default_is_refused(feature: dict) -> None:
    assert faults(feature, {}) == [("context.f", "is missing")]
    assert faults(feature, {"f": None}) == [("context.f", "is missing")]


@pytest.mark.parametrize(
    ("feature", "value", "message"),
    [
        (NUMERIC, "16", "must be a number"),
        (NUMERIC, True, "must be a number"),
        (NUMERIC, [1.0], "must be a number"),
        (NUMERIC, float("nan"), "must be finite"),
        (NUMERIC, float("-inf"), "must be finite"),
        ({"type": "numeric"}, 1e200, "must lie within 1e+15 of its center, in units of its scale"),
        ({"type": "boolean"}, 1, "must be true or false"),
        ({"type": "boolean"}, "true", "must be true or false"),
        (CATEGORICAL, "axolotl", "is not one of the known values: 'cat', 'dog'"),
        (CATEGORICAL, 1.0, "must be a string"),
        (HASHED, ["a"], "must be a string"),
        (VECTOR, [1.0], "must be a list of 2 numbers"),
        (VECTOR, 1.0, "must be a list of 2 numbers"),
        (VECTOR, [1.0, float("inf")], "must be finite"),
        (
            {"type": "vector", "size": 2},
            [1.0, -1e200],
            "must lie within 1e+15 of its center, in units of its scale",
        ),
        (AGE | {"min": 0.0}, -0.1, "must be at least 0"),
        (AGE | {"max": 120.0, "clip": 1.0}, 120.5, "must be at most 120"),
        (IMAGE | {"min": -1.0}, [0.0, -1.5], "must be at least -1"),
        (IMAGE | {"max": 1.0}, [2, 0.0], "must be at most 1"),
    ],
)
def test_a_wrong_value_is_refused_with_its_path(feature: dict, value: Any, message: str) -> None:
    assert faults(feature, {"f": value}) == [("context.f", message)]


@given(
    st.floats() | st.sampled_from([1e9, -1e9, 1e155, 1e308, -1e308, 30.0, 30.000000001]),
    st.sampled_from([0.0, 10.0, 1e9, -1e200]),
    st.sampled_from([1.0, 2.0, 0.3, 1e-10, 1e-200, 1e200]),
    st.sampled_from([None, 0.5, 10.0, 1e9]),
    st.sampled_from([{}, {"min": -5.0}, {"max": 20.0}, {"min": 0.0, "max": 1e300}]),
)
def test_a_number_is_encoded_like_a_vector_of_one(
    value: float, center: float, scale: float, clip: float | None, ends: dict[str, float]
) -> None:
    """Columns to the bit, faults, and the counts of clipped values."""
    numbers = {"center": center, "scale": scale, **ends, **({"clip": clip} if clip else {})}

    def found(feature: dict[str, Any], given: Any) -> Any:
        side = schema({"f": feature | numbers}).context
        try:
            return side.encode({"f": given}, "context").tobytes(), side.clipped
        except Invalid as fault:
            return fault.faults, side.clipped

    assert found({"type": "numeric"}, value) == found({"type": "vector", "size": 1}, [value])


def test_all_faults_are_named_at_once() -> None:
    both = schema({"age": NUMERIC, "pet": CATEGORICAL}, {"pet_food": {"type": "boolean"}})
    with pytest.raises(Invalid) as caught:
        both.encode_context({"age": "old", "color": "red"})
    assert sorted(fault.path for fault in caught.value.faults) == [
        "context.age",
        "context.color",
        "context.pet",
    ]
    with pytest.raises(Invalid) as caught:
        both.encode_arm({"pet_food": 3.0}, "arms.2.features")
    assert [fault.path for fault in caught.value.faults] == ["arms.2.features.pet_food"]


def test_hashing_is_pinned() -> None:
    """A value's bucket is in every logged x: it may never move."""
    assert int(np.argmax(encoded(HASHED | {"buckets": 1_000}, "squeak"))) == PINNED_BUCKET
    assert sum(encoded(HASHED, "squeak")) == 1.0


PINNED_BUCKET = 497


def test_two_features_hash_one_value_apart() -> None:
    """Of 200 strings, about 200/64 and not all fall into the same bucket of two features."""
    both = schema({name: {"type": "hashed", "buckets": 64} for name in ("brand", "shop")})
    rows = [both.encode_context({"brand": f"v{n}", "shop": f"v{n}"}) for n in range(200)]
    same = sum(int(np.argmax(row[:64]) == np.argmax(row[64:])) for row in rows)
    assert same < 15


def test_columns_follow_the_names_not_the_order_a_definition_is_written_in() -> None:
    """Equal definitions have equal columns: a client may sort its JSON otherwise."""
    one = {"age": NUMERIC, "pet": CATEGORICAL}
    other = dict(reversed(one.items()))
    values = {"pet": "dog", "age": 14}
    assert schema(one).features == schema(other).features
    assert np.array_equal(schema(one).encode_context(values), schema(other).encode_context(values))
    assert schema(one).encode_context(values).tolist() == [1.0, 0.0, 1.0]


# -- bounds --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("feature", "message"),
    [
        (AGE | {"min": 2.0, "max": 1.0}, "min: must not be above max"),
        (AGE | {"min": 2.0, "default": 1.0}, "default lies outside min and max"),
        (AGE | {"clip": 0.0}, "greater than 0"),
        ({"type": "categorical", "values": ["a"], "clip": 1.0}, "not permitted"),
    ],
)
def test_bounds_that_hold_nothing_are_refused(feature: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        schema({"f": feature})


def test_each_clipped_value_is_counted_by_its_feature() -> None:
    content = {
        "context": {"age": AGE | {"clip": 3.0}, "image": IMAGE | {"clip": 1.0}, "free": AGE},
        "arm": {"price": {"type": "numeric", "scale": 1.0, "clip": 1.0}},
    }
    found = Schema(Features.model_validate(content))
    plain = {"age": 41.0, "image": [0.0, 1.0], "free": 41.0}
    found.encode_context(plain)
    assert found.clipped == {"age": 0, "free": 0, "image": 0, "price": 0}
    for value in (1e6, -(10**6)):  # a whole number goes the other way through the encoder
        found.encode_context(plain | {"age": value, "image": [value, value]})
    found.encode_arm({"price": 7.0})
    assert found.clipped == {"age": 2, "free": 0, "image": 2, "price": 1}
    with pytest.raises(Invalid):
        found.encode_context({"age": 1e6, "image": [1e6, 0.0], "free": "none"})
    assert found.clipped["age"] == 2  # what is refused is not clipped


@pytest.mark.parametrize(
    ("feature", "column"),
    [
        (AGE, CLIP),
        (AGE | {"min": 0.0}, CLIP),  # nothing says how large it may be
        (AGE | {"min": 0.0, "max": 1e9}, (1e6 - 40) / 10),
        (AGE | {"clip": 2.0}, 2.0),
        ({"type": "numeric", "center": 5.0}, CLIP),  # of scale 1
        ({"type": "numeric", "scale": 1e6}, 1.0),  # around 0
        ({"type": "numeric"}, 1e6),  # each policy measures it
        ({"type": "numeric", "clip": 2.0}, 1e6),
    ],
)
def test_a_number_is_clipped_at_ten_declared_scales_unless_its_bounds_are_given(
    feature: dict[str, Any], column: float
) -> None:
    assert encoded(feature, 1e6) == [column]


@pytest.mark.parametrize(
    ("feature", "limit"),
    [
        ({"type": "numeric"}, 1e15),
        ({"type": "numeric", "scale": 1.0, "min": -1e99, "max": 1e99}, 1e9),
    ],
)
def test_a_number_that_is_not_clipped_is_refused_where_its_square_could_overflow(
    feature: dict[str, Any], limit: float
) -> None:
    assert encoded(feature, limit) == [limit]
    with pytest.raises(Invalid) as caught:
        encoded(feature, limit * 1.01)
    assert f"must lie within {limit:g} of its center" in caught.value.faults[0].message
