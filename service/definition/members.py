"""JSON whose objects give each member once: readers of JSON take the last one and say nothing."""

import json
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from service.definition.faults import FAULTS
from service.errors import Fault, Invalid

TWICE = "is given more than once"

ValuePath = tuple["ValuePath", str | int] | None
"""Path of a value: that of its parent, and its name there. None: the whole. A path as text would be
as long as all names above, for each of a hundred thousand values."""


class _Repeating(dict[str, Any]):
    """An object that gives some members more than once."""

    __slots__ = ("members",)

    def __init__(self, pairs: Sequence[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        counts = Counter(name for name, _ in pairs)
        self.members = [name for name, count in counts.items() if count > 1]


def parse_json(
    text: str | bytes, parse_int: Callable[[str], object] | None = None
) -> tuple[Any, bool]:
    """Parse JSON, and return the value and whether an object in it gives a member more than once:
    `repeated` says which. Raises as `json.loads`."""
    if parse_int is None and isinstance(text, str):
        with suppress(ValueError):  # what is wrong with others is found below
            return _READ(text), False
    repeating = False

    def made(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal repeating
        found = dict(pairs)
        if len(found) == len(pairs):
            return found
        repeating = True
        return _Repeating(pairs)

    return json.loads(text, object_pairs_hook=made, parse_int=parse_int), repeating


def repeated(value: object, apart: str = "") -> Invalid | None:
    """Name the members of a parsed value that are given more than once, the outermost first.

    apart: a list of the outermost object whose items are left out, since each is refused for itself
    """
    found, left = list[Fault](), deque[tuple[object, ValuePath]]([(value, None)])
    while left and len(found) < FAULTS:
        each, place = left.popleft()
        if isinstance(each, _Repeating):
            found += [Fault(_path((place, name)), TWICE) for name in each.members[:FAULTS]]
        if isinstance(each, dict):
            for name, member in each.items():
                if place is not None or name != apart or not isinstance(member, list):
                    left.append((member, (place, name)))
        elif isinstance(each, list):
            left.extend((item, (place, index)) for index, item in enumerate(each))
    return Invalid(TWICE, faults=found) if found else None


def differ(text: bytes) -> bool:
    """Say whether all members of each object certainly differ."""
    try:
        _READ(text.decode())
    except (ValueError, RecursionError):
        return False
    return True


def _with_different(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError
    return found


_READ = json.JSONDecoder(object_pairs_hook=_with_different).decode
"""Decoder, made once: `json.loads` makes one a call, which takes as long as a short text."""


def parse_unique(text: str | bytes) -> Any:
    """Parse JSON. Raises as `json.loads`, and ValueError with the path of a member that is given
    more than once."""
    value, repeating = parse_json(text)
    if repeating and (refusal := repeated(value)):
        raise ValueError(f"{refusal.faults[0].path}: {TWICE}")
    return value


def _path(place: ValuePath) -> str:
    steps = list[str]()
    while place is not None:
        place, step = place
        steps.append(str(step))
    return ".".join(reversed(steps))
