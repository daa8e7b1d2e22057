"""What an experiment declares of its features: kinds, names, crosses; and types of attributes."""

from collections.abc import Iterable
from typing import Annotated, Literal, Self

from pydantic import Field, PositiveFloat, model_validator

from service.features.model import Model, at_most
from service.naming import listed, quoted, repeated, suggestion

NAME = r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}$"
NAME_RULE = (
    "must have 1 to 64 letters, digits, '_', '.' and '-', and begin with a letter, a digit or '_'"
)
Name = Annotated[str, Field(pattern=NAME)]
Text = Annotated[str, Field(max_length=256)]
Number = Annotated[float, Field(allow_inf_nan=False, strict=True)]
CENTER = "The value that becomes 0. Left out: 0 where `scale` is given, else measured."
SCALE = (
    "The distance from the center that becomes 1; policies learn best from usual values of this "
    "size. Left out: 1 where `center` is given, else measured: each policy standardises the number "
    "by the first 256 rewards that it learns from. Leave `center` and `scale` out unless the unit "
    "of the number means something that you know: policies learn as well or better from what they "
    "measure."
)
DEFAULT = "Holds where it is left out; without one it has to be there."
CLIP = 10.0
"""Default clip, in scales, of a number whose usual range is not known yet."""
AttributeType = Literal["number", "text", "boolean"]
"""Type of an attribute: a value of an arm that rules read and no policy learns."""
INTERCEPT = "intercept"
CROSS = " x "


class Numbers(Model):
    """How a number, or each number of a list, is scaled and bounded."""

    center: Number | None = Field(None, description=CENTER)
    scale: PositiveFloat | None = Field(None, description=SCALE)
    min: Number | None = Field(None, description="Values below it are refused.")
    max: Number | None = Field(None, description="Values above it are refused.")
    clip: PositiveFloat | None = Field(
        None,
        description="Values are clipped to this many scales on either side of the center. "
        "Left out: three deviations around the median of the first rewards that a policy learns "
        f"from, {CLIP:g} scales at most; none where `scale`, `min` and `max` are given.",
    )

    @model_validator(mode="after")
    def _bounds_hold(self) -> Self:
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError("min: must not be above max")
        return self

    def allows(self, value: float) -> bool:
        return (self.min is None or value >= self.min) and (self.max is None or value <= self.max)

    @property
    def declared(self) -> bool:
        """Whether the definition gives the scale; otherwise each policy measures it."""
        return self.center is not None or self.scale is not None

    def scaled(self, value: float) -> float:
        """Return a value in scales from the center, as declared."""
        return (value - (self.center or 0.0)) / (self.scale or 1.0)

    @property
    def has_bounds(self) -> bool:
        """Whether the definition says which values are usual."""
        return self.clip is not None or (self.min is not None and self.max is not None)


class Numeric(Numbers):
    """One column: (value - center) / scale. A missing value takes `default`, if there is one."""

    type: Literal["numeric"]
    default: Number | None = Field(None, description=DEFAULT)

    @model_validator(mode="after")
    def _default_is_allowed(self) -> Self:
        if self.default is not None and not self.allows(self.default):
            raise ValueError("default lies outside min and max")
        return self


class Boolean(Model):
    """One column: 0 or 1."""

    type: Literal["boolean"]
    default: bool | None = Field(None, description=DEFAULT)


class Categorical(Model):
    """A column a known value; with unknown = "other", one more for every other value."""

    type: Literal["categorical"]
    values: Annotated[list[Text], Field(min_length=1, max_length=10_000)] = Field(
        description="The known values, in the order of their columns."
    )
    unknown: Literal["reject", "other"] = Field(
        "reject",
        description='What becomes of any other value: 422, or the column "other".',
    )
    default: Text | None = Field(None, description=DEFAULT)

    @model_validator(mode="after")
    def _values_differ(self) -> Self:
        if len(set(self.values)) < len(self.values):
            raise ValueError("values must differ from each other")
        if self.unknown == "reject" and self.default not in (None, *self.values):
            raise ValueError("default must be one of values")
        return self


class Hashed(Model):
    """A column a bucket; any string hashes to one of them."""

    type: Literal["hashed"]
    buckets: Annotated[int, Field(ge=2, le=65_536)] = Field(
        description="Columns; two values may share one."
    )
    default: Text | None = Field(None, description=DEFAULT)


class Vector(Numbers):
    """`size` columns: (value - center) / scale each."""

    type: Literal["vector"]
    size: Annotated[int, Field(ge=1, le=4_096)] = Field(description="Numbers in the list.")


Feature = Annotated[Numeric | Boolean | Categorical | Hashed | Vector, Field(discriminator="type")]


def parts_of(name: str) -> list[str]:
    """Features that are multiplied, in order: a product is the same however it is written."""
    return sorted(part for part in name.split(CROSS) if part != INTERCEPT)


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """Names of features and crosses in the order of their columns."""
    return tuple(sorted(names, key=lambda name: (len(parts := parts_of(name)), parts)))


class Features(Model):
    """The feature schema. crosses: 'a x b'; equal-length vectors by element, others outer."""

    context: Annotated[dict[Name, Feature], Field(max_length=256), at_most(256)] = Field(
        {}, description="Features of the visitor and the moment: a request says them."
    )
    arm: Annotated[dict[Name, Feature], Field(max_length=256), at_most(256)] = Field(
        {}, description="Features of what can be shown: the catalogue says them."
    )
    crosses: Annotated[list[str], Field(max_length=256)] = Field(
        [],
        description="'a x b' (or more names): their products, with which a linear policy can say "
        '"these visitors like those arms".',
    )

    @model_validator(mode="after")
    def _names_are_consistent(self) -> Self:
        if both := self.context.keys() & self.arm.keys():
            raise ValueError(f"names of both context and arm features: {', '.join(sorted(both))}")
        if INTERCEPT in self.context or INTERCEPT in self.arm:
            raise ValueError(f"{INTERCEPT!r} is the name of the constant feature")
        for cross in self.crosses:
            parts = cross.split(CROSS)
            if len(parts) < 2 or len(set(parts)) < len(parts):
                raise ValueError(f"cross {cross!r}: write two or more feature names as 'a x b'")
            self.expect_known(parts, f"cross {cross!r}")
        if twice := repeated(CROSS.join(parts_of(cross)) for cross in self.crosses):
            raise ValueError(f"crosses: given more than once: {listed(twice)}")
        return self

    @property
    def _crossed(self) -> set[tuple[str, ...]]:
        return {tuple(parts_of(cross)) for cross in self.crosses}

    def same_as(self, other: "Features") -> bool:
        """Whether both are the same, in whatever order they are written."""
        mine, others = (self.context, self.arm), (other.context, other.arm)
        return mine == others and self._crossed == other._crossed

    def expect_known(self, names: list[str], where: str) -> None:
        for name in names:
            if name not in self.context and name not in self.arm:
                near = suggestion(name, [*self.context, *self.arm])
                raise ValueError(f"{where}: there is no feature {quoted(name)}{near}")
