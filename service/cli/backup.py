"""forage backup, restore and copy: an SQLite store into a file and back; one store into another."""

import asyncio
from functools import partial
from pathlib import Path
from typing import Annotated

from typer import Option

from service.cli.running import Command, progress
from service.settings import Settings


@partial(
    Command,
    summary="copy an SQLite store into a file, while a service writes",
    epilog="Exit status: 0 when the file is there and whole, 1 when there is none.",
    example="forage backup --to /backup/forage.db",
)
def backup(
    settings: Settings,
    path: Annotated[Path, Option("--to", metavar="FILE", help="the new file; its folder exists")],
) -> int:
    """Copy the log, the snapshots, the trained versions and the secret of decision tokens, all as
    of one instant, into one new SQLite file that its owner alone can read. A service may go on
    writing. The file gets its name once it is checked and on the disk; `forage audit --store
    sqlite:///FILE` audits it, `forage restore --from FILE` puts it back. Redis makes its own
    backups: RDB and AOF files."""
    from service.maintenance.backup import backup
    from service.maintenance.copying import table

    with progress() as say:
        copied = backup(settings.store, path, say)
    print(table(copied))
    return 0


@partial(
    Command,
    summary="put a backup where no SQLite store is yet",
    epilog="Exit status: 0 when the store holds everything, 1 when there is none.",
    example="forage restore --from /backup/forage.db --store sqlite:///forage.db",
)
def restore(
    settings: Settings, path: Annotated[Path, Option("--from", metavar="FILE", help="the backup")]
) -> int:
    """Copy a backup to the SQLite file that --store names. The file must not exist, and no service
    may run on it. The secret comes with it, so earlier decision tokens stay valid."""
    from service.maintenance.backup import restore
    from service.maintenance.copying import table

    with progress() as say:
        copied = restore(path, settings.store, say)
    print(table(copied))
    return 0


@partial(
    Command,
    summary="copy a store into an empty one, of any kind, while no service runs",
    epilog="Exit status: 0 when the target holds everything, 1 when it does not: empty it before "
    "you try again.",
    example="forage copy --from sqlite:///forage.db --to redis://redis:6379/0",
    settings=(),
)
def copy(
    settings: Settings,
    source: Annotated[str, Option("--from", metavar="URL", help="the store to copy")],
    target: Annotated[str, Option("--to", metavar="URL", help="a store that holds nothing")],
) -> int:
    """Copy the log, the snapshots, the trained versions and the secret of decision tokens. Stop all
    services first. The positions of log readers and the counts of trimmed and erased decisions are
    not copied: archive the new store to a new folder."""
    from service.maintenance.copying import copy_store, table

    with progress() as say:
        copied = asyncio.run(copy_store(source, target, say))
    print(table(copied))
    return 0
