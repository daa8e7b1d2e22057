"""Options that several commands share, and what the text of an option means."""

from datetime import UTC, datetime
from inspect import Parameter
from typing import Any, Literal

from typer import BadParameter, Option

SETTINGS: dict[str, tuple[Any, str, str]] = {
    "store": (
        str,
        "URL",
        "sqlite:///path, redis://host:port/db or memory:// (sqlite:///forage.db)",
    ),
    "url": (str, "URL", "where the service is (http://127.0.0.1:8000)"),
    "host": (str, "HOST", "address to listen on (127.0.0.1)"),
    "port": (int, "PORT", "port to listen on; 0 takes a free one (8000)"),
    "experiments": (
        list[str],
        "FILE",
        "TOML file of an experiment to serve; may be repeated (the Zooplus example)",
    ),
    "trainer": (
        Literal["auto", "on", "off"],
        "auto|on|off",
        "start a trainer process beside the service (auto: with an embedded store)",
    ),
    "keys": (
        str,
        "FILE",
        "API keys, as `forage keys` keeps them (FORAGE_KEYS): every request then needs one",
    ),
    "log_level": (
        Literal["debug", "info", "warning", "error"],
        "LEVEL",
        "debug, info, warning or error (info)",
    ),
    "log_format": (
        Literal["auto", "console", "json"],
        "FORM",
        "console, json, or auto: console on a terminal, else json (auto)",
    ),
}
"""Options that override a setting, by its name: type, placeholder and help."""


def option_of(name: str) -> Parameter:
    """The option of a setting, as a parameter of a command."""
    kind, metavar, text = SETTINGS[name]
    flag = "--" + {"experiments": "experiment"}.get(name, name.replace("_", "-"))
    default = Option(None, flag, metavar=metavar, help=text)
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=kind | None)


class Names(list[str]):
    """A,B of a command line. A class of its own: Typer takes a list for a repeated option."""


def names(text: str) -> Names:
    return Names(part.strip() for part in text.split(",") if part.strip())


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
