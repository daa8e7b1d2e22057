"""A request for a decision, as the caller sends it."""

from collections.abc import Mapping, Sequence
from math import inf
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from service.features.declaration import NAME

NO_DOTS = r"^(?!\.{1,2}(?!\n)$)"
"""Pattern of any id but '.' and '..', which no path can carry. Python's $ alone also matches before
a line end."""
NO_LINE_END = r"(?!\n)$"
"""End of a pattern that matches no line end; Python's $ alone also matches before one."""
RequestedName = Annotated[str, Meta(pattern=NAME.replace("$", NO_LINE_END))]
RequestedId = Annotated[str, Meta(min_length=1, max_length=256)]
NewId = Annotated[str, Meta(min_length=1, max_length=256, pattern=NO_DOTS)]
"""Id of an arm that the catalogue need not have."""
RequestedUnit = Annotated[str, Meta(min_length=1, max_length=256, pattern=NO_DOTS)]
RequestedText = Annotated[str, Meta(max_length=256)]
RequestedValue = bool | float | RequestedText | list[float]
RequestedValues = Annotated[dict[str, RequestedValue | None], Meta(max_length=256)]
"""Features by name; null is the same as a value that is left out."""
RequestedAttribute = bool | float | RequestedText
RequestedAttributes = Annotated[dict[str, RequestedAttribute | None], Meta(max_length=256)]
"""Attributes by name; null is the same as one that is left out."""


RequestedT = TypeVar("RequestedT")


def given(values: Mapping[str, RequestedT | None]) -> dict[str, RequestedT]:
    """Return the values that are not null."""
    return {name: value for name, value in values.items() if value is not None}


class InlineArm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An arm outside the catalogue."""

    id: NewId
    features: RequestedValues = {}
    attributes: RequestedAttributes = {}

    def __post_init__(self) -> None:
        if None in self.features.values():
            msgspec.structs.force_setattr(self, "features", given(self.features))
        if self.attributes and None in self.attributes.values():
            msgspec.structs.force_setattr(self, "attributes", given(self.attributes))

    def least_members(self) -> int:
        """Count the members that the JSON of this arm has at least."""
        count = 2 + len(self.features) if self.features else 1
        return count + 1 + len(self.attributes) if self.attributes else count


RequestedArms = Sequence[str | InlineArm]


class SelectRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to choose from, for whom and when. The body of `/select`."""

    context: Annotated[
        RequestedValues, Meta(description="Features of the user and the moment, by name.")
    ] = {}
    experiment: Annotated[
        RequestedName | None, Meta(description="Left out: the default experiment, or the only one.")
    ] = None
    policy: Annotated[
        RequestedName | None,
        Meta(description="Left out: one is assigned by traffic share, sticky to `unit`."),
    ] = None
    unit: Annotated[
        RequestedUnit | None,
        Meta(description="Who the decision is for; stored only as a keyed hash."),
    ] = None
    arms: Annotated[
        Annotated[list[RequestedId | InlineArm], Meta(min_length=1)] | None,
        Meta(
            description="Ids of catalogue arms, or arms with features. Left out: all active arms."
        ),
    ] = None
    exclude: Annotated[
        list[RequestedId],
        Meta(description="Ids of arms that are not to be shown, such as those in the basket."),
    ] = []
    only: Annotated[
        Annotated[list[RequestedId], Meta(min_length=1)] | None,
        Meta(
            description="Ids of arms: no other of the candidates is shown. Unlike `arms`, it may "
            "name some that are not there. Left out: all."
        ),
    ] = None
    top_k: Annotated[int, Meta(ge=1, description="How many arms to rank.")] = 1
    deferred: Annotated[
        bool,
        Meta(
            description="It may never be shown: nothing is learned of it before "
            "POST /decisions/{id}/activate."
        ),
    ] = False

    def __post_init__(self) -> None:
        if None in self.context.values():
            msgspec.structs.force_setattr(self, "context", given(self.context))

    def least_members(self) -> int:
        """Count the members that the JSON of this request has at least."""
        named = (self.experiment is not None) + (self.policy is not None) + (self.unit is not None)
        count = named + (self.top_k != 1) + self.deferred
        count += bool(self.exclude) + (self.only is not None)
        if self.context:
            count += 1 + len(self.context)
        if self.arms is not None:
            count += 1 + sum(arm.least_members() for arm in self.arms if not isinstance(arm, str))
        return count


class Envelope(msgspec.Struct, frozen=True):
    """What comes with a request beside its body.

    key        the same one gives the same decision (None: each request is another)
    caller     the name of the API key that asks; '' where keys are off
    deadline   by the loop's clock: later the decision is not begun any more
    """

    key: str | None = None
    caller: str = ""
    deadline: float = inf


BARE = Envelope()
