"""An experiment's definition: features, arms, policies, reward rules. TOML and JSON alike."""

import re
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PositiveFloat,
    ValidationError,
    field_validator,
    model_validator,
)

from service.definition.faults import at_most, faults_of, without_nulls
from service.definition.policies import (
    AnyPolicy,
    Featured,
    Model,
    NeuralGlmTs,
    Point,
    PolicySettings,
    Popularity,
    Ridge,
    Static,
)
from service.errors import ConfigurationError

NAME = r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}$"
Name = Annotated[str, Field(pattern=NAME)]
DOTS = (".", "..")
"""Ids that no path can carry: to a client `DELETE /arms/..` is another route."""


def _expect_no_dots(id: str) -> str:
    if id in DOTS:
        raise ValueError("must not be '.' or '..', which no path can carry")
    return id


Id = Annotated[
    str, AfterValidator(_expect_no_dots), Field(json_schema_extra={"not": {"enum": [*DOTS]}})
]
ArmId = Annotated[Id, Field(min_length=1, max_length=256)]
UnitId = Annotated[Id, Field(min_length=1, max_length=256)]
Text = Annotated[str, Field(max_length=256)]
Number = Annotated[float, Field(allow_inf_nan=False, strict=True)]
Seconds = Annotated[float, Field(gt=0, le=10 * 365 * 86_400)]
Value = bool | Number | Text | Annotated[list[Number], Field(fail_fast=True)]
Values = Annotated[
    dict[str, Value], Field(max_length=256), BeforeValidator(without_nulls), at_most(256)
]
LARGEST_REWARD = 1e12
"""Limit of a reward, and of a sum of rewards, on either side of 0: the squares of a million such
rewards can be summed, and no product with a feature overflows."""
SMALLEST_RANGE = 1e-12
"""Least width of the range of rewards: squares of much smaller numbers vanish, and with them the
width of every interval."""
CENTER = "The value that becomes 0. Left out: 0 where `scale` is given, else measured."
SCALE = (
    "The distance from the center that becomes 1; policies learn best from usual values of this "
    "size. Left out: 1 where `center` is given, else measured: each policy standardises the number "
    "by the first 256 rewards that it learns from."
)
DEFAULT = "Holds where it is left out; without one it has to be there."
CLIP = 10.0
"""Default clip, in scales, of a number whose usual range is not known yet."""
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

    context: Annotated[dict[Name, Feature], Field(max_length=256)] = Field(
        {}, description="Of the visitor and the moment: a request says them."
    )
    arm: Annotated[dict[Name, Feature], Field(max_length=256)] = Field(
        {}, description="Of what can be shown: the catalogue says them."
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
        if len(self._crossed) < len(self.crosses):
            raise ValueError("a cross is given twice")
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
                raise ValueError(f"{where}: there is no feature {name!r}")


class RewardRules(Model):
    """What a reward may be, how long it is waited for, and what holds when none comes."""

    range: tuple[Number, Number] = Field(
        (0.0, 1.0),
        strict=False,  # JSON has no tuples
        description="Smallest and largest reward, at least 1e-12 apart; others are refused.",
    )
    wait_seconds: Seconds = Field(600.0, description="Until `reward_by`.")
    accept_seconds: Seconds = Field(
        7 * 86_400.0, description="After `reward_by`, until `accept_until`."
    )
    default: Number | None = Field(
        0.0,
        description="Reward learned at `reward_by` if none came; null (in TOML: "
        '"none"): nothing is learned.',
    )
    aggregation: Literal["first", "sum", "last"] = Field(
        "first", description="What several rewards of one arm come to."
    )
    total: tuple[Number, Number] | None = Field(
        None,
        strict=False,
        description="Smallest and largest sum of the rewards of one arm of one decision; a reward "
        'that would pass it is refused. With aggregation "sum" alone; left out: the range.',
    )

    @field_validator("default", mode="before")
    @classmethod
    def _toml_has_no_null(cls, value: object) -> object:
        return None if value == "none" else value

    @model_validator(mode="after")
    def _range_holds(self) -> Self:
        low, high = self.range
        if low >= high:
            raise ValueError("range: the lower end must be below the upper")
        if self.default is not None and not low <= self.default <= high:
            raise ValueError("default lies outside range")
        if self.total is not None:
            if self.aggregation != "sum":
                raise ValueError('total: only rewards with aggregation "sum" have one')
            if self.total[0] > low or self.total[1] < high:
                raise ValueError("total: it has to hold the range")
        return self

    def completed(self) -> Self:
        """A copy in which the total is written out, as the log holds it."""
        if self.aggregation != "sum" or self.total is not None:
            return self
        return self.model_copy(update={"total": self.range})


class Definition(Model):
    """All that defines an experiment but its name."""

    features: Features = Field(Features(), description="What policies can see.")
    arms: dict[ArmId, Values] = Field(
        {}, description="The catalogue: features of each arm, by its id."
    )
    policies: Annotated[dict[Name, AnyPolicy], Field(min_length=1, max_length=64)] = Field(
        description="Who decides, by name; they share the traffic."
    )
    reward: RewardRules = Field(RewardRules(), description="What counts as success.")
    max_vector: Annotated[int, Field(ge=1, le=8_192)] = Field(
        4_096, description="Columns a policy may see; refused above, since a head is its square."
    )

    @model_validator(mode="after")
    def _policies_fit(self) -> Self:
        for name, policy in self.policies.items():
            try:
                self._check_policy(policy)
            except ValueError as fault:
                raise ValueError(f"policies.{name}: {fault}") from fault
        if all(policy.share == 0 for policy in self.policies.values()):
            raise ValueError("policies: at least one needs a share above 0")
        return self

    def completed(self) -> Self:
        """Return a copy in which defaults that depend on other settings are written out."""
        return self.model_copy(update={"reward": self.reward.completed()})

    def _check_policy(self, policy: AnyPolicy) -> None:
        if counts := _counts_clicks(policy):
            low, high = self.reward.range
            if not 0 <= low <= high <= 1:
                raise ValueError(f"{counts}: reward.range must lie in [0, 1]")
            if self.reward.aggregation == "sum":
                raise ValueError(f"{counts}: a sum of rewards may be more than one")
        if not policy.sees_features:
            return
        names = self.features_of(policy)
        if not names:
            raise ValueError("there is no feature for it to see")
        if len({tuple(parts_of(name)) for name in names}) < len(names):
            raise ValueError("features: a name is given twice")
        for name in names:
            parts = parts_of(name)
            self.features.expect_known(parts, f"feature {name!r}")
            if is_disjoint(policy) and any(part in self.features.arm for part in parts):
                raise ValueError(f"feature {name!r}: a disjoint policy sees the context only")

    def features_of(self, policy: PolicySettings) -> list[str]:
        """The features a policy sees: those it names, or all that fit its kind.

        A net sees the raw features and finds the crosses itself; a linear head needs them.
        """
        if not isinstance(policy, Featured) or not policy.sees_features:
            return []
        if policy.features is not None:
            return policy.features
        context, arm = list(self.features.context), list(self.features.arm)
        if is_disjoint(policy):
            return [INTERCEPT, *context]
        if policy.has_net:
            return [*context, *arm]
        return [INTERCEPT, *context, *arm, *self.features.crosses]


def _counts_clicks(policy: PolicySettings) -> str:
    """Why a policy takes only rewards in [0, 1]; '' where it takes any."""
    if isinstance(policy, NeuralGlmTs) or (isinstance(policy, Static) and policy.loss == "log"):
        return "log loss is for rewards that are chances"
    blind = isinstance(policy, Popularity | Point) and not policy.sees_features
    return "clicks are counted" if blind else ""


def is_disjoint(policy: PolicySettings) -> bool:
    return isinstance(policy, Ridge) and policy.disjoint


def load_definition(path: Path) -> tuple[str, Definition]:
    """Name and definition from a TOML file: `name = "..."` beside the keys of `Definition`.

    Raises ConfigurationError that says what is wrong where.
    """
    try:
        content: dict[str, object] = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as fault:
        raise ConfigurationError(f"{path}: {fault.strerror}") from fault
    except (ValueError, RecursionError) as fault:
        raise ConfigurationError(f"{path}: not TOML: {fault}") from fault
    name = content.pop("name", path.stem)
    if not isinstance(name, str) or not re.fullmatch(NAME, name):
        raise ConfigurationError(f"{path}: name: letters, digits, '_', '.' and '-', at most 64")
    try:
        return name, Definition.model_validate(content)
    except ValidationError as error:
        faults = "\n".join(
            f"  {fault.path or '(file)'}: {fault.message}"
            for fault in faults_of(error.errors(), content)
        )
        raise ConfigurationError(f"{path}:\n{faults}") from error
