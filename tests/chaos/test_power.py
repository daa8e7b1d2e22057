"""What the embedded store acknowledged survives a loss of power."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from service.log.stores.sqlite import SqliteStore
from service.log.stores.sqlite_file import connect_to_write
from tests.chaos.shim import Disk

pytestmark = pytest.mark.process

COMMITS = 20
SERVE = f"""
import asyncio
from pathlib import Path
from service.log.stores.base import Append, DecisionRow
from service.log.stores.sqlite import SqliteStore

async def serve():
    store = SqliteStore(Path(sys.argv[1]))
    await store.open()
    for number in range({COMMITS}):
        await store.commit([
            Append("shop", b"event", {{str(number): ""}}),
            DecisionRow("shop", str(number), "linucb", b"row"),
        ])
        print(number, flush=True)

asyncio.run(serve())
"""


def said_before_its_kill(code: str, environment: dict[str, str], file: Path) -> str:
    """The output of a program that kills itself at its end."""
    end = f"\nimport os; sys.stdout.flush(); os.kill(os.getpid(), {signal.SIGKILL})"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\n{code}{end}", str(file)],
        env={**os.environ, **environment}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL, done.stderr
    return done.stdout


def test_a_commit_survives_a_loss_of_power(disk: Disk, tmp_path: Path) -> None:
    file = tmp_path / "disk" / "forage.db"
    said = said_before_its_kill(SERVE, disk.environment, file).split()
    assert len(said) == COMMITS
    disk.lose_power()

    async def read() -> tuple[int, int]:
        store = SqliteStore(file)
        await store.open()
        events, rows = await store.read("shop", 0, 100), await store.decisions("shop", 0, 100)
        await store.close()
        return len(events), len(rows)

    assert asyncio.run(read()) == (COMMITS, COMMITS)


def test_the_embedded_store_syncs_each_commit(tmp_path: Path) -> None:
    """Also where no compiler is, and the test above is skipped."""
    db = connect_to_write(tmp_path / "forage.db")
    assert db.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL
    db.close()
