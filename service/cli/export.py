"""forage export: decisions and what came of them, joined, as Parquet."""

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from typer import Option

from service.cli.interrupts import INTERRUPTED
from service.cli.running import Command, progress, run_until_stopped
from service.errors import ConfigurationError

if TYPE_CHECKING:
    from service.maintenance.archive.export import Exported
    from service.settings import Settings

logger = logging.getLogger("forage")


def run(
    settings: "Settings",
    folder: Path = Option(..., "--to", metavar="FOLDER", help="the archive, new or one to go on"),
    experiment: str | None = Option(None, metavar="NAME", help="archive this one alone (all)"),
    follow_log: bool = Option(
        False, "--follow", help="keep archiving what becomes final, until stopped"
    ),
    part_rows: int = Option(50_000, min=1, metavar="N", help="rows of a part"),
    part_minutes: int = Option(
        10, min=1, metavar="M", help="with --follow: how long final rows wait for others of a part"
    ),
) -> int:
    """Bring the archive up to date and print what it holds, or follow until stopped."""
    from service.maintenance.archive.archiver import Sizes
    from service.maintenance.archive.export import export, follow

    sizes = Sizes(part_rows, 60.0 * part_minutes)
    try:
        if follow_log:
            headers = settings.key_headers
            return run_until_stopped(
                follow(settings.store, folder, settings.url, experiment, sizes, headers)
            )
        with progress() as say:
            import uvloop

            found = uvloop.run(export(settings.store, folder, experiment, sizes, say))
    except KeyboardInterrupt:
        return INTERRUPTED
    except OSError as fault:
        raise ConfigurationError(f"{folder}: {fault}") from fault
    print(table(found))
    return 0 if all(each.unreadable == 0 for each in found) else 1


def table(found: list["Exported"]) -> str:
    """One line an experiment."""
    rows = [["experiment", "rows", "final", "open", "parts", "MB"]]
    for each in found:
        held = each.totals
        counts = [held.final + held.open, held.final, held.open, held.parts]
        rows.append(
            [each.experiment, *(f"{count:,}" for count in counts), f"{held.bytes / 1e6:,.1f}"]
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows
    )


COMMAND = Command(
    "archive decisions and what came of them as Parquet",
    run,
    description="Write decisions and their rewards, joined, to Parquet files by day. What is final "
    "is written once; what may still change is written beside it, anew each time. The store is "
    "only read; a service may be at work on it.",
    epilog="Exit status: 0, or 1 where the store cannot be read, is not the one archived there, or "
    "has rows that are damaged and were left out.",
    example="forage export --to archive                 # Parquet, for pandas, pyarrow and DuckDB\n"
    "forage export --to archive --follow",
    group="Look after the log",
    settings=("store", "url"),
)
