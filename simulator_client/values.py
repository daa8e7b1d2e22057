"""Parsers of option values; argparse reports a fault beside the option's name."""

import argparse
import re
from collections.abc import Callable
from math import inf


def names(text: str) -> tuple[str, ...]:
    found = tuple(name.strip() for name in text.split(",") if name.strip())
    if not found:
        raise argparse.ArgumentTypeError("names at least one, separated by commas")
    return found


def key(text: str) -> str:
    """Parse an API key, which goes into a header."""
    if not re.fullmatch(r"[!-~]{1,512}", text):
        raise argparse.ArgumentTypeError("is no key: it has blanks, or is empty")
    return text


def whole(least: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        digits = text.replace("_", "").replace(",", "")
        if not digits.isdecimal() or int(digits) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {least}")
        return int(digits)

    return parse


def number(told: str, allowed: Callable[[float], bool]) -> Callable[[str], float]:
    """Make a parser of finite numbers. told: those that are allowed, in words."""

    def parse(text: str) -> float:
        try:
            found = float(text)
        except ValueError:
            found = inf
        if found == inf or not allowed(found):
            raise argparse.ArgumentTypeError(f"{text!r} is not a number {told}")
        return found

    return parse


count, seed = whole(1), whole(0)
seconds = number("from 0", lambda found: found >= 0.0)
above_zero = number("above 0", lambda found: found > 0.0)
fraction = number("between 0 and 1", lambda found: 0.0 < found < 1.0)
share = number("from 0 to 1", lambda found: 0.0 <= found <= 1.0)
