"""A small disk that fills up: no reward is acknowledged, decisions go on, and all comes back."""

import asyncio
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any, Final

import httpx

from tests.chaos.judge import audit
from tests.chaos.ledger import Ledger
from tests.chaos.load import Load
from tests.chaos.processes import NAME, Replica
from tests.chaos.verdict import settle_down

DISK_MIB: Final = 48
QUESTION: Final = {"experiment": NAME, "context": {"persona": "cat"}}
FULL_S: Final = 20.0
LIKELY_S: Final = 3.0


@contextmanager
def small_disk(folder: Path) -> Iterator[Path | None]:
    """A tmpfs of its own, or None where we may not mount one."""
    place = folder / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "tmpfs", str(place)]
    possible = subprocess.run(mount, capture_output=True).returncode == 0
    try:
        yield place if possible else None
    finally:
        if possible:
            subprocess.run(["umount", "--lazy", str(place)], check=True)


async def disk_full(folder: Path, rng: Random) -> tuple[str, list[str]]:
    """How it went, and what was wrong."""
    with small_disk(folder) as disk:
        if disk is None:
            return "not possible here", []
        wrong = await _fill(folder, disk, rng)
        return "failed" if wrong else "passed", wrong


async def _fill(folder: Path, disk: Path, rng: Random) -> list[str]:
    store = f"sqlite:///{disk}/forage.db"
    replica = Replica("service", folder, store)
    ledger = Ledger()
    load = Load([replica.url], ledger, rng)
    keeper = asyncio.create_task(replica.keep())
    http = httpx.AsyncClient(base_url=replica.url, timeout=10)
    try:
        await replica.ready(http)
        load.start()
        await asyncio.sleep(LIKELY_S)
        ballast = disk / "ballast"
        await _until_full(ballast, http)
        wrong, unlogged = await _while_full(replica, http, ledger)
        ballast.unlink()
        await replica.ready(http)
        if not await load.progress(20, within_s=FULL_S):
            wrong.append("no reward is acknowledged though there is space again")
        if not await _logged(http):
            wrong.append("/select is not logged though there is space again")
        await load.finish(FULL_S)
        standing = await settle_down([replica], store, http)
        if missing := [each for each in unlogged if each not in standing.log.rankings]:
            wrong.append(f"{len(missing)} of {len(unlogged)} decisions never came into the log")
        found = audit(ledger, standing.log)
        wrong += found.lost + found.doubled + found.strange + standing.unequal()
        return wrong + ledger.surprises + [f"ended: {status}" for status in replica.ended]
    except TimeoutError:
        return ["the disk did not fill up, or the service did not come to rest"]
    finally:
        keeper.cancel()
        await load.close()
        await http.aclose()
        replica.kill()


async def _until_full(ballast: Path, http: httpx.AsyncClient) -> None:
    """Take all space, again and again, until the log cannot be written. Raises TimeoutError."""
    async with asyncio.timeout(FULL_S):
        with ballast.open("ab", buffering=0) as file:
            while (await http.get("/healthz")).json()["status"] == "ok":
                try:
                    while True:
                        os.write(file.fileno(), bytes(4_096))
                except OSError:  # it is full; the log's own pages may be written over meanwhile
                    await asyncio.sleep(0.05)


async def _logged(http: httpx.AsyncClient) -> bool:
    """Whether a decision is logged before time is out; a slow disk may take a while for each."""
    deadline = monotonic() + FULL_S
    while monotonic() < deadline:
        if (await http.post("/select", json=QUESTION)).json()["logged"]:
            return True
        await asyncio.sleep(0.1)
    return False


async def _while_full(
    replica: Replica, http: httpx.AsyncClient, ledger: Ledger
) -> tuple[list[str], list[str]]:
    """What the service must not do now, if it does; and ids of decisions that have to wait."""
    wrong, unlogged = [], []
    until, acknowledged = monotonic() + LIKELY_S, ledger.acknowledged
    while monotonic() < until:
        answer = await http.post("/select", json=QUESTION)
        decision: dict[str, Any] = answer.json()
        if answer.status_code != 200 or decision["logged"]:
            wrong.append(f"full, /select: {answer.status_code}, logged {decision.get('logged')}")
            continue
        unlogged.append(decision["id"])
        reward = {"decision_id": decision["decision_id"], "reward": 1.0}
        answer = await http.post("/reward", json=reward)
        if answer.status_code != 503 or "retry-after" not in answer.headers:
            wrong.append(f"full, /reward: {answer.status_code}")
        await asyncio.sleep(0.05)
    if await replica.positions(http) is not None:
        wrong.append("full, and ready")
    if ledger.acknowledged > acknowledged:
        wrong.append("full, and rewards were acknowledged")
    return wrong, unlogged
