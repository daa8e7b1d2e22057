"""Tables and numbers as text."""

from collections.abc import Sequence


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a line for each row: names to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows
    ]


def percent(share: float) -> str:
    """Write a share as it was given."""
    return f"{100 * share:.6g} percent"


def figure(value: float) -> str:
    """Write two significant digits, or all in front of the point."""
    return f"{value:,.0f}" if abs(value) >= 10 else f"{value:.2g}"
