"""The commands of forage-sim."""

import argparse
import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final, TypeVar

from forage_client import ClientError

from simulator_client.arguments import DEFAULT_URL, OUT, parser
from simulator_client.client import Client
from simulator_client.comparison import comparison
from simulator_client.comparison import rows as compared_rows
from simulator_client.course import load
from simulator_client.errors import UsageError
from simulator_client.journal import write_whole
from simulator_client.replay import new_run_id, play
from simulator_client.run_request import requested_run, run_folder
from simulator_client.showdown import check, showdown
from simulator_client.summary import rows, summary, summary_text, table

INTERRUPTED: Final = 130
T = TypeVar("T")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status: 0, 1 for a fault or a missed limit of a load test,
    2 for options that do not fit, 130 for Ctrl-C."""
    options = parser().parse_args(arguments)
    commands = {"replay": _replay, "showdown": _showdown, "load": _load, "report": _report}
    try:
        return commands[options.command](options)
    except KeyboardInterrupt:
        return INTERRUPTED
    except ClientError as error:
        return _fail(str(error))
    except BrokenPipeError:  # `forage-sim ... | head`
        return 1
    except OSError as error:
        return _fail(f"{error.strerror or error}: {error.filename or ''}".rstrip(": "))


def _replay(options: argparse.Namespace) -> int:
    run_id = new_run_id()
    run = requested_run(options, run_id, options.experiment)
    folder = options.out or OUT / run_id
    if (folder / "run.json").exists():
        raise UsageError(f"{folder} holds a run already; give another --out")

    _with_service(
        options,
        lambda client: play(client, run, folder, patience_s=options.training_patience),
        folder / "run.json",
        f"report {folder}",
    )  # fmt: skip
    found = load(folder)
    _write(folder / "summary.json", options.json, summary_text(found))
    print(f"\n{run.world}, world seed {run.world_seed}, stream seed {run.seed}: {found.mode}\n")
    print(table(rows(summary(found))))
    from simulator_client.report import write_report

    print(f"\nReport: {write_report([folder], folder)}")
    return 0


def _showdown(options: argparse.Namespace) -> int:
    run_id = new_run_id()
    run = requested_run(options, run_id)
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    out: Path = options.out or OUT / f"showdown-{run_id}"
    check(out, run, seeds)

    patience_s = options.training_patience
    runs = _with_service(
        options,
        lambda client: showdown(client, run, seeds, out, keep=options.keep, patience_s=patience_s),
        out,
        f"showdown ... --out {out} with the same options",
    )
    compared = comparison(runs)
    _write(out / "showdown.json", options.json, json.dumps(compared, indent=2) + "\n")
    print(f"\n{run.world}, world seed {run.world_seed}, {len(seeds)} stream seeds\n")
    print(table(compared_rows(compared)))
    from simulator_client.report import write_comparison

    print(f"\nReport: {write_comparison(runs, compared, out)}")
    return 0


def _load(options: argparse.Namespace) -> int:
    from simulator_client.load_command import load as load_test

    urls = list(options.url or [DEFAULT_URL])
    return load_test(options, urls, options.out or OUT / f"load-{new_run_id()}")


def _report(options: argparse.Namespace) -> int:
    from simulator_client.report import write_report

    folders = [run_folder(folder) for folder in options.run]
    out = options.out or (folders[0] if len(folders) == 1 else OUT / "report")
    for folder in folders:
        found = load(folder)
        print(f"{found.run.run}: {found.mode}\n\n{table(rows(summary(found)))}\n")
    print(f"Report: {write_report(folders, out)}")
    return 0


def _with_service(
    options: argparse.Namespace, played: Callable[[Client], Awaitable[T]], begun: Path, command: str
) -> T:
    """Play against the service once it is ready.

    After a stop, suggest a command if the path `begun` exists, and raise again.
    """

    async def whole() -> T:
        client = Client(options.url or [DEFAULT_URL], key=options.key)
        try:
            await client.wait_ready(options.ready_within)
            return await played(client)
        finally:
            await client.aclose()

    try:
        return asyncio.run(whole())
    except (KeyboardInterrupt, ClientError):
        if begun.exists():
            print(f"\nStopped. Continue with: forage-sim {command}", file=sys.stderr)
        raise


def _write(path: Path, also: Path | None, text: str) -> None:
    write_whole(path, text)
    if also:
        also.parent.mkdir(parents=True, exist_ok=True)
        write_whole(also, text)


def _fail(message: str) -> int:
    print(f"forage-sim: {message}", file=sys.stderr)
    return 1
