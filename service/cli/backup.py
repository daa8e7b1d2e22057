"""forage backup, restore and copy: an SQLite store into a file and back; one store into another."""

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from service.cli.options import StoreUrl
from service.cli.running import progress, read_settings
from service.settings import Settings

if TYPE_CHECKING:
    from service.offline.copying import Copied


def backup(
    path: Annotated[Path, Option("--to", metavar="FILE", help="New file in an existing folder.")],
    store: StoreUrl = None,
) -> int:
    """Copy an SQLite store into a file, while a service writes.

    Copy the log, the snapshots, the trained versions and the secret of decision tokens, all as of
    one instant, into one new SQLite file that its owner alone can read. A service may go on
    writing. The file gets its name once it is checked and on the disk; `forage audit --store
    sqlite:///FILE` audits it, `forage restore --from FILE` puts it back. Keys of FORAGE_TOKEN_KEYS
    are not in it, and the command says so. Redis and PostgreSQL make their own backups: RDB and AOF
    files, pg_dump.

    Exit status: 0 where the file is there and whole, 1 where there is none.

        forage backup --to /backup/forage.db
    """
    from service.offline.backup import backup

    settings = read_settings(store=store)
    with progress() as say:
        copied = backup(settings.store, path, say)
    _report(copied, f"sqlite:///{path.absolute()}", settings)
    return 0


def restore(
    path: Annotated[Path, Option("--from", metavar="FILE", help="The backup.")],
    store: StoreUrl = None,
) -> int:
    """Put a backup where no SQLite store is yet.

    Copy a backup to the SQLite file that `--store` names. The file must not exist, and no service
    may run on it. The secret comes with it, so earlier decision tokens stay valid; where
    FORAGE_TOKEN_KEYS had it, the service needs the same keys, and the command says so.

    Exit status: 0 where the store holds everything, 1 where there is none.

        forage restore --from /backup/forage.db --store sqlite:///forage.db
    """
    from service.offline.backup import restore

    settings = read_settings(store=store)
    with progress() as say:
        copied = restore(path, settings.store, say)
    _report(copied, settings.store, settings)
    return 0


def copy(
    source: Annotated[str, Option("--from", metavar="URL", help="The store to copy.")],
    target: Annotated[str, Option("--to", metavar="URL", help="A store that holds nothing.")],
) -> int:
    """Copy a store into an empty one, of any kind, while no service runs.

    Copy the log, the snapshots, the trained versions and the secret of decision tokens. Stop all
    services first. The positions of log readers and the counts of trimmed and erased decisions are
    not copied: archive the new store to a new folder.

    Exit status: 0 where the target holds everything, 1 where it does not: empty it before you try
    again.

        forage copy --from sqlite:///forage.db --to redis://redis:6379/0
    """
    from service.offline.copying import copy_store

    settings = read_settings()
    with progress() as say:
        copied = asyncio.run(copy_store(source, target, say))
    _report(copied, target, settings)
    return 0


def _report(copied: "Sequence[Copied]", url: str, settings: Settings) -> None:
    """Print what a copy holds, and on standard error what it lacks."""
    from service.offline.copying import secret_notice, table

    print(table(copied))
    if notice := asyncio.run(secret_notice(url, settings.token_keys)):
        print(f"forage: {notice}", file=sys.stderr)
