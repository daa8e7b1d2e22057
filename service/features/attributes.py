"""Attributes of arms: values that rules read and no policy learns. An arm may lack any of them."""

from collections.abc import Mapping
from typing import Any

from service.errors import Fault
from service.features.declaration import AttributeType
from service.naming import suggestion

ALLOWED: dict[AttributeType, str] = {
    "number": "must be a number",
    "text": "must be a string",
    "boolean": "must be true or false",
}
"""What a value of each type has to be, in the words of features."""


def attribute_faults(
    declared: Mapping[str, AttributeType], values: Mapping[str, object], path: str
) -> list[Fault]:
    """Find each attribute that is unknown or of another type than declared, under `path`. None is
    no value, of any type."""
    unknown = [name for name in values if name not in declared]
    faults = [Fault(f"{path}.{name}", "there is no such attribute") for name in unknown]
    if unknown:
        near = suggestion(unknown[0], declared)  # once: it takes a while
        faults[0] = Fault(faults[0].path, faults[0].message + near)
    faults += [
        Fault(f"{path}.{name}", ALLOWED[declared[name]])
        for name, value in values.items()
        if name in declared and value is not None and not _is_of(declared[name], value)
    ]
    return faults


def fitting(declared: Mapping[str, AttributeType], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes that are declared with the type of their value."""
    return {
        name: value
        for name, value in values.items()
        if name in declared and _is_of(declared[name], value)
    }


def _is_of(type: AttributeType, value: object) -> bool:
    match type:
        case "number":
            return isinstance(value, float | int) and not isinstance(value, bool)
        case "text":
            return isinstance(value, str)
        case "boolean":
            return isinstance(value, bool)
