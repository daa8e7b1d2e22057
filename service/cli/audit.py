"""forage audit: derive every logged decision again."""

from functools import partial

import uvloop

from service.cli.options import AnyExperiment, JsonFile
from service.cli.running import Command, progress, write_json
from service.settings import Settings


@partial(
    Command,
    summary="derive every logged decision again",
    epilog="Exit status: 0 when the log holds what it should, 1 when something differs or the "
    "store cannot be read. Of each 10,000 decisions of an experiment one may differ where scores "
    "tie but for rounding, by at most 2 of its draws; the table names it.",
    example="forage audit\nforage audit --store sqlite:////backup/forage.db --json audit.json",
)
def command(settings: Settings, experiment: AnyExperiment = None, path: JsonFile = None) -> int:
    """Fold the log once, from its beginning, and derive every decision in it again on the way:
    the choice from the logged probabilities and seed, the probabilities from head, features and
    bank, and what the events say of it. The audit only reads the store; a service may be running
    on it."""
    from service.maintenance.audit import audit_store
    from service.serving.audit_report import table

    with progress() as say:
        reports = uvloop.run(audit_store(settings.store, experiment, say))
    print(table(reports))
    write_json(path, [report.as_json() for report in reports])
    return 0 if all(report.clean for report in reports) else 1
