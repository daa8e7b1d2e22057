"""The shim: a loss of power takes what was not synced and nothing else; a clock goes wrong."""

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.support.redis_server import RedisServer
from tests.chaos.shim import Clock, Disk


def python(code: str, environment: dict[str, str], *arguments: object) -> str:
    """What a program says before it kills itself."""
    end = f"\nimport os, signal; sys.stdout.flush(); os.kill(os.getpid(), signal.{KILL.name})"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\n{code}{end}", *map(str, arguments)],
        env={**os.environ, **environment}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == -KILL, done.stderr
    return done.stdout


KILL = signal.SIGKILL
WRITE = """
import os
file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
os.write(file, b"synced"); os.fsync(file)
os.write(file, b" and not synced"); os.pwrite(file, b"S", 0)
os.close(os.open(sys.argv[1] + ".never", os.O_WRONLY | os.O_CREAT))
"""


def test_what_was_not_synced_goes_with_the_power(disk: Disk, tmp_path: Path) -> None:
    file = tmp_path / "disk" / "file"
    python(WRITE, disk.environment, file)
    assert file.read_text() == "Synced and not synced"  # a kill alone takes nothing
    assert disk.lose_power() == len(" and not synced")
    assert file.read_text() == "synced"


SQLITE = """
import sqlite3
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("PRAGMA journal_mode = WAL"); db.execute("PRAGMA synchronous = " + sys.argv[2])
db.execute("CREATE TABLE IF NOT EXISTS rows (number INTEGER)")
for number in range(int(sys.argv[3])):
    db.execute("INSERT INTO rows VALUES (?)", [number])
"""


@pytest.mark.parametrize(("synchronous", "kept"), [("FULL", 2_500), ("OFF", 0)])
def test_sqlite_keeps_each_commit_where_it_syncs(
    disk: Disk, tmp_path: Path, synchronous: str, kept: int
) -> None:
    """Also across checkpoints, which go through another descriptor, and a second process."""
    file = tmp_path / "disk" / "a.db"
    for rows in (2_000, 500):
        python(SQLITE, disk.environment, file, synchronous, rows)
    disk.lose_power()
    with sqlite3.connect(file) as db:
        tables = db.execute("SELECT name FROM sqlite_master").fetchall()
        count = db.execute("SELECT count(*) FROM rows").fetchone()[0] if tables else 0
    db.close()
    assert count == kept


@pytest.fixture
def redis(disk: Disk, tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path / "disk", environment=disk.environment)
    try:
        yield server.start()
    finally:
        server.kill()


@pytest.mark.parametrize("policy", ["always", "no"])
def test_redis_keeps_each_write_where_it_syncs(redis: RedisServer, disk: Disk, policy: str) -> None:
    redis.command("SET", "before", 1)
    redis.command("CONFIG", "SET", "appendfsync", policy)
    redis.command("SET", "after", 1)
    redis.kill()
    disk.lose_power()
    redis.start()
    assert redis.command("EXISTS", "before", "after") == (2 if policy == "always" else 1)


def test_a_clock_is_wrong_by_what_it_was_shifted(shim: Path, tmp_path: Path) -> None:
    clock = Clock(shim, tmp_path / "clock")
    code = "import time; print(time.time(), time.monotonic(), file=sys.stdout)"
    right = [float(each) for each in python(code, dict(clock.environment)).split()]
    clock.shift(-7_200)
    wrong = [float(each) for each in python(code, dict(clock.environment)).split()]
    assert -7_200 <= wrong[0] - right[0] < -7_000
    assert 0 <= wrong[1] - right[1] < 200
