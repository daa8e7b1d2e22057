"""forage audit: derive every logged decision again."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from typer import Option

from service.cli.interrupts import INTERRUPTED
from service.cli.running import Command, progress
from service.errors import ConfigurationError

if TYPE_CHECKING:
    from service.settings import Settings


def run(
    settings: "Settings",
    experiment: str | None = Option(None, metavar="NAME", help="audit this one alone (all)"),
    path: Path | None = Option(
        None, "--json", metavar="PATH", help="write what was found here as well"
    ),
) -> int:
    """Audit the log, print what was found, and write it to a file that is named."""
    import uvloop

    from service.maintenance.audit import audit_store
    from service.serving.audit_report import table

    try:
        with progress() as say:
            found = uvloop.run(audit_store(settings.store, experiment, say))
    except KeyboardInterrupt:
        return INTERRUPTED
    print(table(found))
    if path is not None:
        content = json.dumps([each.as_json() for each in found], indent=2)
        try:
            path.write_text(content + "\n", encoding="utf-8")
        except OSError as fault:
            raise ConfigurationError(f"{path}: {fault.strerror}") from fault
    return 0 if all(each.clean for each in found) else 1


COMMAND = Command(
    "derive every logged decision again",
    run,
    description="Fold the log once, from where it begins, and derive every decision in it again on "
    "the way: the choice from the logged probabilities and seed, the probabilities from head, "
    "features and bank, and what the events say of it. The store is only read; a service may be "
    "at work on it.",
    epilog="Exit status: 0 when all is as it was logged, 1 when something differs or the store "
    "cannot be read. Of each 10,000 decisions of an experiment one may differ where scores tie but "
    "for rounding, by at most 2 of its draws; it is named.",
    example="forage audit\nforage audit --store sqlite:////backup/forage.db --json audit.json",
    group="Look after the log",
)
