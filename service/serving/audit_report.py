"""What an audit has found: each fault by name, counts of them, and the table of it all."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import ceil
from typing import Any, Literal

Kind = Literal[
    "choice", "probabilities", "tie", "features", "fields", "missing", "unreadable", "log"
]

KEPT = 1_000
"""AuditReport of an experiment that are held, and written as JSON; all are counted."""

LISTED = 20
"""AuditReport of an experiment that are printed."""

ROWS_A_TIE = 10_000
"""A row in so many may differ by a tie of its scores that rounding decided."""

COLUMNS: dict[str, tuple[Kind, ...]] = {
    "choices": ("choice",),
    "probabilities": ("probabilities", "tie"),
    "beyond": ("probabilities",),
    "features": ("features",),
    "fields": ("fields",),
    "missing": ("missing",),
    "unreadable": ("unreadable",),
    "log": ("log",),
}
"""Columns of the table, and the kinds that each counts."""


@dataclass(frozen=True, slots=True)
class Discrepancy:
    """One thing that differs.

    choice          what was shown does not follow from the probabilities and the seed
    probabilities   they do not follow from head, features and bank
    tie             the same, within the bound: scores so close that rounding decided
    features        x is not what the features encode to, in a row or in an event
    fields          what a row or an event says beside that: version, bank, times, reward, ...
    missing         a row that the log speaks of
    unreadable      a row that is no decision
    log             an event that is missing, unreadable, or cannot be folded

    id   the decision's, or `position 7` of an event, or `row 7` where the id is not known
    """

    kind: Kind
    id: str
    what: str
    logged: Any = None
    derived: Any = None

    def __str__(self) -> str:
        values = f": logged {self.logged}, derived {self.derived}"
        both = self.logged is not None or self.derived is not None
        return f"{self.kind:<13} {self.id}  {self.what}{values if both else ''}"


class AuditReport:
    """Of one experiment.

    underived    decisions that were made after the log broke: their choices alone were checked
    earlier      the same of those made before the origin, where what a fold needs was taken out
    trimmed      rows deleted by age          erased      rows deleted by wish
    tombstones   events of erased decisions    imported   rows that somebody else had decided
    """

    def __init__(self, experiment: str) -> None:
        self.experiment = experiment
        self.decisions = self.events = self.underived = self.total = 0
        self.earlier = self.trimmed = self.erased = self.tombstones = self.imported = 0
        self.counts: Counter[Kind] = Counter()
        self.kept: list[Discrepancy] = []

    def add(self, finding: Discrepancy, times: int = 1) -> None:
        """times: rows that it stands for."""
        self.total += 1
        self.counts[finding.kind] += times
        if len(self.kept) < KEPT:
            self.kept.append(finding)

    @property
    def clean(self) -> bool:
        """Nothing differs but for as many ties as may be."""
        return (
            self.counts.total() == self.counts["tie"] <= ceil(self.decisions / ROWS_A_TIE)
            and not self.underived
        )

    def row(self) -> dict[str, int]:
        counted = {
            column: sum(self.counts[kind] for kind in kinds) for column, kinds in COLUMNS.items()
        }
        return {"decisions": self.decisions, "events": self.events, **counted}

    def lines(self) -> list[str]:
        """AuditReport in words, the first few."""
        found = [f"  {finding}" for finding in self.kept[:LISTED]]
        if left := self.total - len(found):
            found.append(f"  and {left:,} more")
        if self.underived:
            found.append(
                f"  {self.underived:,} decisions were made after the log broke: "
                "their probabilities could not be derived"
            )
        if self.earlier:
            found.append(
                f"  {self.earlier:,} decisions were made before the log's origin: "
                "their choices alone were checked"
            )
        if self.trimmed or self.erased:
            found.append(
                f"  {self.trimmed:,} rows were trimmed, {self.erased:,} erased; "
                f"{self.tombstones:,} events are tombstones"
            )
        return found

    def as_json(self) -> dict[str, Any]:
        return {
            "experiment": self.experiment,
            "clean": self.clean,
            **self.row(),
            "underived": self.underived,
            "earlier": self.earlier,
            "trimmed": self.trimmed,
            "erased": self.erased,
            "tombstones": self.tombstones,
            "imported": self.imported,
            "findings": [asdict(finding) for finding in self.kept],
        }


def table(found: Sequence[AuditReport]) -> str:
    """One line an experiment, then the findings of each that has some."""
    rows = [["experiment", "decisions", "events", *COLUMNS]]
    rows += [[each.experiment, *(f"{count:,}" for count in each.row().values())] for each in found]
    if any(each.imported for each in found):
        counts = [f"{each.imported:,}" for each in found]
        rows = [[*row, count] for row, count in zip(rows, ["imported", *counts], strict=True)]
    lines = aligned(rows)
    for each in found:
        if told := each.lines():
            lines += ["", f"{each.experiment}:", *told]
    return "\n".join(lines)


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """A line a row: names to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows
    ]
