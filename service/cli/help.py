"""The help of `forage`: commands under their headings, headings in bold on a terminal."""

import difflib
import re
import sys
from typing import IO, Any

from typer import TyperException
from typer.core import TyperCommand, TyperGroup

from service.cli.interrupts import at_once
from service.observability.terminal import BOLD, RESET, coloured

Base: Any = object  # Typer keeps the common base of its two classes to itself
WIDTH = 90
HEADING = re.compile(r"^(?:[A-Za-z][A-Za-z ,-]*|  examples|  Exit status):(?=\s|$)", re.MULTILINE)
OF_TYPER = re.compile(r"^(Usage|Arguments|Options):", re.MULTILINE)


def styled(text: str, stream: IO[str]) -> str:
    """Headings in lower case, as in the rest of the help, and in bold on a terminal."""
    text = OF_TYPER.sub(lambda found: found[0].lower(), text)
    return HEADING.sub(rf"{BOLD}\g<0>{RESET}", text) if coloured(stream) else text


class _Styled(Base):  # type: ignore[misc]
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        with at_once():  # Typer imports pydantic to read what is given
            try:
                rest: list[str] = super().parse_args(ctx, args)
            except TyperException as fault:
                fault.ctx = getattr(fault, "ctx", None) or ctx  # type: ignore[attr-defined]
                raise
        return rest

    def get_help(self, ctx: Any) -> str:
        return styled(super().get_help(ctx), sys.stdout)

    def get_usage(self, ctx: Any) -> str:
        return styled(super().get_usage(ctx), sys.stderr)


class Leaf(_Styled, TyperCommand):
    """A command."""


class Group(_Styled, TyperGroup):
    """Several commands."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """The short help in full; Typer lists headings only with rich, and cuts lines off."""
        headings: dict[str, list[tuple[str, str]]] = {}
        for name, command in self.commands.items():
            heading = getattr(command, "rich_help_panel", None) or "commands"
            headings.setdefault(heading, []).append((name, command.short_help or ""))
        for heading, rows in headings.items():
            with formatter.section(heading):
                formatter.write_dl(rows)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] not in self.commands:
            near = difflib.get_close_matches(args[0], self.commands, 1)
            ctx.fail(f"there is no command {args[0]!r}{meant(near)}")
        return super().resolve_command(ctx, args)


def meant(near: list[str]) -> str:
    """'; did you mean ...?' of the first name, if there is one."""
    return f"; did you mean {near[0]!r}?" if near else ""
