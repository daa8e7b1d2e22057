"""forage verdict: which policy pays."""

from typing import TYPE_CHECKING

import uvloop

from service.cli.options import AsJson, OnlyExperiment, StoreUrl
from service.cli.running import progress, read_settings
from service.errors import ConfigurationError, Refused

if TYPE_CHECKING:
    from service.analysis.verdict_answer import Verdict


def verdict(experiment: OnlyExperiment = None, json: AsJson = False, store: StoreUrl = None) -> int:
    """Say which policy pays.

    Compare each policy with the control that the experiment names (`control`), by the decisions
    whose policy was drawn: in a sentence, then in figures. The intervals hold at all times at once,
    so look as often as you like. The command only reads the store, as a service may be running on
    it. docs/verdict.md explains.

    Exit status: 0, or 1 where nothing can be told or the store cannot be read.

        forage verdict
        forage verdict --experiment shop --json
    """
    from service.analysis.verdict import verdict_on
    from service.analysis.verdict_table import table
    from service.log.reading import Progress, reading

    settings = read_settings(store=store)

    async def judge() -> "Verdict":
        with progress() as say:
            async with reading(settings.store) as opened:
                return await verdict_on(opened, experiment, Progress(say))

    try:
        found = uvloop.run(judge())
    except Refused as fault:
        raise ConfigurationError(fault.detail) from fault
    print(found.model_dump_json(indent=2) if json else table(found))
    return 1 if found.state == "refused" else 0
