"""Faults that pydantic finds, as messages with paths, without an echo of the input."""

import re
from collections.abc import Sequence

from pydantic import BeforeValidator
from pydantic_core import ErrorDetails, PydanticKnownError

from service.errors import Fault

FAULTS = 20
"""Reported at most: a megabyte can hold a hundred thousand."""
ALTERNATIVES = 5
"""Types that a value may have, at most: pydantic reports a fault for each that it tried."""


def at_most(members: int) -> BeforeValidator:
    """Refuse a longer mapping before its members are validated: each might be a fault of its own,
    and a hundred thousand of them take a second."""

    def check(given: object) -> object:
        if isinstance(given, dict) and len(given) > members:
            lengths = {"max_length": members, "actual_length": len(given)}
            raise PydanticKnownError("too_long", {"field_type": "Dictionary", **lengths})
        return given

    return BeforeValidator(check)


def without_nulls(given: object) -> object:
    """A mapping without its members that are null: they count as left out."""
    if isinstance(given, dict) and None in given.values():
        return {name: value for name, value in given.items() if value is not None}
    return given


def faults_of(errors: Sequence[ErrorDetails], content: object) -> list[Fault]:
    """One fault a value, from `ValidationError.errors()` over `content`."""
    by_path: dict[str, list[ErrorDetails]] = {}
    for error in errors[: ALTERNATIVES * FAULTS]:
        by_path.setdefault(".".join(map(str, path_of(error, content))), []).append(error)
    return [
        Fault(path, _message(group))
        for path, group in by_path.items()
        if not (
            all(map(_is_of_type, group)) and any(other.startswith(f"{path}.") for other in by_path)
        )
    ]


def path_of(error: ErrorDetails, content: object) -> tuple[str | int, ...]:
    """Where a fault is in the content: pydantic also names each type that it tried."""
    where: list[str | int] = []
    value, parts = content, error["loc"]
    for index, part in enumerate(parts):
        if isinstance(value, dict) and part in value:
            value = value[part]
        elif isinstance(value, list) and isinstance(part, int) and part < len(value):
            value = value[int(part)]
        elif error["type"] == "missing" and index == len(parts) - 1:
            value = None
        else:
            continue
        where.append(part)
    return tuple(where)


PLAIN = {
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
    "dict_type": "must be an object",
    "extra_forbidden": "is unknown: leave it out",
    "missing": "is required",
}
"""What pydantic says in its own words, by the type of the error."""


def _is_of_type(error: ErrorDetails) -> bool:
    return error["type"].endswith(("_type", "_parsing"))


def _message(group: Sequence[ErrorDetails]) -> str:
    """Of the types that a value may have, only those count that fit it and found it wrong."""
    if len(group) > 1:
        group = [error for error in group if not _is_of_type(error)]
    texts = [
        f"{error['ctx']['discriminator']} must be one of {error['ctx']['expected_tags']}"
        if error["type"] == "union_tag_invalid"  # its own message says the tag that was given
        else PLAIN.get(error["type"]) or _plain(error["msg"])
        for error in group
    ]
    return "; ".join(dict.fromkeys(texts)) or "is of a type that is not taken here"


def _plain(message: str) -> str:
    """A message of pydantic, or of a validator of ours, without the words that lead it in."""
    message = message.removeprefix("Value error, ")
    return re.sub(r"^Input should (be|have)", r"must \1", message)
