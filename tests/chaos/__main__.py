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

from tests.chaos.campaigns import embedded, on_postgres, on_redis
from tests.chaos.disk import disk_full
from tests.chaos.report import summary, table
from tests.chaos.workers import WORKERS_CAMPAIGNS

CAMPAIGNS: Final = {
    "sqlite": (embedded, 0.25),
    "redis": (on_redis, 0.45),
    "postgres": (on_postgres, 0.3),
}
"""Each with its share of time: most can fail on Redis."""
OVERHEAD_S: Final = 60.0
"""What starts, ends and the full disk take of --seconds, about."""


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
    parser.add_argument("--seconds", type=float, default=1_200.0, help="in all (1200: 300 kills)")
    parser.add_argument(
        "--keep-stores",
        action="store_true",
        help="no store loses its end, is emptied or replaced",
    )
    parser.add_argument(
        "--workers",
        type=int,
        default=1,
        help="of one service, of which one is killed every 5 s, in place of all other faults (1)",
    )
    parser.add_argument("--seed", type=int, help="of what is killed when (random)")
    parser.add_argument("--out", type=Path, default=Path("out/chaos.json"), help="the summary")
    parser.add_argument("--only", choices=[*CAMPAIGNS, "disk"], help="one campaign instead of all")
    return parser


async def _run(folder: Path, options: argparse.Namespace, seed: int) -> dict[str, Any]:
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    rng, results, disk, wrong = Random(seed), [], "not asked for", list[str]()
    if options.workers > 1:
        for name, campaign in WORKERS_CAMPAIGNS.items():
            if options.only in (None, name):
                seconds = options.seconds / (1 if options.only else len(WORKERS_CAMPAIGNS))
                _say(f"{name}: {seconds:.0f} s with {options.workers} workers")
                made = _folder(folder, name)
                results.append(await campaign(made, seconds, options.workers, rng))
        found = summary(results, disk, wrong, seed)
        _say(table(results, found))
        return found
    for name, (run, share) in CAMPAIGNS.items():
        if options.only in (None, name):
            seconds = max(options.seconds - OVERHEAD_S, 5.0) * (1 if options.only else share)
            _say(f"{name}: {seconds:.0f} s of faults")
            results.append(await run(_folder(folder, name), seconds, options.keep_stores, rng))
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
