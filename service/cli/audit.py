"""forage audit: derive every logged decision again."""

import uvloop

from service.cli.options import AnyExperiment, JsonFile, Parallel, StoreUrl
from service.cli.running import progress, read_settings, write_json


def audit(
    experiment: AnyExperiment = None,
    path: JsonFile = None,
    store: StoreUrl = None,
    parallel: Parallel = 1,
) -> int:
    """Derive every logged decision again.

    Fold the log once, from its beginning, and derive every decision in it again on the way: the
    choice from the logged probabilities and seed, the probabilities from head, features and bank,
    and what the events say of it. Count the decisions that the fallback made. Check the pages of an
    SQLite file as well (`PRAGMA quick_check`). The audit only reads the store; a service may be
    running on it. With `--parallel` each process folds the log up to a range of its own, and
    derives the decisions made in that; the report is the same.

    Exit status: 0 where the log holds what it should, 1 where something differs or the store is
    damaged or cannot be read. Of each 10,000 decisions of an experiment one may differ where scores
    tie but for rounding, by at most 2 of its draws; the table names it.

        forage audit
        forage audit --store sqlite:////backup/forage.db --json audit.json --parallel 4
    """
    from service.offline.audit import audit_store, find_damage
    from service.offline.audit_report import table

    settings = read_settings(store=store)
    damage = uvloop.run(find_damage(settings.store))
    for fault in damage:
        print(f"the store is damaged: {fault}")
    with progress() as say:
        reports = uvloop.run(audit_store(settings.store, experiment, say, parallel))
    print(table(reports))
    write_json(path, [report.as_json() for report in reports])
    return 1 if damage or not all(report.clean for report in reports) else 0
