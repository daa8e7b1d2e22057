"""What a definition changes, in lines for a terminal."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from service.definition.difference import Difference
    from service.offline.definition_client import DefinitionAnswer

LISTED_CHANGES = 20
"""Names of one part that are printed, for each kind of change."""


def answer_lines(told: "DefinitionAnswer") -> list[str]:
    """Write what a definition changes, and which policies start from the prior."""
    lines = difference_lines(told.changes)
    for policy, reason in told.restarted.items():
        lines.append(f"policies.{policy} starts from the prior: {reason}")
    return lines


def difference_lines(changes: "Difference") -> list[str]:
    """Write a line with `+` for each part that is added, with `-` for each that is removed, with
    `~` for each that is changed."""
    from service.definition.difference import grouped
    from service.naming import shortened

    lines = []
    for sign, paths in (("+", changes.added), ("-", changes.removed), ("~", [*changes.changed])):
        for part, names in grouped(paths).items():
            for each in names[:LISTED_CHANGES]:
                path = f"{part}.{each}" if each else part
                change = changes.changed.get(path) if sign == "~" and part != "arms" else None
                values = (
                    f": {shortened(change.before)} -> {shortened(change.after)}" if change else ""
                )
                lines.append(f"{sign} {path}{values}")
            if len(names) > LISTED_CHANGES:
                lines.append(f"{sign} {part}: {len(names) - LISTED_CHANGES:,} more")
    return lines
