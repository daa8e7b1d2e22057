"""forage backup and forage restore: copy a store into a file, and a file into a store."""

from functools import partial
from pathlib import Path
from typing import Annotated

from typer import Option

from service.cli.running import Command, progress
from service.settings import Settings


@partial(
    Command,
    summary="copy the store into a file, while services write",
    epilog="Exit status: 0 when the file is there and whole, 1 when there is none.",
    example="forage backup --to /backup/forage.db",
)
def backup(
    settings: Settings,
    path: Annotated[Path, Option("--to", metavar="FILE", help="the new file; its folder exists")],
) -> int:
    """Copy the log, the snapshots and the trained versions of all experiments, each as it was at
    one instant, into a new SQLite store, and the secret of decision tokens beside it (FILE.key,
    readable by its owner alone). Services go on writing. The file gets its name once it is checked
    and on the disk; `forage audit --store sqlite:///FILE` audits it, `forage restore --from FILE`
    puts it back."""
    from service.maintenance.backup import backup
    from service.maintenance.copying import table

    with progress() as say:
        copied = backup(settings.store, path, say)
    print(table(copied))
    return 0


@partial(
    Command,
    summary="copy a backup into an empty store",
    epilog="Exit status: 0 when the store holds everything; 1 when it is unchanged or, after Redis "
    "failed midway, refuses to open until another restore succeeds.",
    example="forage restore --from /backup/forage.db --store redis://redis:6379/0",
)
def restore(
    settings: Settings, path: Annotated[Path, Option("--from", metavar="FILE", help="the backup")]
) -> int:
    """Copy all of a backup into the store that --store names, which must be empty: an SQLite file
    that does not exist, or a Redis database without an experiment. The secret goes with it, so
    earlier decision tokens stay valid. The backup may come from a store of another kind."""
    from service.maintenance.backup import restore
    from service.maintenance.copying import table

    with progress() as say:
        copied = restore(path, settings.store, say)
    print(table(copied))
    return 0
