"""python -m tests.chaos: kill, cut, fill, and show that nothing acknowledged is lost or doubled."""

import argparse
import asyncio
import json
import secrets
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any, Final

from tests.chaos.campaign import Goal
from tests.chaos.campaigns import embedded, shared
from tests.chaos.disk import disk_full
from tests.chaos.report import summary, table

EMBEDDED_SHARE: Final = 0.3
"""Of time; the rest is for Redis, where more can fail."""
OVERHEAD_S: Final = 40.0
"""What starts, ends and the full disk take of --seconds, about."""
EMBEDDED: Final = Goal(kills=90, rewards=60_000, losses=9)
SHARED: Final = Goal(kills=210, rewards=140_000, losses=21, redis_faults=100)
"""Counts to reach without --seconds."""


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    seed = secrets.randbits(32) if options.seed is None else options.seed
    folder = Path(tempfile.mkdtemp(prefix="forage-chaos-"))
    _say(f"chaos: seed {seed}, processes and logs in {folder}")
    try:
        found = asyncio.run(_run(folder, options, seed))
    except (KeyboardInterrupt, asyncio.CancelledError):
        _say(f"stopped before the end; logs in {folder}")
        return 1
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    if found["violations"]:
        _say(f"logs: {folder}")
        return 1
    shutil.rmtree(folder)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, help="so long in all (else until 300 kills)")
    parser.add_argument(
        "--keep-stores",
        action="store_true",
        help="with --seconds: no store loses its end, is emptied or replaced",
    )
    parser.add_argument("--seed", type=int, help="of what is killed when (random)")
    parser.add_argument("--out", type=Path, default=Path("out/chaos.json"), help="the summary")
    parser.add_argument(
        "--only", choices=["sqlite", "redis", "disk"], help="one campaign instead of all"
    )
    return parser


def _goals(options: argparse.Namespace) -> tuple[Goal, Goal]:
    """Of the embedded and of the shared campaign."""
    if options.seconds is None:
        return EMBEDDED, SHARED
    left_s, keep = max(options.seconds - OVERHEAD_S, 5.0), options.keep_stores
    if options.only:
        return Goal(left_s, keep), Goal(left_s, keep)
    return Goal(EMBEDDED_SHARE * left_s, keep), Goal((1 - EMBEDDED_SHARE) * left_s, keep)


async def _run(folder: Path, options: argparse.Namespace, seed: int) -> dict[str, Any]:
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    rng, results, disk, wrong = Random(seed), [], "not asked for", list[str]()
    own, other = _goals(options)
    for name, run, goal in (("sqlite", embedded, own), ("redis", shared, other)):
        if options.only in (None, name):
            _say(f"{name}: {goal}")
            results.append(await run(_folder(folder, name), goal, rng))
    if options.only in (None, "disk"):
        disk, wrong = await disk_full(_folder(folder, "disk"), rng)
    found = summary(results, disk, wrong, seed)
    _say(table(results, found))
    return found


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _folder(folder: Path, name: str) -> Path:
    made = folder / name
    made.mkdir()
    return made


if __name__ == "__main__":
    sys.exit(main())
