"""forage versions: the trained versions of a policy."""

from typing import TYPE_CHECKING, Annotated

import uvloop
from typer import Argument

from service.cli.options import AsJson, StoreUrl
from service.cli.running import read_settings

if TYPE_CHECKING:
    from service.observe.version_list import PolicyVersions


def versions(
    experiment: Annotated[str, Argument(metavar="EXPERIMENT", help="Name of the experiment.")],
    policy: Annotated[str, Argument(metavar="POLICY", help="Name of the policy.")],
    as_json: AsJson = False,
    store: StoreUrl = None,
) -> int:
    """List the trained versions of a policy, newest first.

    Of each: what it was trained on, its loss on rewards held out and that of a ridge regression,
    what its gate found, and what it earned while it served. The command only reads the store, as a
    service may be running on it. docs/versions.md explains.

    Exit status: 0, or 1 where there is no such policy or the store cannot be read.

        forage versions shop neural
        forage versions shop neural --json
    """
    from service.errors import NotFound
    from service.log.reading import reading, single_experiment
    from service.log.replicas import Replicas
    from service.naming import quoted
    from service.observe.version_list import version_table, versions_of

    settings = read_settings(store=store)

    async def read() -> "PolicyVersions":
        async with reading(settings.store) as opened:
            state = await Replicas(opened).discover(await single_experiment(opened, experiment))
            if state.deleted:
                raise NotFound(f"experiment {quoted(experiment)} was deleted", path="experiment")
            return versions_of(state, policy)

    found = uvloop.run(read())
    print(found.model_dump_json(indent=2) if as_json else version_table(found))
    return 0
