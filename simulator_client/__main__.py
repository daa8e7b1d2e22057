"""forage-sim: replay a world with a known optimum against a Forage service, and report on it."""

import argparse
import asyncio
import importlib.util
import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from simulator_client.arguments import DEFAULT_URL, DEFAULTS, OUT, parser
from simulator_client.client import Client
from simulator_client.errors import SimulatorError, UsageError
from simulator_client.journal import Run, load_run, save_run, write_whole
from simulator_client.replay import check_known, new_run_id, prepare, replay
from simulator_client.summary import load, rows, summary, table
from simulator_client.worlds import make_world

INTERRUPTED: Final = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the exit status: 0, 1 for a fault told in one line, 130 for Ctrl-C."""
    options = parser().parse_args(arguments)
    missing = [name for name in ("rich", "matplotlib") if not importlib.util.find_spec(name)]
    if missing:
        return _fail(f"{missing[0]} is not installed; pip install 'forage[sim]'")
    try:
        if options.command == "report":
            return _report(options)
        return _replay(options)
    except SimulatorError as error:
        return _fail(str(error))
    except BrokenPipeError:  # the reader of our output, `head` say, has seen enough
        return 1
    except OSError as error:
        return _fail(f"{error.strerror or error}: {error.filename or ''}".rstrip(": "))


def _replay(options: argparse.Namespace) -> int:
    fresh = options.resume is None
    run, folder = _fresh(options) if fresh else _resumed(options)
    try:
        asyncio.run(_play(options, run, folder, fresh=fresh))
    except KeyboardInterrupt:
        _tell_how_to_resume(options, folder)
        return INTERRUPTED
    except SimulatorError:
        _tell_how_to_resume(options, folder)
        raise
    results = load(folder)
    summed = summary(results)
    text = json.dumps(summed, indent=2) + "\n"
    write_whole(folder / "summary.json", text)
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        write_whole(options.json, text)
    print(f"\n{run.world}, world seed {run.world_seed}, stream seed {run.seed}: {results.mode}\n")
    print(table(rows(summed)))
    from simulator_client.report import write_report

    print(f"\nReport: {write_report([folder], folder)}")
    return 0


async def _play(options: argparse.Namespace, run: Run, folder: Path, *, fresh: bool) -> None:
    client = Client(options.url or [DEFAULT_URL])
    try:
        await client.wait_ready(options.ready_within)
        if fresh:
            await prepare(client, run, continued=options.continued)
        else:
            await check_known(client, run)
        save_run(folder, run)
        print(f"Run {run.run} on experiment {run.experiment}, in {folder}", file=sys.stderr)
        await replay(client, run, folder, patience_s=options.training_patience)
    finally:
        await client.aclose()


def _fresh(options: argparse.Namespace) -> tuple[Run, Path]:
    """A new run and its folder, both checked before anything is written."""
    run_id = new_run_id()
    given = {name: getattr(options, name) for name in DEFAULTS}
    asked = DEFAULTS | {name: value for name, value in given.items() if value is not None}
    experiment = options.experiment or f"{asked['world']}-{run_id}"
    run = Run(run=run_id, experiment=experiment, **asked)
    world = make_world(run.world, run.world_seed, run.shock_at)
    if options.experiment is None:
        world.definition(run.policies)
    if len(set(run.policies)) != len(run.policies):
        raise UsageError("a policy is named twice")
    folder = options.out or OUT / run_id
    if (folder / "run.json").exists():
        raise UsageError(f"{folder} holds a run already; --resume it, or give another --out")
    return run, folder


def _resumed(options: argparse.Namespace) -> tuple[Run, Path]:
    """The run to go on with; only the number of visits may be another, and only larger."""
    folder = run_folder(options.resume)
    run = load_run(folder)
    if options.out or options.experiment or options.continued:
        raise UsageError("--out, --experiment and --continue are for a new run, not for --resume")
    for name in DEFAULTS:
        asked = getattr(options, name)
        if asked is None or asked == getattr(run, name):
            continue
        if name != "visits":
            raise UsageError(
                f"the run has {name.replace('_', '-')} {getattr(run, name)}; "
                "that cannot change on --resume"
            )
        if asked < run.visits:
            raise UsageError(f"the run has {run.visits:,} visits; --visits can only add to them")
        run = replace(run, visits=asked)
    return run, folder


def _report(options: argparse.Namespace) -> int:
    from simulator_client.report import write_report

    folders = [run_folder(folder) for folder in options.run]
    out = options.out or (folders[0] if len(folders) == 1 else OUT / "report")
    for folder in folders:
        results = load(folder)
        print(f"{results.run.run}: {results.mode}\n\n{table(rows(summary(results)))}\n")
    print(f"Report: {write_report(folders, out)}")
    return 0


def run_folder(named: Path) -> Path:
    """A run by its folder, or by its id under out/."""
    inside = OUT / named
    return inside if not named.exists() and inside.exists() else named


def _tell_how_to_resume(options: argparse.Namespace, folder: Path) -> None:
    if not (folder / "run.json").exists():
        return
    command = ["forage-sim", "replay", "--resume", str(folder)]
    if options.url:
        command += ["--url", ",".join(options.url)]
    if options.json:
        command += ["--json", str(options.json)]
    print(f"\nStopped. Go on with: {shlex.join(command)}", file=sys.stderr)


def _fail(message: str) -> int:
    print(f"forage-sim: {message}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
