"""What pydantic finds wrong, as paths in what was given and messages, without an echo of it."""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BeforeValidator
from pydantic_core import PydanticKnownError

from service.errors import Fault

FAULTS = 20
"""Told at most: a megabyte can hold a hundred thousand."""
ALTERNATIVES = 5
"""Types that a value may have, at most: each that was tried and failed is a fault to pydantic."""


def at_most(members: int) -> BeforeValidator:
    """Refuses a mapping with more before it looks at any: each might be a fault of its own, and a
    hundred thousand of them take a second."""

    def check(given: Any) -> Any:
        if isinstance(given, dict) and len(given) > members:
            lengths = {"max_length": members, "actual_length": len(given)}
            raise PydanticKnownError("too_long", {"field_type": "Dictionary", **lengths})
        return given

    return BeforeValidator(check)


def faults_of(errors: Sequence[Mapping[str, Any]], content: Any) -> list[Fault]:
    """One fault a value, from `ValidationError.errors()` over `content`."""
    by_path: dict[str, list[Mapping[str, Any]]] = {}
    for error in errors[: ALTERNATIVES * FAULTS]:
        by_path.setdefault(".".join(map(str, path_of(error, content))), []).append(error)
    return [
        Fault(path, _message(group))
        for path, group in by_path.items()
        if not (
            all(map(_is_of_type, group)) and any(other.startswith(f"{path}.") for other in by_path)
        )
    ]


def path_of(error: Mapping[str, Any], content: Any) -> tuple[str | int, ...]:
    """Where a fault is in the content: pydantic also names each type that it tried."""
    where: list[str | int] = []
    value, parts = content, error["loc"]
    for index, part in enumerate(parts):
        if isinstance(value, list):
            inside = isinstance(part, int) and part < len(value)
        else:
            inside = isinstance(value, dict) and part in value
        missing = error["type"] == "missing" and index == len(parts) - 1
        if inside or missing:
            value = value[part] if inside else None
            where.append(part)
    return tuple(where)


def _is_of_type(error: Mapping[str, Any]) -> bool:
    return str(error["type"]).endswith(("_type", "_parsing"))


def _message(group: Sequence[Mapping[str, Any]]) -> str:
    """Of the types that a value may have, those that took it and found it wrong have a say."""
    if len(group) > 1:
        group = [error for error in group if not _is_of_type(error)]
    texts = [
        f"{error['ctx']['discriminator']} must be one of {error['ctx']['expected_tags']}"
        if error["type"] == "union_tag_invalid"  # its own message says the tag that was given
        else str(error["msg"]).removeprefix("Value error, ")
        for error in group
    ]
    return "; ".join(dict.fromkeys(texts)) or "is of a type that is not taken here"
