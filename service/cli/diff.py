"""forage diff: what one revision of an experiment changes of another."""

from typing import Annotated

from typer import Option

from service.cli.differences import difference_lines
from service.cli.history import ExperimentName
from service.cli.options import ServiceUrl
from service.cli.running import read_settings


def diff(
    experiment: ExperimentName,
    before: Annotated[
        int, Option("--from", metavar="REVISION", min=1, help="Revision to compare with.")
    ],
    after: Annotated[int, Option("--to", metavar="REVISION", min=1, help="Other revision.")],
    url: ServiceUrl = None,
) -> int:
    """Print the difference between two revisions of an experiment.

    The lines are those of `forage apply`: `+` is what the second revision adds, `-` what it
    removes, `~` what it changes. Arms are those of the definitions; changes of single arms are no
    revisions. FORAGE_KEY is the key, with the scope admin.

    Exit status: 0, or 1 where a revision has no definition or the service does not answer.

        forage diff --from 12 --to 15 shop
    """
    from service.definition.difference import difference
    from service.offline.past_definition import past_definition

    settings = read_settings(url=url)
    old = past_definition(experiment, before, settings).definition
    new = past_definition(experiment, after, settings).definition
    lines = difference_lines(difference(old, new))
    same = f"{experiment}: revisions {before} and {after} are the same"
    print("\n".join(lines) if lines else same)
    return 0
