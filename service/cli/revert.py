"""forage revert: define an earlier revision of an experiment again."""

from typing import Annotated

from typer import Option, confirm

from service.cli.differences import answer_lines
from service.cli.history import ExperimentName
from service.cli.options import ServiceUrl
from service.cli.running import read_settings

DECLINED = 1


def revert(
    experiment: ExperimentName,
    revision: Annotated[
        int, Option("--revision", metavar="REVISION", min=1, help="Revision to define again.")
    ],
    yes: Annotated[bool, Option("--yes", help="Ask nothing.")] = False,
    url: ServiceUrl = None,
) -> int:
    """Define an earlier revision of an experiment again, as a new one.

    Print what that changes, as `forage apply` does, and ask before it is sent. The catalogue
    becomes that of the revision, too: arms that were added since go. The service refuses where
    somebody else makes a revision in between. A deleted experiment comes back as a new one.
    FORAGE_KEY is the key, with the scope admin.

    Exit status: 0 where the service has this definition, 1 where you decline, the service refuses,
    or does not answer.

        forage revert --revision 12 shop
        forage revert --revision 12 --yes shop
    """
    from service.offline.definition_client import send_definition
    from service.offline.past_definition import past_definition

    settings = read_settings(url=url)
    definition, deleted = past_definition(experiment, revision, settings)
    plan = send_definition(experiment, definition, settings, dry_run=True)
    if not plan.changes:
        print(f"{experiment}: nothing to change")
        return 0
    print("\n".join(answer_lines(plan)))
    if not yes and not confirm(f"{experiment}: define this as revision {plan.revision}?"):
        return DECLINED
    expected = None if deleted else plan.revision - 1
    done = send_definition(experiment, definition, settings, revision=expected)
    print(f"{experiment}: is now revision {done.revision}, with the definition of {revision}")
    return 0
