"""Numbers within bounds: refused beyond `min` and `max`, clipped beyond `clip`, counted."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from service.definition.experiment import CLIP, Features
from service.definition.features import LARGEST, Schema
from service.errors import Invalid

AGE: dict[str, Any] = {"type": "numeric", "center": 40.0, "scale": 10.0}
IMAGE: dict[str, Any] = {"type": "vector", "size": 2, "scale": 2.0}


def features(feature: dict[str, Any]) -> Features:
    return Features.model_validate({"context": {"f": feature}})


def schema(feature: dict[str, Any]) -> Schema:
    return Schema(features(feature))


def encoded(feature: dict[str, Any], value: Any) -> list[float]:
    return schema(feature).encode_context({"f": value}).tolist()


@pytest.mark.parametrize(
    ("feature", "value", "columns"),
    [
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
def test_a_value_is_clipped_to_scales_of_its_center(
    feature: dict[str, Any], value: Any, columns: list[float]
) -> None:
    assert encoded(feature, value) == columns


@pytest.mark.parametrize(
    ("feature", "value", "message"),
    [
        (AGE | {"min": 0.0}, -0.1, "must be at least 0"),
        (AGE | {"max": 120.0, "clip": 1.0}, 120.5, "must be at most 120"),
        (IMAGE | {"min": -1.0}, [0.0, -1.5], "must be at least -1"),
        (IMAGE | {"max": 1.0}, [2, 0.0], "must be at most 1"),
    ],
)
def test_a_value_outside_min_and_max_is_refused(
    feature: dict[str, Any], value: Any, message: str
) -> None:
    with pytest.raises(Invalid) as caught:
        schema(feature).encode_context({"f": value})
    assert [(each.path, each.message) for each in caught.value.faults] == [("context.f", message)]


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
        features(feature)


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


@given(
    st.floats(-1e12, 1e12),
    st.sampled_from([None, 0.5, 3.0, 1e9, 1e300]),
    st.sampled_from([1e-3, 1.0, 1e3]),
)
def test_what_is_encoded_is_the_scaled_value_within_its_clip(
    value: float, clip: float | None, scale: float
) -> None:
    feature = {"type": "numeric", "center": 2.0, "scale": scale, "clip": clip}
    scaled, limit = (value - 2.0) / scale, min(clip or CLIP, LARGEST)
    assert encoded(feature, value) == [min(max(scaled, -limit), limit)]
    vector = {"type": "vector", "size": 1, "center": 2.0, "scale": scale, "clip": clip}
    assert encoded(vector, [value]) == encoded(feature, value)


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
