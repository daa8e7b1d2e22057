"""Faults that pydantic finds, as messages with paths, without an echo of the input."""

import re
from collections.abc import Collection, Sequence
from itertools import islice
from types import UnionType
from typing import Annotated, TypeGuard, Union, cast, get_args, get_origin

from pydantic import (
    BaseModel,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from pydantic_core import ErrorDetails, InitErrorDetails

from service.errors import Fault
from service.features.declaration import NAME, NAME_RULE
from service.naming import nearest, quoted, suggestion

FAULTS = 20
"""Most faults that are reported: a megabyte can hold a hundred thousand."""
MEMBERS_PER_PART = 100
"""Members of a long mapping that are validated together."""
ALTERNATIVES = 5
"""Most types that a value may have: pydantic reports a fault for each that it tried."""


def _read_in_parts(given: object, read: ValidatorFunctionWrapHandler) -> object:
    if not isinstance(given, dict) or len(given) <= MEMBERS_PER_PART:
        return read(given)
    items, whole = iter(given.items()), dict[object, object]()
    errors = list[InitErrorDetails]()
    while part := dict(islice(items, MEMBERS_PER_PART)):
        try:
            whole |= read(part)
        except ValidationError as error:
            errors += [cast(InitErrorDetails, each) for each in error.errors()]
            if len(errors) >= FAULTS:
                break
    if errors:
        raise ValidationError.from_exception_data("members", errors)
    return whole


IN_PARTS = WrapValidator(_read_in_parts)
"""Validator of a long mapping, part by part up to the first faults: pydantic would collect all, and
thirty thousand of them took four seconds."""


def without_nulls(given: object) -> object:
    """Drop the members of a mapping that are null: they count as left out."""
    if isinstance(given, dict) and None in given.values():
        return {name: value for name, value in given.items() if value is not None}
    return given


def unknown(name: str, known: Collection[str]) -> str:
    """Say that nothing has this name, and which names there are."""
    return f"is unknown{suggestion(name, known) or ': leave it out'}"


def faults_of(errors: Sequence[ErrorDetails], content: object, model: object = None) -> list[Fault]:
    """Return one fault for each value, from `ValidationError.errors()` over `content`. model: what
    it was to be, whose names are told in place of an unknown one."""
    by_path: dict[str, list[ErrorDetails]] = {}
    for error in errors[: ALTERNATIVES * FAULTS]:
        by_path.setdefault(".".join(map(str, path_of(error, content))), []).append(error)
    for group in by_path.values():
        if group[0]["type"] == "extra_forbidden":
            *keys, name = path_of(group[0], content)
            known = _names_at(model, tuple(keys), content)
            group[0] = {**group[0], "msg": unknown(str(name), known)}
    return [
        Fault(path, _message(group))
        for path, group in by_path.items()
        if not (
            all(map(_is_of_type, group)) and any(other.startswith(f"{path}.") for other in by_path)
        )
    ]


def path_of(error: ErrorDetails, content: object) -> tuple[str | int, ...]:
    """Return the path of an error in the content: pydantic also names each type that it tried."""
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
    if error["type"].startswith("union_tag_"):
        where.append(_tag(error))
    return tuple(where)


TEXTS = {
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
    "dict_type": "must be an object",
    "list_type": "must be a list",
    "tuple_type": "must be a list",
    "string_type": "must be a string",
    "string_unicode": "holds half of a surrogate pair, which is no character",
    "string_pattern_mismatch": "has characters that are not allowed here",
    "int_type": "must be an integer",
    "int_from_float": "must be an integer",
    "int_parsing": "must be an integer",
    "int_parsing_size": "must be an integer of fewer digits",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "missing": "is required",
    "union_tag_not_found": "is required",
}
"""Our words for the types of errors of pydantic. The others begin with "Input should be" and go on
with what is allowed."""
TIME_TEXT = "must be a time with its zone, as 2026-01-31T12:00:00Z, or unix seconds"
COUNTED_NOUNS = {"Dictionary": "member", "Value": "character"}
"""Nouns for what is counted, by pydantic's name of the type: an id that a validator of ours has
seen is a Value. Other types have items."""


def _is_of_type(error: ErrorDetails) -> bool:
    return error["type"].endswith(("_type", "_parsing"))


def _message(group: Sequence[ErrorDetails]) -> str:
    """Say in one message what is wrong with a value. Of the types that it may have, only those
    count that fit it and found it wrong; a word that is none of the permitted ones may as well be
    of a wrong type."""
    if len(group) > 1:
        wrong = [error for error in group if not _is_of_type(error)]
        if all(error["type"] == "literal_error" for error in wrong):
            *others, last = dict.fromkeys(
                _text(error).removeprefix("must be ")
                for error in sorted(group, key=lambda error: error["type"] == "literal_error")
            )
            return f"must be {', '.join(others)}{' or ' * bool(others)}{last}"
        group = wrong
    return "; ".join(dict.fromkeys(map(_text, group)))


def _text(error: ErrorDetails) -> str:
    """Say what is allowed, without a word of pydantic and without the value that was given."""
    kind, context = error["type"], error.get("ctx", {})
    if kind == "string_pattern_mismatch" and context["pattern"] == NAME:
        return NAME_RULE
    if text := TEXTS.get(kind):
        return text
    if kind.startswith(("datetime_", "timezone_")):
        return TIME_TEXT
    if kind.endswith(("too_short", "too_long")):
        bound = context.get("min_length", context.get("max_length"))
        unit = "character" if kind.startswith("string_") else "item"
        unit = COUNTED_NOUNS.get(context.get("field_type", ""), unit)
        side = "least" if kind.endswith("short") else "most"
        return f"must have at {side} {bound:,} {unit}{'s' * (bound != 1)}"
    if kind == "union_tag_invalid":
        tags = re.findall(r"'([^']+)'", context["expected_tags"])
        return f"there is no such {_tag(error)}{suggestion(str(context['tag']), tags)}"
    text = error["msg"].removeprefix("Value error, ")
    text = re.sub(r"^Input should (be|have)", r"must \1", text)
    if kind == "literal_error" and isinstance(given := error.get("input"), str):
        near = nearest(given, re.findall(r"'([^']+)'", context["expected"]))
        text += f"; did you mean {quoted(near)}?" if near else ""
    return text


def _tag(error: ErrorDetails) -> str:
    """Return the member that says which of several types an object has: `kind` or `type`."""
    return str(error["ctx"]["discriminator"]).strip("'")


def _names_at(model: object, keys: tuple[str | int, ...], content: object) -> list[str]:
    """List the names that an object at a path of the content may have."""
    for key in keys:
        content = content.get(key) if isinstance(content, dict) else None
        model = _inside(model, key, content)
    if not _is_model(model):
        return []
    return [field.alias or name for name, field in model.model_fields.items()]


def _inside(model: object, key: str | int, content: object) -> object:
    """Find the type of a setting: of a union, the member that `kind` or `type` names."""
    if _is_model(model):
        field = model.model_fields.get(str(key))
        others = get_args(model.__annotations__.get("__pydantic_extra__"))
        found = field.annotation if field else (others or (None,))[-1]
    else:
        found = (get_args(model) or (None,))[-1]  # of a dict: its values
    while get_origin(found) is Annotated:
        found = get_args(found)[0]
    if get_origin(found) not in (Union, UnionType):
        return found
    given = content if isinstance(content, dict) else {}
    members = [*filter(_is_model, get_args(found))]
    if len(members) == 1:
        return members[0]
    for member in members:
        for tag in ("kind", "type"):
            named = member.model_fields.get(tag)
            if named is not None and given.get(tag) in get_args(named.annotation):
                return member
    return None


def _is_model(found: object) -> TypeGuard[type[BaseModel]]:
    return isinstance(found, type) and issubclass(found, BaseModel)
