"""Options that several commands share, and how the command line writes their values."""

from datetime import UTC, datetime
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Literal, get_origin

from typer import BadParameter, Option

from service.settings import Settings

AnyExperiment = Annotated[
    str | None, Option("--experiment", metavar="NAME", help="this experiment alone (all)")
]
OnlyExperiment = Annotated[
    str | None, Option("--experiment", metavar="NAME", help="(the only one)")
]
AsJson = Annotated[bool, Option("--json", help="print JSON")]
JsonFile = Annotated[
    Path | None, Option("--json", metavar="PATH", help="write the result here as well, as JSON")
]


def setting_option(name: str) -> Parameter:
    """The option that overrides a setting, as a parameter of a command."""
    field = Settings.model_fields[name]
    default = f" ({field.default})" if field.default else ""
    kind = field.annotation
    assert kind is not None
    flag = "experiment" if name == "experiments" else name.replace("_", "-")
    option = Option(
        None,
        f"--{flag}",
        metavar=None if get_origin(kind) is Literal else flag.upper(),
        help=f"{(field.description or '').removesuffix('.')}{default}",
    )
    return Parameter(name, Parameter.KEYWORD_ONLY, default=option, annotation=kind | None)


class Names(list[str]):
    """A,B of a command line. A class of its own: Typer takes a list for a repeated option."""


def names(text: str) -> Names:
    return Names(part.strip() for part in text.split(",") if part.strip())


def moment(text: str) -> datetime:
    """A day or an instant, in UTC unless the text names a zone."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError as fault:
        raise BadParameter("write times as 2026-01-31 or 2026-01-31T12:00:00Z") from fault
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def seconds(text: str) -> float:
    """The instant of `moment` as seconds since 1970."""
    return moment(text).timestamp()
