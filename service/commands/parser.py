"""How `forage` reads its command line: help by group, an example for each command, the nearest name
for one that there is not, headings in bold on a terminal."""

import argparse
import difflib
import os
import re
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import IO, Any, NoReturn

from service.commands.running import Command

WIDTH = 88
BOLD, RESET = "\033[1m", "\033[0m"
HEADING = re.compile(r"^[A-Za-z][A-Za-z ,-]*:(?=\s|$)", re.MULTILINE)


class Parser(argparse.ArgumentParser):
    """Of the program or of one command: whoever was told a wrong option says so, with the nearest.

    overview   the whole help, where argparse's list of commands says too little
    """

    def __init__(self, *, overview: str = "", **options: Any) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, **options)
        self._overview = overview

    def format_help(self) -> str:
        return self._overview or super().format_help()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        known, rest = super().parse_known_args(args, namespace)
        if rest:
            options = (name for name in self._option_string_actions if name.startswith("--"))
            self.error(f"there is no option {rest[0]!r} here{nearest(rest[0], options)}")
        return known, rest

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if isinstance(action, argparse._SubParsersAction) and value not in action.choices:
            self.error(f"there is no command {value!r}{nearest(value, action.choices)}")
        super()._check_value(action, value)

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")

    def _print_message(self, message: str, file: Any = None) -> None:
        stream = file or sys.stderr
        if message and coloured(stream):
            message = HEADING.sub(rf"{BOLD}\g<0>{RESET}", message)
        super()._print_message(message, stream)


def coloured(stream: IO[str]) -> bool:
    """Whether to write colours: on a terminal, unless NO_COLOR says not to (no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def nearest(given: str, names: Iterable[str]) -> str:
    """'; did you mean ...?' where a name is near to what was given, else ''."""
    found = difflib.get_close_matches(given.partition("=")[0], list(names), 1)
    return f"; did you mean {found[0]!r}?" if found else ""


def overview(commands: Mapping[str, Command], examples: Sequence[str]) -> str:
    """The help of the program: the commands by group, in the order in which they are given."""
    groups: dict[str, list[str]] = {}
    for name, command in commands.items():
        groups.setdefault(command.group, []).append(f"  {name:10} {command.help}")
    lines = [
        "usage: forage COMMAND [OPTIONS]",
        "",
        *fill(
            "Forage is an online recommendation service that learns from every click: POST /select "
            "says what to show and with which probability it was chosen, POST /reward what came of "
            "it."
        ).splitlines(),
    ]
    for group, members in groups.items():
        lines += ["", f"{group}:", *members]
    lines += ["", "examples:", *(f"  {example}" for example in examples)]
    lines += [
        "",
        "options:",
        "  -h, --help   say this; `forage COMMAND --help` says more of a command",
        "  --version    say the version",
        "",
        *fill(
            "A setting is an option (--store URL) or an environment variable (FORAGE_STORE); the "
            "option wins. docs/configuration.md lists all of them, docs/README.md the whole "
            "documentation, and a running service documents its routes under /docs."
        ).splitlines(),
    ]
    return "\n".join(lines) + "\n"


def ending(command: Command) -> str:
    """Of a command's help: its examples and what else there is to say."""
    examples = textwrap.indent(command.example.strip(), "  ")
    parts = [f"examples:\n{examples}" if examples else "", fill(command.epilog or "")]
    return "\n\n".join(part for part in parts if part)


def fill(text: str) -> str:
    return textwrap.fill(text, WIDTH, break_on_hyphens=False, break_long_words=False)
