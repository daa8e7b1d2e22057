"""A request for a decision."""

from collections.abc import Mapping, Sequence
from math import inf
from typing import Annotated

import msgspec
from msgspec import Meta

NO_DOTS = r"^(?!\.{1,2}(?!\n)$)"
"""Pattern of any id but '.' and '..', which no path can carry. Python's $ alone also matches before
a line end."""
RequestedId = Annotated[str, Meta(min_length=1, max_length=256)]
NewId = Annotated[str, Meta(min_length=1, max_length=256, pattern=NO_DOTS)]
"""Id of an arm that the catalogue need not have."""
RequestedUnit = Annotated[str, Meta(min_length=1, max_length=256, pattern=NO_DOTS)]
RequestedText = Annotated[str, Meta(max_length=256)]
RequestedValue = bool | float | RequestedText | list[float]
RequestedValues = Annotated[dict[str, RequestedValue | None], Meta(max_length=256)]
"""Features by name; null is the same as a value that is left out."""


def given(values: Mapping[str, RequestedValue | None]) -> dict[str, RequestedValue]:
    """Return the values that are not null."""
    return {name: value for name, value in values.items() if value is not None}


class InlineArm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An arm outside the catalogue."""

    id: NewId
    features: RequestedValues = {}

    def __post_init__(self) -> None:
        if None in self.features.values():
            msgspec.structs.force_setattr(self, "features", given(self.features))

    def least_members(self) -> int:
        """Count the members that the JSON of this arm has at least."""
        return 2 + len(self.features) if self.features else 1


RequestedArms = Sequence[str | InlineArm]


class SelectRequest(msgspec.Struct, frozen=True):
    """One request for a decision. experiment, policy, arms: None where left out.

    key        the same one gives the same decision (None: each request is another)
    deferred   it may never be shown: nothing is learned of it before it is activated
    caller     the name of the API key that asks
    deadline   by `perf_counter`: later it is not begun any more
    """

    context: dict[str, RequestedValue]
    experiment: str | None = None
    policy: str | None = None
    unit: str | None = None
    arms: RequestedArms | None = None
    top_k: int = 1
    key: str | None = None
    deferred: bool = False
    caller: str = ""
    deadline: float = inf
