"""The program `forage`: its commands as one Typer application."""

import inspect
import os
import re
import sys
import textwrap
from collections.abc import Callable, Sequence
from inspect import Parameter
from typing import Annotated

from typer import Context, Exit, Option, Typer, TyperException
from typer.main import get_command

from service import __version__
from service.cli import (
    audit,
    backup,
    check,
    doctor,
    evaluate,
    export,
    import_,
    init,
    keys,
    openapi,
    rebuild,
    repair,
    serve,
    train,
)
from service.cli.help import WIDTH, Group, styled
from service.cli.interrupts import at_once
from service.cli.options import setting_option
from service.cli.running import Command
from service.errors import ForageError
from service.settings import Settings

COMMANDS = {
    "Start": {"serve": serve.command, "init": init.command, "check": check.command},
    "Learn and compare": {"train": train.command, "evaluate": evaluate.command},
    "Look after the log": {
        "audit": audit.command,
        "export": export.command,
        "import": import_.command,
        "backup": backup.backup,
        "copy": backup.copy,
        "restore": backup.restore,
        "repair": repair.command,
        "rebuild": rebuild.command,
    },
    "Operate": {"doctor": doctor.command, "keys": keys.command, "openapi": openapi.command},
}
"""The commands by name, under the headings of `forage --help`."""

ABOUT = (
    "Forage is an online recommendation service that learns from every click: POST /select "
    "chooses what to show and gives its probability, POST /reward reports the outcome."
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
    "running service documents its routes under /docs. `forage COMMAND --help` describes a command."
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status; 2 where the command line is wrong."""
    for threads in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
        os.environ.setdefault(threads, "1")  # heads are small; read when numpy is first imported
    try:
        status: int = get_command(program()).main(
            arguments, prog_name="forage", standalone_mode=False
        )
    except TyperException as fault:
        context = getattr(fault, "ctx", None)
        name = context.command_path if context else "forage"
        usage = f"{styled(context.get_usage(), sys.stderr)}\n" if context else ""
        message = fault.format_message().replace("Value error, ", "")
        message = re.sub(r"(?<!\.)\.$", "", message)
        print(f"{usage}{name}: {message}; see {name} --help", file=sys.stderr)
        return fault.exit_code
    except ForageError as fault:
        print(f"forage: {fault}", file=sys.stderr)
        return 1
    return status


def program() -> Typer:
    app = _group(ABOUT, _epilog(EXAMPLES, ENDING))

    @app.callback()
    def about(
        version: Annotated[
            bool, Option("--version", help="print the version", is_eager=True, callback=_version)
        ] = False,
    ) -> None: ...

    for heading, commands in COMMANDS.items():
        for name, command in commands.items():
            _add(app, name, command, heading)
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


def _version(requested: bool) -> None:
    if requested:
        print(f"forage {__version__}")
        raise Exit


def _add(app: Typer, name: str, command: Command, heading: str | None = None) -> None:
    text = inspect.getdoc(command.run) or f"{command.summary[0].upper()}{command.summary[1:]}."
    epilog = _epilog(command.example, command.epilog)
    if command.actions:
        group = _group(text, epilog)
        group.callback()(_callback(command))
        for action, each in command.actions.items():
            _add(group, action, each)
        app.add_typer(group, name=name, short_help=command.summary, rich_help_panel=heading)
    else:
        app.command(
            name,
            cls=command.parser,
            help=text,
            short_help=command.summary,
            epilog=epilog,
            rich_help_panel=heading,
        )(_callback(command))


def _epilog(examples: str, text: str) -> str:
    r"""Paragraphs for Typer; it keeps the lines of one that begins with \b."""
    shown = f"\b\nexamples:\n{textwrap.indent(examples, '  ')}\n\n" if examples else ""
    return shown + text


def _callback(command: Command) -> Callable[..., int | None]:
    """What Typer calls: it takes the options of the command and those of settings, and runs the
    command with both."""
    names = (*command.settings, "log_level", "log_format")

    def run(ctx: Context, **given: object) -> int | None:
        options = {name: given.pop(name) for name in names}
        options = {name: value for name, value in options.items() if value is not None}
        options = {**(ctx.obj or {}), **options}  # of `forage keys --keys FILE` before the action
        if command.actions:
            ctx.obj = options
            return None
        return command.run(_settings(options), **given)

    _, *own = inspect.signature(command.run).parameters.values()  # but Settings
    context = Parameter("ctx", Parameter.KEYWORD_ONLY, annotation=Context)
    options = [each.replace(kind=Parameter.KEYWORD_ONLY) for each in own]
    run.__signature__ = inspect.Signature([context, *options, *map(setting_option, names)])  # type: ignore[attr-defined]
    return run


def _settings(options: dict[str, object]) -> Settings:
    """Settings from options and environment, which also configure the log."""
    with at_once():
        from service.observability.logs import log_to_stderr
    settings = Settings.read(options)
    log_to_stderr(settings.log_level, settings.log_format, settings.token_keys)
    return settings
