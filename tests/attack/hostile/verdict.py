"""What is left when an attack is over: the process, its log, its heads, and its next start."""

import asyncio
import json
import os
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

from service.bandits.heads import digest
from service.log.replay import PAGE
from service.state.events import Corrected, Rewarded, decode_event, settlements_of
from tests.attack.hostile.tenants import VICTIM, Ground, started
from tests.chaos.verdict import reading
from tests.cli.forage import STOP_S, Serving, forage
from tests.recovery.serving import folded

FILES_MORE: Final = 16
"""Open files that a service may have more of than before: of its store, and of this check."""
BUGS: Final = 5
"""Lines of a log that are shown."""
REST_S: Final = 60.0
"""Until connections that nobody uses are closed."""

Digests = dict[str, str]


def peak_mib(pid: int) -> int:
    """Return the most memory that a process has had resident, in MiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) // 1_024 for line in lines if line.startswith("VmHWM:"))


def open_files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))  # noqa: PTH208 (counted, not looked at)


def bugs(log: str) -> list[str]:
    """Lines of a service's log that should not be there."""
    lines = log.splitlines()
    return [line for line in lines if '"level": "error"' in line or "Traceback" in line]


def rest(running: Serving, before: int, within_s: float = REST_S) -> tuple[int, list[str]]:
    """Wait until files are closed that were opened for connections; how many are open."""
    deadline = time.monotonic() + within_s
    while (found := open_files(running.pid)) > before + FILES_MORE:
        if time.monotonic() > deadline:
            return found, [f"{found} files are open, {before} were before the attack"]
        time.sleep(0.1)
    return found, []


def close(ground: Ground, rewarded: int) -> list[str]:
    """Stop the service, start it again, stop it, and audit; what is wrong, a line each.

    rewarded   rewards of the victim that were acknowledged
    """
    before = digests(ground.running, ground)
    wrong = stopped("the service", ground.running)
    with started(ground.folder, "again") as again:
        if again.client.get("/readyz").status_code != 200:
            wrong.append("the service was not ready after it was started again")
        if digests(again, ground) != before:
            wrong.append("heads of the victim are others after a restart")
        wrong += stopped("the service, started again,", again)
    state = folded(ground.store, VICTIM)
    for name, learner in state.learners.items():
        if learner.active.head is not None and digest(learner.active.head) != before.get(name):
            wrong.append(f"the head of {name} differs from a fold of the log")
    return [*wrong, *audited(ground), *kept(ground.store, rewarded)]


def stopped(name: str, running: Serving) -> list[str]:
    """Stop it; what is wrong with its end, and with what it logged."""
    try:
        status = running.stop()
    except subprocess.TimeoutExpired:
        running.close()
        return [f"{name} had not ended {STOP_S:.0f} s after its SIGTERM", *logged(name, running)]
    wrong = [f"{name} ended with status {status} after its SIGTERM"] if status else []
    return [*wrong, *logged(name, running)]


def logged(name: str, running: Serving) -> list[str]:
    return [f"{name} logged: {line[:300]}" for line in bugs(running.said)[:BUGS]]


def digests(running: Serving, ground: Ground) -> Digests:
    """Of the victim's heads, by policy."""
    headers = ground.keys.headers(VICTIM)
    answer = running.client.get(f"/experiments/{VICTIM}/policies", headers=headers)
    policies = answer.raise_for_status().json()["policies"]
    return {each["name"]: each["head"]["digest"] for each in policies if each["head"]}


def audited(ground: Ground) -> list[str]:
    """Experiments whose log does not audit clean."""
    path = ground.folder / "audit.json"
    ended = forage("audit", "--store", ground.store, "--json", str(path), folder=ground.folder)
    if not path.exists():
        return [f"forage audit ended with status {ended.returncode}: {ended.stderr[-300:]}"]
    found: list[dict[str, Any]] = json.loads(path.read_text())
    return [
        f"the log of {each['experiment']} does not audit clean: {json.dumps(each)[:300]}"
        for each in found
        if not each["clean"]
    ]


def kept(store: str, rewarded: int) -> list[str]:
    """What the victim's log lacks of what was acknowledged, or has twice."""
    settled, count = asyncio.run(_read(store))
    wrong = [f"{key} was settled {times} times" for key, times in settled.items() if times > 1]
    if count != rewarded:
        wrong.append(f"{rewarded:,} rewards were acknowledged, the log has {count:,}")
    return wrong[:20]


async def _read(url: str) -> tuple[Counter[tuple[str, str]], int]:
    """Return how often each arm of a decision was settled, and the number of rewards."""
    settled, rewards, position = Counter[tuple[str, str]](), 0, 0
    async with reading(url) as store:
        while records := await store.read(VICTIM, position, PAGE):
            for event in (decode_event(record.payload) for record in records):
                rewards += isinstance(event, Rewarded | Corrected)
                for one in settlements_of(event):
                    settled.update((one.decision, each.arm) for each in one.settled)
            position = records[-1].position
    return settled, rewards
