"""Options that several commands share, and what the text of an option means."""

from datetime import UTC, datetime
from typing import Annotated, Literal

from typer import BadParameter, Option

SETTINGS = {
    "store": Annotated[
        str | None,
        Option(
            metavar="URL",
            help="sqlite:///path, redis://host:port/db or memory:// (sqlite:///forage.db)",
        ),
    ],
    "url": Annotated[
        str | None,
        Option(metavar="URL", help="where the service is (http://127.0.0.1:8000)"),
    ],
    "host": Annotated[str | None, Option(metavar="HOST", help="address to listen on (127.0.0.1)")],
    "port": Annotated[
        int | None, Option(metavar="PORT", help="port to listen on; 0 takes a free one (8000)")
    ],
    "experiments": Annotated[
        list[str] | None,
        Option(
            "--experiment",
            metavar="FILE",
            help="TOML file of an experiment to serve; may be repeated (the Zooplus example)",
        ),
    ],
    "trainer": Annotated[
        Literal["auto", "on", "off"] | None,
        Option(help="start a trainer process beside the service (auto: with an embedded store)"),
    ],
    "keys": Annotated[
        str | None,
        Option(
            metavar="FILE",
            help="API keys, as `forage keys` keeps them (FORAGE_KEYS): a service that has such a "
            "file asks every request for one",
        ),
    ],
    "log_level": Annotated[
        Literal["debug", "info", "warning", "error"] | None,
        Option(metavar="LEVEL", help="debug, info, warning or error (info)"),
    ],
    "log_format": Annotated[
        Literal["auto", "console", "json"] | None,
        Option(
            metavar="FORM", help="console, json, or auto: console on a terminal, else json (auto)"
        ),
    ],
}
"""Options that override a setting, by its name."""


class Names(list[str]):
    """A,B of a command line. A class of its own: Typer takes a list for a repeated option."""


def names(text: str) -> Names:
    found = Names(part.strip() for part in text.split(",") if part.strip())
    if not found:
        raise BadParameter("name at least one, with commas between several")
    return found


def moment(text: str) -> datetime:
    """A day or an instant, in UTC where it says no zone."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError as fault:
        raise BadParameter("write times as 2026-01-31 or 2026-01-31T12:00:00Z") from fault
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def seconds(text: str) -> float:
    """The instant of `moment` as seconds since 1970."""
    return moment(text).timestamp()
