"""The help of `forage`: commands under their headings, headings in bold on a terminal."""

import re
import sys
from typing import IO, Any

from typer import TyperException
from typer.core import TyperCommand, TyperGroup

from service.observability.terminal import BOLD, RESET, coloured

WIDTH = 90
HEADING = re.compile(r"^(?:[A-Za-z][A-Za-z ,-]*|  examples|  Exit status):(?=\s|$)", re.MULTILINE)
OF_TYPER = re.compile(r"^(Usage|Arguments|Options):", re.MULTILINE)


def styled(text: str, stream: IO[str]) -> str:
    """Headings in lower case, as in the rest of the help, and in bold on a terminal."""
    text = OF_TYPER.sub(lambda found: found[0].lower(), text)
    return HEADING.sub(rf"{BOLD}\g<0>{RESET}", text) if coloured(stream) else text


class Leaf(TyperCommand):
    """A command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except TyperException as fault:
            fault.ctx = ctx  # type: ignore[attr-defined]  # Typer leaves it out of some
            raise

    def get_help(self, ctx: Any) -> str:
        return styled(super().get_help(ctx), sys.stdout)


class Group(TyperGroup):
    """Several commands."""

    def get_help(self, ctx: Any) -> str:
        return styled(super().get_help(ctx), sys.stdout)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """The summaries in full; Typer prints headings only with rich, and truncates lines."""
        headings: dict[str, list[tuple[str, str]]] = {}
        for name, command in self.commands.items():
            heading = getattr(command, "rich_help_panel", None) or "commands"
            headings.setdefault(heading, []).append((name, command.short_help or ""))
        for heading, rows in headings.items():
            with formatter.section(heading):
                formatter.write_dl(rows)
