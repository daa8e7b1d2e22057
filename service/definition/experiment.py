"""An experiment's definition: features, attributes, arms, policies, reward rules. TOML and JSON
alike."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, LiteralString, Self, cast

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    ModelWrapValidatorHandler,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

from service.bandits.kinds import AnyPolicy
from service.bandits.kinds.base import Kind
from service.bandits.kinds.popularity import Popularity
from service.bandits.kinds.random import Random
from service.bandits.settings import Training
from service.definition.faults import IN_PARTS, faults_of, without_nulls
from service.definition.files import text_of, toml_of
from service.definition.rollout import NeverBelow, RolloutDefaults
from service.definition.rules import EACH_ARM, NEW, Rules, ValueTypes, faults_of_rules
from service.errors import ConfigurationError
from service.features.declaration import (
    CROSS,
    INTERCEPT,
    NAME,
    NAME_RULE,
    AttributeType,
    Features,
    Name,
    Number,
    Text,
    parts_of,
)
from service.features.model import Model, at_most
from service.naming import listed, quoted, repeated, suggestion

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
Seconds = Annotated[float, Field(gt=0, le=10 * 365 * 86_400)]
Examined = Annotated[float, Field(gt=0, le=1)]
InlineValue = bool | Number | Text | Annotated[list[Number], Field(fail_fast=True)]
InlineValues = Annotated[
    dict[str, InlineValue], Field(max_length=256), BeforeValidator(without_nulls), at_most(256)
]
InlineAttribute = bool | Number | Text
InlineAttributes = Annotated[
    dict[str, InlineAttribute], Field(max_length=256), BeforeValidator(without_nulls), at_most(256)
]
ArmTable = Annotated[
    dict[str, InlineValue], Field(max_length=512), BeforeValidator(without_nulls), at_most(512)
]
"""Features and attributes of an arm, side by side: their declarations say which is which."""
LARGEST_REWARD = 1e12
"""Limit of a reward, and of a sum of rewards, on either side of 0: the squares of a million such
rewards can be summed, and no product with a feature overflows."""
SMALLEST_RANGE = 1e-12
"""Least width of the range of rewards: squares of much smaller numbers vanish, and with them the
width of every interval."""

POLICIES = 64
"""Most policies of an experiment."""

FALLBACK = "fallback"
"""Name of the built-in fallback, which no policy may have."""

FALLBACK_EPSILON = 0.05
"""Uniform part of the choices of the built-in fallback, so that all arms keep a chance, and its log
can evaluate any policy."""


def _settings(errors: Sequence[InitErrorDetails]) -> set[int | str]:
    """Return the settings that have errors."""
    return {each["loc"][0] for each in errors}


class RewardRules(Model):
    """What a reward may be, how long it is waited for, and what holds when none comes."""

    range: tuple[Number, Number] = Field(
        (0.0, 1.0),
        strict=False,  # JSON has no tuples
        description="Smallest and largest reward, at least 1e-12 apart; others are refused. It is "
        "what one false report can do (below): no wider than honest rewards are.",
    )
    wait_seconds: Seconds = Field(600.0, description="Seconds from the decision to `reward_by`.")
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

    examination: Literal["position"] | Annotated[list[Examined], Field(min_length=1)] | None = (
        Field(
            None,
            description="Chance that a user looks at each slot of a slate, by which a miss weighs: "
            '"position" learns it, a list gives it (the last one holds for later slots). Left out: '
            "every miss counts whole.",
        )
    )

    @field_validator("examination", mode="before")
    @classmethod
    def _examination_is_known(cls, value: object) -> object:
        """Check the word here: a union of types would name each of its parts in the error."""
        if value is None or value == "position":
            return value
        if not isinstance(value, list):
            raise ValueError('"position", or a list of chances, one a slot')
        if not value:
            raise ValueError("needs the chance of at least one slot")
        for chance in value:
            if isinstance(chance, bool) or not isinstance(chance, float | int):
                raise ValueError("chances are numbers")
            if not 0 < chance <= 1:
                raise ValueError(f"chances lie above 0 and are at most 1: not {chance:g}")
        return value

    @field_validator("default", mode="before")
    @classmethod
    def _toml_has_no_null(cls, value: object) -> object:
        return None if value == "none" else value

    @model_validator(mode="wrap")
    @classmethod
    def _name_all_faults(cls, given: object, read: ModelWrapValidatorHandler[Self]) -> Self:
        """Add the faults between settings to those of single ones, which would hide them."""
        errors = list[InitErrorDetails]()
        try:
            rules = read(given)
        except ValidationError as error:
            if not isinstance(given, dict):
                raise
            errors = [cast(InitErrorDetails, each) for each in error.errors()]
            rules = read({k: v for k, v in given.items() if k not in _settings(errors)})
        wrong = _settings(errors)
        errors += [
            {"type": PydanticCustomError("between", message), "loc": (others[0],), "input": None}
            for message, *others in rules._faults_between()
            if wrong.isdisjoint(others)
        ]
        if errors:
            raise ValidationError.from_exception_data(cls.__name__, errors)
        return rules

    def _faults_between(self) -> Iterator[tuple[LiteralString, *tuple[str, ...]]]:
        """Yield each fault between settings: the message, the path of the setting, and the paths of
        others that it depends on."""
        low, high = self.range
        if self.total is not None and self.aggregation != "sum":
            yield 'only rewards with aggregation "sum" have one', "total", "aggregation"
        if low >= high:
            yield "the lower end must be below the upper", "range"
            return
        if self.default is not None and not low <= self.default <= high:
            yield "default lies outside range", "default", "range"
        if self.total is not None and (self.total[0] > low or self.total[1] < high):
            yield "has to hold the range", "total", "range"

    @property
    def are_clicks(self) -> bool:
        """Whether a reward is a share of a click, and nothing a miss."""
        return self.limits == (0.0, 1.0) and self.default == 0.0

    @property
    def limits(self) -> tuple[float, float]:
        """Return the smallest and the largest reward that one arm of a decision can have."""
        return self.range if self.total is None else self.total

    @property
    def nothing(self) -> float:
        """The reward that stands for nothing: the default, else the one nearest to 0."""
        low, high = self.range
        return min(max(0.0, low), high) if self.default is None else self.default

    def is_miss(self, reward: float) -> bool:
        """Say whether a reward says no more than that nothing came of an arm."""
        return reward in (self.range[0], self.default)

    def scaled(self, reward: float) -> float:
        """Return a reward as a share of the range."""
        low, high = self.limits
        return (reward - low) / (high - low)

    def completed(self) -> Self:
        """Return a copy in which the total is written out, as the log holds it."""
        if self.aggregation != "sum" or self.total is not None:
            return self
        return self.model_copy(update={"total": self.range})


class Definition(Model):
    """All that defines an experiment but its name."""

    features: Features = Field(Features(), description="What policies can see.")
    attributes: Annotated[dict[Name, AttributeType], Field(max_length=256), at_most(256)] = Field(
        {},
        description="Values of arms that rules read and no policy learns, such as the stock: the "
        "type of each, by its name.",
    )
    arms: Annotated[dict[ArmId, ArmTable], IN_PARTS] = Field(
        {}, description="The catalogue: features and attributes of each arm, by its id."
    )
    policies: Annotated[
        dict[Name, AnyPolicy], Field(min_length=1, max_length=POLICIES), at_most(POLICIES)
    ] = Field(description="Who decides, by name; they share the traffic.")
    reward: RewardRules = Field(RewardRules(), description="What counts as success.")
    rules: Rules = Field(Rules(), description="What may be shown, how often and to whom.")
    rollout: RolloutDefaults = Field(
        RolloutDefaults(), description="How challengers take over traffic."
    )
    never_below: NeverBelow | None = Field(
        None, description="A loss budget: the service earns nearly what one policy does, always."
    )
    control: Name | None = Field(
        None, description="The policy that a verdict compares the others with."
    )
    fallback: Name | None = Field(
        None,
        description="The policy that decides where the one that has the traffic, or that a request "
        "names, cannot. Left out: a built-in one, which counts clicks by arm and learns from every "
        "reward; where rewards are not from 0 to 1 with the default 0, uniform chance.",
    )
    max_vector: Annotated[int, Field(ge=1, le=8_192)] = Field(
        4_096, description="Columns a policy may see; refused above, since a head is its square."
    )

    @model_validator(mode="after")
    def _settings_fit_each_other(self) -> Self:
        errors = [
            InitErrorDetails(type="value_error", loc=loc, input=None, ctx={"error": message})
            for loc, message in self._faults_between()
        ]
        if errors:
            raise ValidationError.from_exception_data(type(self).__name__, errors)
        return self

    def _faults_between(self) -> Iterator[tuple[tuple[str, ...], str]]:
        """Yield what is wrong between settings, and where."""
        types = ValueTypes(self.features, self.attributes)
        for loc, message in faults_of_rules(self.rules, types):
            yield ("rules", *loc), message
        for loc, message in self.rollout.guardrails.faults(types.context):
            yield ("rollout", "guardrails", *loc), message
        for name in self.attributes:
            if name in (EACH_ARM, NEW):
                yield ("attributes", name), "is a word of rules (`of`): give it another name"
            if name == INTERCEPT or name in self.features.context or name in self.features.arm:
                yield ("attributes", name), "is the name of a feature"
        for name, policy in self.policies.items():
            try:
                self._check_policy(policy)
            except ValueError as fault:
                yield ("policies", name), str(fault)
            yield from self._faults_of_gate(name, getattr(policy, "training", None))
        if all(policy.share == 0 for policy in self.policies.values()):
            yield ("policies",), "at least one needs a share above 0"
        yield from self._faults_of_names()
        if self.never_below is not None:
            yield from self._faults_of_budget(self.never_below.policy)

    def _faults_of_gate(
        self, name: str, training: Training | None
    ) -> Iterator[tuple[tuple[str, ...], str]]:
        """Yield what is wrong with the gate of a policy. training: None: it has no net."""
        if training and training.gate == "rollout" and self.reward.default is None:
            yield (
                ("policies", name, "training", "gate"),
                "a rollout needs a default reward (reward.default): without one, decisions that "
                "earned nothing are not known",
            )

    def _faults_of_names(self) -> Iterator[tuple[tuple[str, ...], str]]:
        """Yield what is wrong with the names of policies, and where."""
        if FALLBACK in self.policies:
            yield (
                ("policies", FALLBACK),
                "is the name of the built-in fallback: give it another name",
            )
        if self.control is not None:
            yield from self._faults_of_compared(self.control, ("control",))
        name = self.fallback
        if name is not None and name not in self.policies:
            yield ("fallback",), f"no policy {quoted(name)}{suggestion(name, self.policies)}"
        elif name is not None and self.policies[name].shadow:
            yield ("fallback",), "a shadow decides nothing"

    def _faults_of_compared(
        self, name: str, loc: tuple[str, ...]
    ) -> Iterator[tuple[tuple[str, ...], str]]:
        """Yield what is wrong with a policy that others are compared with."""
        if name not in self.policies:
            yield loc, f"no policy {quoted(name)}{suggestion(name, self.policies)}"
        elif self.policies[name].shadow:
            yield loc, "a shadow earns nothing that others could be compared with"

    def _faults_of_budget(self, name: str) -> Iterator[tuple[tuple[str, ...], str]]:
        """Yield what is wrong with a loss budget and its policy."""
        loc, policy = ("never_below", "policy"), self.policies.get(name)
        yield from self._faults_of_compared(name, loc)
        if policy is not None and not policy.shadow and not policy.share:
            yield loc, f"{quoted(name)} needs a share above 0: it decides what the others may not"
        if self.reward.default is None:
            yield (
                ("never_below",),
                "a loss budget needs a default reward (reward.default): without one, decisions "
                "that earned nothing are not known",
            )

    @property
    def serving(self) -> dict[str, AnyPolicy]:
        """Return the policies that can decide: all but shadows."""
        return {name: policy for name, policy in self.policies.items() if not policy.shadow}

    @property
    def folded(self) -> dict[str, AnyPolicy]:
        """Return the policies that learn from each reward: all but shadows that are not to."""
        return {name: policy for name, policy in self.policies.items() if policy.fold}

    @property
    def built_in_fallback(self) -> AnyPolicy | None:
        """The policy that decides where others cannot; None: the definition names one of its
        own."""
        if self.fallback is not None:
            return None
        if self.reward.are_clicks:
            return Popularity(
                kind="popularity", share=0.0, epsilon=FALLBACK_EPSILON, learns_from="all"
            )
        return Random(kind="random", share=0.0)

    @property
    def shadows(self) -> dict[str, AnyPolicy]:
        return {name: policy for name, policy in self.policies.items() if policy.shadow}

    def completed(self) -> Self:
        """Return a copy in which defaults that depend on other settings are written out."""
        policies = {
            name: policy.completed(self.features, self.arms)
            for name, policy in self.policies.items()
        }
        return self.model_copy(update={"policies": policies, "reward": self.reward.completed()})

    def with_policy(self, name: str, policy: AnyPolicy) -> Self:
        """Return a copy in which a policy is new or has other settings. Raises ValueError that
        begins with the path of the fault where it does not fit."""
        if name not in self.policies and len(self.policies) == POLICIES:
            raise ValueError(f"policies: must have at most {POLICIES} members")
        changed = self.model_copy(update={"policies": {**self.policies, name: policy}})
        for loc, message in changed._faults_between():
            raise ValueError(f"{'.'.join(loc)}: {message}")
        return changed

    def with_shares(self, shares: Mapping[str, float]) -> Self:
        """Return a copy in which policies have these shares of the traffic; others keep theirs."""
        policies = {
            name: policy.model_copy(update={"share": shares.get(name, policy.share)})
            for name, policy in self.policies.items()
        }
        return self.model_copy(update={"policies": policies})

    def split(self, values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the features and the attributes among the values of an arm; a value that is
        neither is among the features."""
        if not self.attributes:
            return {**values}, {}
        attributes = {name: value for name, value in values.items() if name in self.attributes}
        return {name: values[name] for name in values if name not in attributes}, attributes

    def with_catalogue(
        self,
        features: Mapping[str, Mapping[str, Any]],
        attributes: Mapping[str, Mapping[str, Any]],
    ) -> Self:
        """Return a copy with these arms. attributes: by arm, where it has any."""
        arms = {**features}
        arms |= {arm: {**features[arm], **own} for arm, own in attributes.items()}
        return self.model_copy(update={"arms": arms})

    def _check_policy(self, policy: AnyPolicy) -> None:
        parts = policy.policy()
        if not parts.sees_features:
            return
        names = self.features_of(policy)
        if not names:
            raise ValueError("there is no feature for it to see")
        if twice := repeated(CROSS.join(parts_of(name)) for name in names):
            raise ValueError(f"features: given more than once: {listed(twice)}")
        for name in names:
            seen = parts_of(name)
            self.features.expect_known(seen, f"feature {name!r}")
            if parts.disjoint and any(part in self.features.arm for part in seen):
                raise ValueError(f"feature {name!r}: a disjoint policy sees the context only")

    def features_of(self, policy: Kind) -> list[str]:
        """Return the features that a policy sees: those it names, or all that fit its kind."""
        return policy.seen(self.features, self.arms)


def load_definition(path: Path) -> tuple[str, Definition]:
    """Name and definition from a TOML file: `name = "..."` beside the keys of `Definition`.

    Raises ConfigurationError that says what is wrong where.
    """
    try:
        content = toml_of(text_of(path))
    except ValueError as fault:
        raise ConfigurationError(f"{path}: {fault}") from fault
    name = content.pop("name", path.stem)
    if not isinstance(name, str) or not re.fullmatch(NAME, name):
        raise ConfigurationError(f"{path}: name: {NAME_RULE}")
    try:
        return name, Definition.model_validate(content)
    except ValidationError as error:
        faults = "\n".join(
            f"  {fault.path or '(file)'}: {fault.message}"
            for fault in faults_of(error.errors(), content, Definition)
        )
        raise ConfigurationError(f"{path}:\n{faults}") from error
