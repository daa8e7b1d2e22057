"""Options that several commands share, and the parsers of their values.

An option that overrides a setting is None where the user left it out: `read_settings` then takes
the environment variable or the default.
"""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

from typer import BadParameter, Option

from service.offline.renames import Renames, read_renames

StoreUrl = Annotated[
    str | None,
    Option(
        "--store",
        metavar="URL",
        help="Log and snapshots: sqlite:///path, redis://host:port/db or "
        "postgresql://host/database (FORAGE_STORE, sqlite:///forage.db).",
    ),
]
ServiceUrl = Annotated[
    str | None,
    Option(
        "--url",
        metavar="URL",
        help="Address of the running service (FORAGE_URL, http://127.0.0.1:8000).",
    ),
]
KeysFile = Annotated[
    Path | None, Option("--keys", metavar="FILE", help="File of API keys (FORAGE_KEYS).")
]
LogLevel = Annotated[
    Literal["debug", "info", "warning", "error"] | None,
    Option("--log-level", help="Lowest level of the log (FORAGE_LOG_LEVEL, info)."),
]
LogFormat = Annotated[
    Literal["auto", "console", "json"] | None,
    Option(
        "--log-format",
        help="Format of the log on stderr (FORAGE_LOG_FORMAT); auto: console on a terminal, else "
        "json.",
    ),
]
AnyExperiment = Annotated[
    str | None, Option("--experiment", metavar="NAME", help="This experiment alone (all).")
]
OnlyExperiment = Annotated[
    str | None,
    Option("--experiment", metavar="NAME", help="The experiment; needed where there are several."),
]
Parallel = Annotated[
    int, Option("--parallel", metavar="N", min=1, help="Processes that share the work.")
]
AsJson = Annotated[bool, Option("--json", help="Print JSON.")]
JsonFile = Annotated[
    Path | None,
    Option("--json", metavar="FILE", help="Write the result here as well, as JSON."),
]


class Names(list[str]):
    """Names that were separated by commas. A class of its own, as Typer takes a list for an option
    that repeats."""


def names(text: str) -> Names:
    """Split at commas. Raises BadParameter where there is no name."""
    found = Names(part.strip() for part in text.split(",") if part.strip())
    if not found:
        raise BadParameter("give at least one name; commas separate several")
    return found


def moment(text: str) -> datetime:
    """Read a day or an instant, in UTC unless the text names a zone. Raises BadParameter."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError as fault:
        raise BadParameter("write times as 2026-01-31 or 2026-01-31T12:00:00Z") from fault
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def seconds(text: str) -> float:
    """Read a day or an instant as unix seconds. Raises BadParameter."""
    return moment(text).timestamp()


def renames(text: str) -> Renames:
    """Read `old=new,old=new`. Raises BadParameter."""
    try:
        return read_renames(text)
    except ValueError as fault:
        raise BadParameter(str(fault)) from fault
