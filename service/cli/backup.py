"""forage backup: copy the store into a file, while services write."""

from pathlib import Path
from typing import TYPE_CHECKING

from typer import Option

from service.cli.interrupts import INTERRUPTED
from service.cli.running import Command, progress

if TYPE_CHECKING:
    from service.settings import Settings


def run(
    settings: "Settings",
    path: Path = Option(..., "--to", metavar="FILE", help="the new file; its folder exists"),
) -> int:
    """Copy, and say what the copy holds."""
    from service.maintenance.backup import backup
    from service.maintenance.copying import table

    try:
        with progress() as say:
            copied = backup(settings.store, path, say)
    except KeyboardInterrupt:
        return INTERRUPTED
    print(table(copied))
    return 0


COMMAND = Command(
    "copy the store into a file, while services write",
    run,
    description="Copy the log, the snapshots and the trained versions of all experiments, each as "
    "it was at one instant, into a new SQLite store, and the secret of decision tokens beside it "
    "(FILE.key, readable by its owner alone). Services go on writing. The file is checked and "
    "on the disk before it has its name; `forage audit --store sqlite:///FILE` audits it, "
    "`forage restore --from FILE` puts it back.",
    epilog="Exit status: 0 when the file is there and whole, 1 when there is none.",
    example="forage backup --to /backup/forage.db",
    group="Look after the log",
)
