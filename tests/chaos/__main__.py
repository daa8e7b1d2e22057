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
from tests.chaos.hosts import NetworkError
from tests.chaos.report import summary, table

EMBEDDED_SHARE: Final = 0.3
"""Of kills and time; the rest is for Redis, where more can fail."""
OVERHEAD_S: Final = 40.0
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
    except NetworkError as reason:
        _say(f"{reason}; logs in {folder}")
        return 2
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    if found["violations"]:
        _say(f"logs and ledgers: {folder}")
        return 1
    shutil.rmtree(folder)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, help="so long in all, instead of counts")
    parser.add_argument(
        "--keep-stores",
        action="store_true",
        help="with --seconds: no store loses its end, is emptied or replaced",
    )
    parser.add_argument("--kills", type=int, default=300, help="at least so many (300)")
    parser.add_argument("--redis-faults", type=int, default=100, help="at least so many (100)")
    parser.add_argument(
        "--rewards", type=int, default=200_000, help="acknowledged, at least so many (200000)"
    )
    parser.add_argument(
        "--losses", type=int, default=30, help="of the log's end, at least so many (30)"
    )
    parser.add_argument("--jumps", type=int, default=20, help="of clocks, at least so many (20)")
    parser.add_argument("--seed", type=int, help="of what is killed when (random)")
    parser.add_argument("--out", type=Path, default=Path("out/chaos.json"), help="the summary")
    parser.add_argument(
        "--hosts",
        choices=["auto", "namespaces", "loopback"],
        default="auto",
        help="where the Redis campaign runs: hosts in network namespaces, this one's loopback, or "
        "the former where the machine allows it (auto)",
    )
    parser.add_argument(
        "--only", choices=["sqlite", "redis", "disk"], help="one campaign instead of all"
    )
    return parser


def _goals(options: argparse.Namespace) -> tuple[Goal, Goal]:
    """Of the embedded and of the shared campaign."""
    own, other = EMBEDDED_SHARE, 1 - EMBEDDED_SHARE
    if options.only in ("sqlite", "redis"):
        own = other = 1.0
    if options.seconds is not None:
        left_s, keep = max(options.seconds - OVERHEAD_S, 5.0), options.keep_stores
        return Goal(own * left_s, keep), Goal(other * left_s, keep)
    counts = {name: getattr(options, name) for name in ("kills", "rewards", "losses", "jumps")}
    mine = {name: round(own * count) for name, count in counts.items()}
    theirs = {name: count if options.only else count - mine[name] for name, count in counts.items()}
    return Goal(**mine), Goal(**theirs, redis_faults=options.redis_faults)


async def _run(folder: Path, options: argparse.Namespace, seed: int) -> dict[str, Any]:
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    rng, (own, other) = Random(seed), _goals(options)
    results = []
    if options.only in (None, "sqlite"):
        _say(f"sqlite: {own}")
        results.append(await embedded(_folder(folder, "sqlite"), own, rng))
    if options.only in (None, "redis"):
        _say(f"redis: {other}")
        results.append(await shared(_folder(folder, "redis"), other, rng, options.hosts))
    disk, wrong = "not asked for", list[str]()
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
