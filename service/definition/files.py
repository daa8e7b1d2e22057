"""Files of text, TOML and JSON. What is wrong with one is a ValueError in plain words."""

import tomllib
from json import JSONDecodeError
from pathlib import Path

from service.definition.members import parse_json, repeated

TOO_MANY_DIGITS = "a number has more than 4,300 digits"
NESTED = "it is nested too deeply"


def text_of(path: Path) -> str:
    """Read a file of UTF-8, with or without a byte order mark. Raises ValueError that says why it
    cannot be read."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as fault:
        raise ValueError(fault.strerror or "cannot be read") from fault
    except UnicodeDecodeError as fault:
        line = fault.object.count(b"\n", 0, fault.start) + 1
        raise ValueError(f"not UTF-8 (at line {line})") from fault


def toml_of(text: str) -> dict[str, object]:
    """Parse TOML. Raises ValueError that says in plain words what is wrong."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as fault:
        said = str(fault)
        raise ValueError(f"not TOML: {said[:1].lower()}{said[1:]}") from fault
    except RecursionError as fault:
        raise ValueError(f"not TOML: {NESTED}") from fault
    except ValueError as fault:
        raise ValueError(f"not TOML: {TOO_MANY_DIGITS}") from fault


def json_of(text: str) -> object:
    """Parse JSON. Raises ValueError that says in plain words what is wrong, also with the path of a
    member that is given more than once."""
    try:
        found, repeating = parse_json(text)
    except JSONDecodeError as fault:
        raise ValueError(f"not JSON: {fault.msg}") from fault
    except RecursionError as fault:
        raise ValueError(f"not JSON: {NESTED}") from fault
    except ValueError as fault:
        raise ValueError(f"not JSON: {TOO_MANY_DIGITS}") from fault
    if repeating and (refusal := repeated(found)):
        [first, *_] = refusal.faults
        raise ValueError(f"{first.path}: {first.message}")
    value: object = found
    return value
