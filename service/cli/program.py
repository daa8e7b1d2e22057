"""The program `forage`: its commands on one Typer application."""

import os
import sys
from collections.abc import Sequence
from typing import Annotated

from typer import Exit, Option, Typer, TyperException

from service import __version__
from service.cli import keys, rollout
from service.cli.apply import apply
from service.cli.audit import audit
from service.cli.backup import backup, copy, restore
from service.cli.check import check
from service.cli.diff import diff
from service.cli.doctor import doctor
from service.cli.evaluate import evaluate
from service.cli.export import export
from service.cli.history import history
from service.cli.import_ import import_visits
from service.cli.init import init
from service.cli.openapi import openapi
from service.cli.plan import plan
from service.cli.rebuild import rebuild
from service.cli.repair import repair
from service.cli.revert import revert
from service.cli.serve import serve
from service.cli.train import train
from service.cli.verdict import verdict
from service.cli.versions import versions
from service.errors import ForageError

START_PANEL, COMPARE_PANEL, LOG_PANEL, OPERATE_PANEL = (
    "Start",
    "Learn and compare",
    "Look after the log",
    "Operate",
)


def _version(requested: bool) -> None:
    if requested:
        print(f"forage {__version__}")
        raise Exit


def about(
    version: Annotated[
        bool, Option("--version", help="Print the version.", is_eager=True, callback=_version)
    ] = False,
) -> None:
    """Run an online recommendation service that learns from every click.

    `POST /select` chooses what to show and gives its probability, `POST /reward` reports the
    outcome. Begin with:

        forage serve                            # a pet shop, on port 8000
        forage init shop.toml                   # an experiment of your own
        forage check shop.toml                  # its faults
        forage serve --experiment shop.toml
        forage doctor --url http://127.0.0.1:8000

    A setting is an option (`--store URL`) or an environment variable (`FORAGE_STORE`); the option
    wins. docs/configuration.md lists all settings, and a running service documents its routes under
    /docs. `forage COMMAND --help` describes a command.
    """


app = Typer(
    callback=about,
    context_settings={"help_option_names": ["-h", "--help"]},
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
app.command("serve", rich_help_panel=START_PANEL)(serve)
app.command("init", rich_help_panel=START_PANEL)(init)
app.command("check", rich_help_panel=START_PANEL)(check)
app.command("apply", rich_help_panel=START_PANEL)(apply)
app.command("history", rich_help_panel=START_PANEL)(history)
app.command("diff", rich_help_panel=START_PANEL)(diff)
app.command("revert", rich_help_panel=START_PANEL)(revert)
app.command("train", rich_help_panel=COMPARE_PANEL)(train)
app.command("versions", rich_help_panel=COMPARE_PANEL)(versions)
app.command("verdict", rich_help_panel=COMPARE_PANEL)(verdict)
app.command("evaluate", rich_help_panel=COMPARE_PANEL)(evaluate)
app.command("audit", rich_help_panel=LOG_PANEL)(audit)
app.command("export", rich_help_panel=LOG_PANEL)(export)
app.command("import", rich_help_panel=LOG_PANEL)(import_visits)
app.command("backup", rich_help_panel=LOG_PANEL)(backup)
app.command("copy", rich_help_panel=LOG_PANEL)(copy)
app.command("restore", rich_help_panel=LOG_PANEL)(restore)
app.command("repair", rich_help_panel=LOG_PANEL)(repair)
app.command("rebuild", rich_help_panel=LOG_PANEL)(rebuild)
app.command("plan", rich_help_panel=OPERATE_PANEL)(plan)
app.command("doctor", rich_help_panel=OPERATE_PANEL)(doctor)
app.command("openapi", rich_help_panel=OPERATE_PANEL)(openapi)

keys_app = Typer(
    help="""Make, list and revoke API keys.

    Keep the file of API keys that `forage serve --keys FILE` requires. Services read it again
    within a second of a change. It holds the rights of each key and a hash of it; the key itself is
    printed when it is made, and never again. docs/keys.md lists the keys that a page, a backend and
    Prometheus need.

        forage keys add --keys keys.json --name ops --scopes admin
        forage keys add --keys keys.json --name shop-web --scopes select,reward \\
            --experiments zooplus --origins https://shop.example --rate 200/second
        forage keys list --keys keys.json
        forage keys revoke --keys keys.json shop-web
    """,
    rich_markup_mode="markdown",
)
keys_app.command("add")(keys.add)
keys_app.command("list")(keys.show)
keys_app.command("revoke")(keys.revoke)
app.add_typer(keys_app, name="keys", rich_help_panel=OPERATE_PANEL)

rollout_app = Typer(
    help="""Let a policy take over the traffic of another in stages.

    It advances by evidence, and goes back by itself when it loses: docs/rollouts.md.

        forage rollout forecast shop new --over main
        forage rollout start shop new --over main
        forage rollout status shop
        forage rollout back shop new --reason "pictures are missing"
    """,
    rich_markup_mode="markdown",
)
rollout_app.command("forecast")(rollout.forecast)
rollout_app.command("start")(rollout.start)
rollout_app.command("status")(rollout.status)
for step in rollout.STEP_HELP:
    rollout_app.command(step)(rollout.step_command(step))
app.add_typer(rollout_app, name="rollout", rich_help_panel=START_PANEL)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status: 1 for a ForageError, 2 for a wrong command line."""
    for threads in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
        os.environ.setdefault(threads, "1")  # heads are small; numpy reads it when first imported
    try:
        status: int = app(arguments, prog_name="forage", standalone_mode=False)
    except TyperException as fault:
        context = getattr(fault, "ctx", None)
        name = context.command_path if context else "forage"
        print(f"{name}: {fault.format_message()} (see {name} --help)", file=sys.stderr)
        return fault.exit_code
    except ForageError as fault:
        print(f"forage: {fault}", file=sys.stderr)
        return 1
    except ModuleNotFoundError as missing:
        if missing.name != "pyarrow":
            raise
        say = "Parquet needs pyarrow: pip install 'forage-bandits[archive]'"
        print(f"forage: {say}", file=sys.stderr)
        return 1
    return status
