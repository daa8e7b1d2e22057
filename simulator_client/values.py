"""Parsers of option values; argparse reports a fault beside the option's name."""

import argparse
import re
from math import isfinite


def names(text: str) -> tuple[str, ...]:
    """Names, separated by commas."""
    found = tuple(name.strip() for name in text.split(",") if name.strip())
    if not found:
        raise argparse.ArgumentTypeError("names at least one, separated by commas")
    return found


def key(text: str) -> str:
    """An API key; it goes into a header as it is."""
    if not re.fullmatch(r"[!-~]{1,512}", text):
        raise argparse.ArgumentTypeError("is no key: it has blanks, or is none at all")
    return text


def count(text: str) -> int:
    """A whole number from 1."""
    return _number(text, 1)


def seed(text: str) -> int:
    """A whole number from 0."""
    return _number(text, 0)


def _number(text: str, least: int) -> int:
    digits = text.replace("_", "").replace(",", "")
    number = int(digits) if digits.isdecimal() else -1
    if number < least:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {least}")
    return number


def seconds(text: str) -> float:
    """Seconds, from 0."""
    number = _finite(text)
    if number is None or number < 0.0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return number


def above_zero(text: str) -> float:
    """A number above 0."""
    number = _finite(text)
    if number is None or number <= 0.0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return number


def _finite(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if isfinite(number) else None
