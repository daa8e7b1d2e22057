"""The program `forage`: its commands as one Typer application."""

import inspect
import os
import re
import sys
import textwrap
from collections.abc import Callable, Sequence
from inspect import Parameter
from typing import TYPE_CHECKING, Annotated, Any

from typer import Context, Exit, Option, Typer, TyperException
from typer.main import get_command

from service import __version__
from service.cli import COMMANDS, GROUPS
from service.cli.help import WIDTH, Group, Leaf, meant
from service.cli.interrupts import at_once
from service.cli.running import Command
from service.cli.values import option_of
from service.errors import ConfigurationError, ForageError

if TYPE_CHECKING:
    from service.settings import Settings

ABOUT = (
    "Forage is an online recommendation service that learns from every click: POST /select says "
    "what to show and with which probability it was chosen, POST /reward what came of it."
)
EXAMPLES = (
    "forage serve                                 # a pet shop, on http://127.0.0.1:8000\n"
    "forage init shop.toml                        # an experiment of your own, explained\n"
    "forage check shop.toml                       # what is wrong with it, and where\n"
    "forage serve --experiment shop.toml\n"
    "forage doctor --url http://127.0.0.1:8000    # is all as it should be?"
)
ENDING = (
    "A setting is an option (--store URL) or an environment variable (FORAGE_STORE); the option "
    "wins. docs/configuration.md lists all of them, docs/README.md is where to read on, and a "
    "running service documents its routes under /docs. `forage COMMAND --help` says more of a "
    "command."
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that is named: its exit status; 2 where the command line is wrong."""
    for threads in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
        os.environ.setdefault(threads, "1")  # heads are small; read when numpy is first imported
    with at_once():
        command = get_command(program())
    try:
        status: int = command.main(arguments, prog_name="forage", standalone_mode=False)
    except TyperException as fault:
        context = getattr(fault, "ctx", None)
        name = context.command_path if context else "forage"
        usage = f"{context.get_usage()}\n" if context else ""
        print(f"{usage}{name}: {_told(fault)}; see {name} --help", file=sys.stderr)
        return fault.exit_code
    except ForageError as fault:
        print(f"forage: {fault}", file=sys.stderr)
        return 1
    return status


def _told(fault: TyperException) -> str:
    if not hasattr(fault, "possibilities"):
        message = fault.format_message().replace("Value error, ", "")
        return re.sub(r"(?<!\.)\.$", "", message)
    unknown = getattr(fault, "option_name", "")
    return f"there is no option {unknown!r} here{meant(fault.possibilities or [])}"


def program() -> Typer:
    """The application."""
    app = _group(ABOUT, _epilog(EXAMPLES, ENDING))

    @app.callback()
    def about(
        version: Annotated[
            bool, Option("--version", help="say the version", is_eager=True, callback=_say_version)
        ] = False,
    ) -> None: ...

    for group in GROUPS:
        for name, command in COMMANDS.items():
            if command.group == group:
                _add(app, name, command)
    return app


def _group(text: str, epilog: str) -> Typer:
    return Typer(
        cls=Group,
        help=text,
        epilog=epilog,
        subcommand_metavar="COMMAND ...",
        options_metavar="[OPTIONS]",
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": WIDTH},
        add_completion=False,
        rich_markup_mode=None,
    )


def _say_version(asked: bool) -> None:
    if asked:
        print(f"forage {__version__}")
        raise Exit


def _add(app: Typer, name: str, command: Command) -> None:
    text = command.description or f"{command.help[0].upper()}{command.help[1:]}."
    epilog = _epilog(command.example, command.epilog)
    if command.actions:
        group = _group(text, epilog)
        group.callback()(_callback(command))
        for action, each in command.actions.items():
            _add(group, action, each)
        app.add_typer(group, name=name, short_help=command.help, rich_help_panel=command.group)
    else:
        app.command(
            name,
            cls=command.parser or Leaf,
            help=text,
            short_help=command.help,
            epilog=epilog,
            rich_help_panel=command.group,
        )(_callback(command))


def _epilog(examples: str, text: str) -> str:
    r"""Paragraphs for Typer; it keeps the lines of one that begins with \b."""
    shown = f"\b\nexamples:\n{textwrap.indent(examples, '  ')}\n\n" if examples else ""
    return shown + text


def _callback(command: Command) -> Callable[..., int | None]:
    """What Typer calls: it takes the options of the command and those of settings, and runs the
    command with both."""
    names = (*command.settings, "log_level", "log_format")

    def run(ctx: Context, **given: Any) -> int | None:
        chosen = {name: given.pop(name) for name in names}
        chosen = {name: value for name, value in chosen.items() if value is not None}
        chosen = {**(ctx.obj or {}), **chosen}  # of `forage keys --keys FILE` before the action
        if command.run is None:
            ctx.obj = chosen
            return None
        return command.run(_settings(chosen), **given)

    own = list(inspect.signature(command.run).parameters.values())[1:] if command.run else []
    context = Parameter("ctx", Parameter.KEYWORD_ONLY, annotation=Context)
    options = [each.replace(kind=Parameter.KEYWORD_ONLY) for each in own]
    run.__signature__ = inspect.Signature([context, *options, *map(option_of, names)])  # type: ignore[attr-defined]
    return run


def _settings(options: dict[str, Any]) -> "Settings":
    """Settings from options and environment; the log begins as they say."""
    with at_once():
        from pydantic import ValidationError

        from service.definition.faults import faults_of
        from service.observability.logs import log_to_stderr
        from service.settings import Settings
    try:
        settings = Settings(**options)
    except ValidationError as error:
        faults = faults_of(error.errors(), dict.fromkeys(Settings.model_fields))
        lines = [f"FORAGE_{fault.path.upper()}: {fault.message}" for fault in faults]
        raise ConfigurationError("\n".join(lines)) from error
    log_to_stderr(settings.log_level, settings.log_format, settings.token_keys)
    return settings
