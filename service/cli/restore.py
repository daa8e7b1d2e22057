"""forage restore: copy a file that `forage backup` wrote into an empty store."""

from pathlib import Path
from typing import TYPE_CHECKING

from typer import Option

from service.cli.interrupts import INTERRUPTED
from service.cli.running import Command, progress

if TYPE_CHECKING:
    from service.settings import Settings


def run(
    settings: "Settings", path: Path = Option(..., "--from", metavar="FILE", help="the backup")
) -> int:
    """Copy, and say what the store holds now."""
    from service.maintenance.backup import restore
    from service.maintenance.copying import table

    try:
        with progress() as say:
            copied = restore(path, settings.store, say)
    except KeyboardInterrupt:
        return INTERRUPTED
    print(table(copied))
    return 0


COMMAND = Command(
    "copy a backup into an empty store",
    run,
    description="Copy all that a backup holds into the store that --store names, which must hold "
    "nothing yet: an SQLite file that does not exist, or a Redis database without an experiment. "
    "The secret goes with it, so that decision tokens that were handed out before go on working. "
    "What is in the backup need not have come from a store of the same kind.",
    epilog="Exit status: 0 when all is there, 1 when the store is as it was, or, where Redis went "
    "away meanwhile, refuses to be opened until another restore is through.",
    example="forage restore --from /backup/forage.db --store redis://redis:6379/0",
    group="Look after the log",
)
