"""What an audit found: discrepancies, counts of them, and a table of both."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from math import ceil

from service.analysis.rederive import Discrepancy, DiscrepancyKind
from service.naming import quoted
from service.tables import aligned

KEPT_DISCREPANCIES = 1_000
"""Most discrepancies of an experiment that are kept, and written as JSON; all are counted."""

LISTED_DISCREPANCIES = 20
"""Most discrepancies of an experiment that are printed."""

ROWS_A_TIE = 10_000
"""Rows of which one may differ by a tie of its scores that rounding decided."""

TABLE_COLUMNS: dict[str, tuple[DiscrepancyKind, ...]] = {
    "choices": ("choice",),
    "probabilities": ("probabilities", "tie"),
    "beyond": ("probabilities",),
    "features": ("features",),
    "fields": ("fields",),
    "missing": ("missing",),
    "unreadable": ("unreadable",),
    "log": ("log",),
    "doubles": ("double",),
    "identities": ("identity",),
    "times": ("time",),
}
"""Columns of the table, and the kinds that each counts."""


SUMMED_COUNTS = (
    *("decisions", "events", "underived", "earlier", "orphaned"),
    *("losses", "tombstones", "imported"),
)
"""Counts of a report that are the sums of those of its parts."""


@dataclass
class AuditReport:
    """Report on one experiment.

    underived    decisions made after the log broke: the audit checked their choices alone
    earlier      the same of those before the origin, where events that a fold needs are gone
    orphaned     the same of those that differ, and whose head may have folded events that the log
                 has lost since
    losses       times that the log has lost its last events
    unlogged     rewarded decisions without a row, whose answers said that they were not logged
    trimmed      rows deleted by age          erased      rows deleted on request
    tombstones   events of erased decisions   imported   rows that another system decided
    fallback     decisions that the fallback made, by the assigned policy and the reason
    """

    experiment: str
    decisions: int = 0
    events: int = 0
    underived: int = 0
    earlier: int = 0
    orphaned: int = 0
    losses: int = 0
    unlogged: int = 0
    trimmed: int = 0
    erased: int = 0
    tombstones: int = 0
    imported: int = 0
    fallback: Counter[tuple[str, str]] = field(default_factory=Counter)
    total: int = 0
    counts: Counter[DiscrepancyKind] = field(default_factory=Counter)
    kept: list[Discrepancy] = field(default_factory=list)

    def add(self, discrepancy: Discrepancy, rows: int = 1) -> None:
        """Add a discrepancy, which stands for so many rows."""
        self.total += 1
        self.counts[discrepancy.kind] += rows
        if len(self.kept) < KEPT_DISCREPANCIES:
            self.kept.append(discrepancy)

    def take(self, part: "PartReport", without: Collection[str] = ()) -> None:
        """Add the report on the following part. without: decisions whose rows it misses, as an
        earlier part does."""
        for name in SUMMED_COUNTS:
            setattr(self, name, getattr(self, name) + getattr(part, name))
        self.fallback.update(part.fallback)
        self.total += part.total - len(without)
        self.counts.update(part.counts)
        if without:
            self.counts["missing"] -= len(without)
        known = (one for one in part.kept if one.kind != "missing" or one.id not in without)
        self.kept += islice(known, KEPT_DISCREPANCIES - len(self.kept))

    @property
    def clean(self) -> bool:
        """There is no discrepancy but a tolerable number of ties."""
        ties = ceil(self.decisions / ROWS_A_TIE)
        return self.counts.total() == self.counts["tie"] <= ties and not self.underived

    def row(self) -> dict[str, int]:
        counted = {
            column: sum(self.counts[kind] for kind in kinds)
            for column, kinds in TABLE_COLUMNS.items()
        }
        return {"decisions": self.decisions, "events": self.events, **counted}

    def lines(self) -> list[str]:
        """Return the first discrepancies, and notes on what the audit could not check and on who
        decided."""
        lines = [f"  {discrepancy}" for discrepancy in self.kept[:LISTED_DISCREPANCIES]]
        if left := self.total - len(lines):
            lines.append(f"  and {left:,} more")
        if self.underived:
            lines.append(
                f"  {self.underived:,} decisions were made after the log broke: "
                "their probabilities could not be derived"
            )
        if self.earlier:
            lines.append(
                f"  {self.earlier:,} decisions were made before the log's origin: "
                "their choices alone were checked"
            )
        if self.losses:
            lines.append(
                f"  the log has lost its last events {self.losses:,} times: of {self.orphaned:,} "
                "decisions whose heads may have folded them, the choices alone were checked"
            )
        if self.unlogged:
            lines.append(
                f"  {self.unlogged:,} rewarded decisions have no row: they were answered while the "
                'log was gone ("logged": false), and the process ended before it wrote them'
            )
        if self.trimmed or self.erased:
            lines.append(
                f"  {self.trimmed:,} rows were trimmed, {self.erased:,} erased; "
                f"{self.tombstones:,} events are tombstones"
            )
        lines += [
            f"  the fallback made {count:,} decisions for policy {quoted(policy)} ({reason})"
            for (policy, reason), count in sorted(self.fallback.items())
        ]
        return lines

    def as_json(self) -> dict[str, object]:
        report = asdict(self)
        del report["total"], report["counts"]
        findings = report.pop("kept")
        report["fallback"] = [
            {"policy": policy, "reason": reason, "decisions": count}
            for (policy, reason), count in sorted(self.fallback.items())
        ]
        first = {"experiment": self.experiment, "clean": self.clean, **self.row()}
        return {**first, **report, "findings": findings}


class PartReport(AuditReport):
    """Report on a part of the log. It keeps all rows that are missing, since an earlier part may
    miss them as well."""

    _others = 0

    def add(self, discrepancy: Discrepancy, rows: int = 1) -> None:
        self.total += 1
        self.counts[discrepancy.kind] += rows
        other = discrepancy.kind != "missing"
        if not other or self._others < KEPT_DISCREPANCIES:
            self.kept.append(discrepancy)
            self._others += other


def table(reports: Sequence[AuditReport]) -> str:
    """Return a line for each experiment, then the discrepancies of each that has some."""
    columns = ["decisions", "events", *TABLE_COLUMNS]
    if any(report.imported for report in reports):
        columns.append("imported")
    counts = [{**report.row(), "imported": report.imported} for report in reports]
    rows = [["experiment", *columns]]
    rows += [
        [report.experiment, *(f"{row[column]:,}" for column in columns)]
        for report, row in zip(reports, counts, strict=True)
    ]
    lines = aligned(rows)
    for report in reports:
        if notes := report.lines():
            lines += ["", f"{report.experiment}:", *notes]
    return "\n".join(lines)
