"""Rules: what may be shown, how often and to whom. The `[rules]` of a definition.

They bound the chances of a decision before the draw, so that the logged propensity is exact. What
comes later yields to what comes before: eligibility, at_most, pins, caps, floors, explore; within
each the order of the file.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from math import inf
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import (
    AfterValidator,
    AwareDatetime,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from service.features.declaration import (
    NAME,
    NAME_RULE,
    AttributeType,
    Boolean,
    Categorical,
    Feature,
    Features,
    Hashed,
    Name,
    Number,
    Numeric,
    Text,
)
from service.features.expression import EXPRESSION_CHARACTERS, ValueType, parse
from service.features.model import Model
from service.naming import quoted, suggestion

RULES = 64
"""Most rules of an experiment."""

EACH_ARM, NEW = "arm", "new"
"""Values of `of` that name no attribute."""

EXCLUDE, ONLY, IF_EMPTY = "exclude", "only", "if_empty"
"""What decisions name beside rules: lists of their request, and the arm that stands in for all."""

UNIT_SECONDS = {"s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0, "w": 7 * 86_400.0}
"""Seconds of the units of a duration."""

ConditionText = Annotated[str, Field(min_length=1, max_length=EXPRESSION_CHARACTERS)]
ChanceShare = Annotated[float, Field(gt=0, le=1)]
WHOLE_DAY = "day"
DURATION = r"[1-9][0-9]{0,6}[smhdw]"


def _expect_duration(text: str) -> str:
    if not re.fullmatch(DURATION, text):
        raise ValueError('a number of s, m, h, d or w (seconds to weeks), as "14d"')
    return text


Duration = Annotated[
    str, AfterValidator(_expect_duration), Field(json_schema_extra={"pattern": f"^{DURATION}$"})
]


def _expect_every(text: str) -> str:
    return text if text == WHOLE_DAY else _expect_duration(text)


Every = Annotated[
    str,
    AfterValidator(_expect_every),
    Field(json_schema_extra={"pattern": f"^({WHOLE_DAY}|{DURATION})$"}),
]
Moment = Annotated[AwareDatetime, Field(strict=False)]
Slots = Annotated[
    Literal["first", "all"],
    Field(description='Slots of a slate in which it holds: the first one, or "all" of them.'),
]
Segment = Annotated[
    ConditionText | None,
    Field(
        alias="if",
        description="Condition on features of the context: it holds for these decisions alone.",
    ),
]


def seconds_of(duration: str) -> float:
    """Return the seconds of a duration such as "14d", or of "day"."""
    if duration == WHOLE_DAY:
        return UNIT_SECONDS["d"]
    return float(duration[:-1]) * UNIT_SECONDS[duration[-1]]


class Sparse(Model):
    """Settings of which most are left out; so they are in what it is written as."""

    @model_serializer(mode="wrap")
    def _written(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: value for name, value in write(self).items() if value is not None}


class ArmGroup(Sparse):
    """The arms that a rule is about."""

    arm: Annotated[str, Field(min_length=1, max_length=256)] | None = Field(
        None, description="One arm, by its id."
    )
    of: Text | None = Field(
        None,
        description='"arm": each arm on its own. "new": new arms together. Else the name of an '
        "attribute or a feature of arms: all arms of a value together, each value on its own.",
    )
    value: bool | Number | Text | None = Field(
        None, alias="is", description="The value of `of` that is meant; left out: each."
    )
    younger_than: Duration | None = Field(
        None,
        description='The age up to which an arm is new, with `of = "new"`: "14d" since it came to '
        "the catalogue; the units are s, m, h, d and w.",
    )
    fewer_than: Annotated[int, Field(ge=1, le=1_000_000)] | None = Field(
        None, description='The number of settlements up to which an arm is new, with `of = "new"`.'
    )

    def faults(self, types: Mapping[str, ValueType]) -> Iterator[tuple[str, str]]:
        """Yield the setting and the fault. types: of attributes and of features of arms."""
        if (self.arm is None) == (self.of is None):
            yield "of", "give one of `arm` (the id of an arm) and `of`"
            return
        newness = self.younger_than is not None or self.fewer_than is not None
        if newness != (self.of == NEW):
            yield "of", 'of = "new" needs `younger_than` or `fewer_than`, which nothing else takes'
        if self.value is not None and self.of in (None, NEW, EACH_ARM):
            yield "is", "needs `of` with the name of an attribute or a feature of arms"
        elif self.of not in (None, NEW, EACH_ARM):
            assert self.of is not None
            known = types.get(self.of)
            if known is None:
                near = suggestion(self.of, [EACH_ARM, NEW, *types])
                yield "of", f"no attribute or feature of arms {quoted(self.of)}{near}"
            elif self.value is not None and _type_of(self.value) != known:
                yield "is", f"must be a {known}, as {self.of} is"


def _type_of(value: bool | float | str) -> ValueType:
    if isinstance(value, bool):
        return "boolean"
    return "text" if isinstance(value, str) else "number"


class PinRule(Sparse):
    """Exactly this share of a slot for one arm, which is not shown in the slots before it."""

    arm: Annotated[str, Field(min_length=1, max_length=256)] = Field(description="Id of the arm.")
    slot: Annotated[int, Field(ge=1, le=1_000)] = Field(1, description="Slot, from 1 on.")
    share: ChanceShare = Field(description="Its chance in this slot.")
    condition: Segment = None


class WindowLength(NamedTuple):
    """The length of a window: a number of decisions, or else of seconds."""

    decisions: int | None
    seconds: float


class ShareRule(ArmGroup):
    """A bound on the share of arms, in each decision or over a window of decisions."""

    share: ChanceShare | None = Field(
        None, description="The chance of the arm, or of the arms together, that it bounds."
    )
    count: Annotated[int, Field(ge=1, le=1_000_000_000)] | None = Field(
        None,
        description="The number of showings, in any slot, in each time of `every`; in place of a "
        "share.",
    )
    every: Annotated[int, Field(ge=10, le=1_000_000)] | Every | None = Field(
        None,
        description='A window over which the bound holds: a time, "1h" or "day" (by UTC), or a '
        "number of decisions for which the rule holds. Left out: it holds in each decision.",
    )
    slots: Slots = "first"
    condition: Segment = None

    @property
    def window(self) -> WindowLength | None:
        if self.every is None:
            return None
        if isinstance(self.every, int):
            return WindowLength(self.every, inf)
        return WindowLength(None, seconds_of(self.every))

    @model_validator(mode="after")
    def _share_or_count(self) -> Self:
        if (self.share is None) == (self.count is None):
            raise ValueError("give one of `share` and `count`")
        if self.count is not None and not isinstance(self.every, str):
            raise ValueError('count: needs `every`, a time such as "1h" or "day"')
        if self.every is not None and self.slots == "all":
            raise ValueError("slots: a share of a window is one of its first slots")
        return self


class CapRule(ShareRule):
    """A largest share of arms."""


class FloorRule(ShareRule):
    """A least share of arms."""

    @model_validator(mode="after")
    def _counts_of_decisions_alone(self) -> Self:
        if self.count is not None:
            raise ValueError("count: a floor takes `share`")
        return self


class ExploreRule(Sparse):
    """A least share of uniform choice."""

    share: ChanceShare = Field(
        description="The share: each of K arms has at least this part of 1 / K."
    )
    slots: Slots = "first"
    condition: Segment = None


class AtMostRule(Sparse):
    """A number of arms of a value that a slate shows at most."""

    of: Text = Field(description="Name of an attribute or a feature of arms.")
    per_slate: Annotated[int, Field(ge=1, le=1_000)] = Field(
        description="Arms of one value that a slate shows at most."
    )
    condition: Segment = None


VERBS = ("pin", "cap", "floor", "explore", "at_most")

MEASURED_VERBS = ("cap", "floor", "explore", "at_most")
"""Verbs of rules that can be left off to measure what they cost."""


class DeclaredRule(ArmGroup):
    """One rule: eligibility (by `eligible_if`, `from`, `until`), or one of pin, cap, floor, explore
    and at_most."""

    eligible_if: ConditionText | None = Field(
        None,
        description="Condition on features of context and arm and on attributes under which arms "
        "may be shown: those that `arm`, or `of` and `is`, name; else all.",
    )
    pin: PinRule | None = Field(None, description="A share of a slot for one arm.")
    cap: CapRule | None = Field(None, description="The largest share of arms.")
    floor: FloorRule | None = Field(None, description="The least share of arms.")
    explore: ExploreRule | None = Field(None, description="The least share of uniform choice.")
    at_most: AtMostRule | None = Field(None, description="Arms of one value in a slate.")
    begin: Moment | None = Field(
        None,
        alias="from",
        description="Time with its zone from which on the rule holds; of eligibility: from which "
        "on the arms may be shown.",
    )
    until: Moment | None = Field(
        None,
        description="Time with its zone up to which the rule holds; of eligibility: up to which "
        "the arms may be shown.",
    )
    always: bool | None = Field(
        None, description="Whether it holds for all units, even where others are measured."
    )

    @property
    def verb(self) -> str:
        """What it does: one of VERBS, or "eligible"."""
        return next((verb for verb in VERBS if getattr(self, verb) is not None), "eligible")

    @property
    def window(self) -> WindowLength | None:
        """The window over which a cap or a floor holds, where it has one."""
        found = self.cap or self.floor
        return None if found is None else found.window

    @property
    def count(self) -> int | None:
        """The showings in a window that it allows, where it counts them."""
        found = self.cap or self.floor
        return None if found is None else found.count

    @property
    def measurable(self) -> bool:
        """Whether it may be left off to measure what it costs: it bounds shares or slates, and
        neither counts showings nor holds always."""
        return self.verb in MEASURED_VERBS and self.count is None and not self.always

    @property
    def condition(self) -> str | None:
        """The segment of decisions that it holds for."""
        found = getattr(self, self.verb, None)
        return None if found is None else found.condition

    @property
    def named(self) -> ArmGroup | None:
        """The arms that it is about, where it is about some."""
        if self.verb == "eligible":
            return self if self.arm is not None or self.of is not None else None
        return self.cap or self.floor

    @property
    def times(self) -> tuple[float, float]:
        """The times (unix seconds) from which on, and up to which, it holds."""
        begin, until = self.begin, self.until
        return (
            -inf if begin is None else begin.timestamp(),
            inf if until is None else until.timestamp(),
        )

    @property
    def timed(self) -> bool:
        """Whether it has `from` or `until`."""
        return self.begin is not None or self.until is not None

    def holds_at(self, at: float) -> bool:
        """Whether a time (unix seconds) lies within `from` and `until`."""
        begin, until = self.times
        return begin <= at < until

    @model_validator(mode="after")
    def _does_one_thing(self) -> Self:
        verbs = [verb for verb in VERBS if getattr(self, verb) is not None]
        eligible = [name for name in ("eligible_if", "arm", "of", "value") if _given(self, name)]
        if len(verbs) > 1 or (verbs and eligible):
            found = ", ".join([*verbs, *eligible])
            raise ValueError(f"a rule does one thing, and this one has {found}: write one for each")
        if not verbs and self.eligible_if is None and self.begin is None and self.until is None:
            allowed = (
                "`eligible_if`, `from`, `until`, `pin`, `cap`, `floor`, `explore` or `at_most`"
            )
            raise ValueError(f"needs one of {allowed}")
        if self.begin is not None and self.until is not None and self.begin >= self.until:
            raise ValueError("`from` must be before `until`")
        return self


def _given(model: Model, name: str) -> bool:
    return getattr(model, name) is not None


class Rules(Sparse, extra="allow"):
    """All rules of an experiment, by their names, and what holds for them together."""

    __pydantic_extra__: dict[Name, DeclaredRule] = Field(init=False)

    if_empty: Annotated[str, Field(min_length=1, max_length=256)] | None = Field(
        None,
        description="Arm that is shown where no arm is eligible; left out: such a request is 409.",
    )
    measure: Annotated[float, Field(gt=0, le=0.5)] | None = Field(
        None,
        description="The share of units for which each `cap`, `floor`, `explore` and `at_most` is "
        "off, to measure what it costs; left out: nothing is measured.",
    )

    @property
    def named(self) -> dict[str, DeclaredRule]:
        """The rules by name, in the order of the file."""
        return self.__pydantic_extra__

    @property
    def measured(self) -> list[str]:
        """The names of the rules that are measured, in the order of the file."""
        if self.measure is None:
            return []
        return [name for name, rule in self.named.items() if rule.measurable]


# -- checks ----------------------------------------------------------------------------------------

_TYPES: Mapping[type[Model], ValueType] = {
    Numeric: "number",
    Boolean: "boolean",
    Categorical: "text",
    Hashed: "text",
}
"""Types of the features that a condition can read; a vector has none."""

Location = tuple[str, ...]


class ValueTypes:
    """Types of the values that conditions read.

    context   of features of the context
    arm       of features of arms and of attributes
    """

    def __init__(self, features: Features, attributes: Mapping[str, AttributeType]) -> None:
        self.context = _types_of(features.context)
        self.arm = {**_types_of(features.arm), **attributes}

    @property
    def all(self) -> dict[str, ValueType]:
        return {**self.context, **self.arm}


def _types_of(features: Mapping[str, Feature]) -> dict[str, ValueType]:
    return {
        name: _TYPES[type(feature)] for name, feature in features.items() if type(feature) in _TYPES
    }


def unknown_arms(rules: Rules, arms: Collection[str]) -> Iterator[tuple[Location, str]]:
    """Yield where rules name arms that a catalogue lacks, and which; none where it has no arm yet.

    A new definition has none. Later an arm may go and leave its rule behind, which then does
    nothing.
    """
    for arm, loc in _arms_named(rules):
        if arms and arm not in arms:
            yield loc, f"no arm {quoted(arm)}{suggestion(arm, arms)}"


def faults_of_rules(rules: Rules, types: ValueTypes) -> Iterator[tuple[Location, str]]:
    """Yield what is wrong with single rules, and where."""
    if len(rules.named) > RULES:
        yield (), f"must have at most {RULES} rules"
        return
    for name, rule in rules.named.items():
        if not re.fullmatch(NAME, name):
            yield (name,), NAME_RULE
        if name in (EXCLUDE, ONLY):
            yield (name,), "is a member of requests: give the rule another name"
        yield from (((name, *loc), message) for loc, message in _faults_of(rule, types))


def _arms_named(rules: Rules) -> Iterator[tuple[str, Location]]:
    if rules.if_empty is not None:
        yield rules.if_empty, ("if_empty",)
    for name, rule in rules.named.items():
        if rule.pin is not None:
            yield rule.pin.arm, (name, "pin", "arm")
        elif (group := rule.named) is not None and group.arm is not None:
            yield group.arm, (name, "arm") if group is rule else (name, rule.verb, "arm")


def _faults_of(rule: DeclaredRule, types: ValueTypes) -> Iterator[tuple[Location, str]]:
    where = () if rule.verb == "eligible" else (rule.verb,)
    if (group := rule.named) is not None:
        yield from (((*where, name), message) for name, message in group.faults(types.arm))
    if rule.verb == "eligible" and rule.of in (NEW, EACH_ARM):
        yield ("of",), "takes the name of an attribute or a feature of arms here"
    if rule.at_most is not None and rule.at_most.of not in types.arm:
        near = suggestion(rule.at_most.of, types.arm)
        found = quoted(rule.at_most.of)
        yield ("at_most", "of"), f"no attribute or feature of arms {found}{near}"
    for loc, text, known in _conditions(rule, types):
        try:
            parse(text, known)
        except ValueError as fault:
            yield loc, str(fault)


def _conditions(
    rule: DeclaredRule, types: ValueTypes
) -> Iterator[tuple[Location, str, Mapping[str, ValueType]]]:
    """Yield the conditions of a rule: where each is, its text, and the types of what it reads."""
    if rule.eligible_if is not None:
        yield ("eligible_if",), rule.eligible_if, types.all
    if rule.condition is not None:
        yield (rule.verb, "if"), rule.condition, types.context


def impossible_values(
    rules: Rules, features: Features, types: ValueTypes
) -> Iterator[tuple[Location, str]]:
    """Yield where rules name a value that their categorical feature never has, and which. The
    conditions are right in themselves."""
    for name, rule in rules.named.items():
        for loc, feature, value in _values_named(rule, types):
            for message in impossible_texts([(feature, value)], features):
                yield (name, *loc), message


def impossible_texts(texts: Iterable[tuple[str, str]], features: Features) -> Iterator[str]:
    """Yield which texts their categorical features never have. texts: each after its feature."""
    for feature, value in texts:
        declared = features.context.get(feature) or features.arm.get(feature)
        if not isinstance(declared, Categorical) or declared.unknown == "other":
            continue
        if value not in declared.values:
            near = suggestion(value, declared.values)
            yield f"{quoted(feature)} is never {quoted(value)}{near}"


def _values_named(rule: DeclaredRule, types: ValueTypes) -> Iterator[tuple[Location, str, str]]:
    """Yield the texts that a rule names: where, of which name, and the text."""
    for loc, text, known in _conditions(rule, types):
        for feature, value in parse(text, known).texts:
            yield loc, feature, value
    group = rule.named
    if group is not None and group.of is not None and isinstance(group.value, str):
        yield ("is",) if group is rule else (rule.verb, "is"), group.of, group.value
