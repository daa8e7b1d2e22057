"""python -m tests.upgrades: an older Forage and this one side by side on one log, under load.

Three replicas on Redis become new ones by one, and then old again; so does the one service on
SQLite. What was acknowledged by either is compared with the log, as chaos does. The older one is
taken from the history of git: a shallow clone has none (`git fetch --unshallow`).
"""

import argparse
import asyncio
import io
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Final

from benchmarks.support.redis_server import redis_server
from tests.chaos.campaign import Campaign, Goal, Result
from tests.chaos.processes import Replica, trainer
from tests.chaos.report import SHOWN

ROOT: Final = Path(__file__).resolve().parents[2]
OLDER: Final = "2f44d96"
"""The last commit before logs had a running checksum and told of their losses."""
BETWEEN: Final = 400
"""Rewards that are acknowledged between two changes."""
BETWEEN_S: Final = 120.0


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="forage-upgrades-") as name:
        folder = Path(name)
        if (older := _taken(options.older, folder / "older")) is None:
            sys.stderr.write(
                f"commit {options.older} is not in this clone: git fetch --unshallow\n"
            )
            return 2
        results = [
            asyncio.run(_embedded(_made(folder / "sqlite"), older)),
            asyncio.run(_shared(_made(folder / "redis"), older)),
        ]
    for result in results:
        sys.stdout.write(
            f"{result.name}: {result.changes} changes of version, {result.acknowledged:,} rewards "
            f"acknowledged, {result.lost} lost, {result.doubled} doubled, heads equal a fold: "
            f"{result.heads_equal}, {len(result.violations)} violations\n"
        )
        sys.stdout.writelines(f"VIOLATION {line}\n" for line in result.violations[:SHOWN])
    return 1 if any(result.violations for result in results) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.upgrades", description=__doc__)
    parser.add_argument("--older", default=OLDER, help="a commit of this clone (%(default)s)")
    return parser


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _taken(commit: str, folder: Path) -> Path | None:
    """The program of a commit, in a folder of its own; None where the clone has no such commit."""
    archive = subprocess.run(["git", "archive", commit, "service"], cwd=ROOT, capture_output=True)
    if archive.returncode:
        return None
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as packed:
        packed.extractall(folder, filter="data")
    return folder


async def _embedded(folder: Path, older: Path) -> Result:
    store = f"sqlite:///{folder}/forage.db"
    replicas = [Replica("service", folder, store)]
    return await _rolled("sqlite", folder, store, replicas, older)


async def _shared(folder: Path, older: Path) -> Result:
    with redis_server(folder) as redis:
        replicas = [Replica(f"service-{number}", folder, redis.url) for number in (1, 2, 3)]
        return await _rolled("redis", folder, redis.url, replicas, older)


async def _rolled(
    name: str, folder: Path, store: str, replicas: Sequence[Replica], older: Path
) -> Result:
    """All are older ones at the beginning and at the end, and new ones between."""
    training = trainer(folder, store, replicas[0].url)
    for process in (*replicas, training):
        process.tree = older
    campaign = Campaign(name, folder, store, replicas, training, Random(1))
    turns = [*((each, None) for each in replicas), *((each, older) for each in replicas)]

    async def change() -> None:
        if not await campaign.load.progress(BETWEEN, BETWEEN_S):
            few = f"not even {BETWEEN} rewards were acknowledged in {BETWEEN_S:.0f} s"
            campaign.result.violations.append(few)
        if turns:
            replica, tree = turns[0]
            replica.tree = tree
            await campaign.stopped([replica])
            await campaign.all_ready()
            turns.pop(0)
        campaign.result.changes += 1

    return await campaign.run(Goal(changes=len(turns) + 1), change)


if __name__ == "__main__":
    sys.exit(main())
