"""forage history: who changed what in an experiment, and what held at an instant."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from service.cli.options import AsJson, ServiceUrl
from service.cli.running import read_settings

if TYPE_CHECKING:
    from service.offline.change_client import ListedChanges, PastState

ExperimentName = Annotated[str, Argument(metavar="EXPERIMENT", help="Name of the experiment.")]


def history(
    experiment: ExperimentName,
    at: Annotated[
        str | None,
        Option(
            "--at",
            metavar="TIME",
            help="What held then: 2026-01-31T12:00:00Z, or unix seconds.",
        ),
    ] = None,
    limit: Annotated[
        int, Option("--limit", metavar="NUMBER", min=1, max=100, help="Changes to print.")
    ] = 20,
    as_json: AsJson = False,
    url: ServiceUrl = None,
) -> int:
    """Print who changed what in an experiment, newest first.

    With `--at`, print the changes up to an instant, and then what held: revision, shares and
    versions. `--json` has the definition, too. FORAGE_KEY is the key, with the scope admin.

    Exit status: 0, or 1 where the service refuses or does not answer.

        forage history shop
        forage history --at 2026-01-31T12:00:00Z shop
    """
    from service.offline.change_client import ask_changes, read_changes

    settings = read_settings(url=url)
    content = ask_changes(experiment, settings, at=at, limit=limit)
    print(content.decode() if as_json else _text(read_changes(content)))
    return 0


def _text(found: "ListedChanges") -> str:
    lines = [
        f"{_time(each.at)}  {f'revision {each.revision}' if each.revision else '':<13}"
        f"{each.sentence}"
        for each in found.changes
    ]
    return "\n".join([*lines, *([] if found.then is None else _then_lines(found.then))])


def _then_lines(then: "PastState") -> list[str]:
    lines = [f"then: revision {then.revision or 'no longer listed'}"]
    if then.gone is not None:
        lines.append(f"no definition: {then.gone}")
    versions = then.versions or {}
    for policy, share in (then.shares or {}).items():
        version = f", version {versions[policy]}" if policy in versions else ""
        lines.append(f"  {policy}: share {share:g}{version}")
    return lines


def _time(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%SZ}"
