"""What is left when an attack is over: the process, its log, its heads, and its next start."""

import asyncio
import json
import subprocess
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from service.bandits.posterior import digest
from service.log.replay import PAGE
from service.log.stores import open_store
from service.state.events import Corrected, Learned, Rewarded, decode_event, outcomes
from tests.attack.hostile.tenants import VICTIM, Ground, started
from tests.attack.hostile.watch import open_files
from tests.cli.forage import STOP_S, Serving, forage
from tests.recovery.serving import folded

FILES_MORE: Final = 16
"""Open files that a service may have more of than before: of its store, and of this check."""
BUGS: Final = 5
"""Lines of a log that are shown."""
REST_S: Final = 60.0
"""Until connections that nobody uses are closed."""

Digests = dict[str, str]
Rewards = Sequence[tuple[str, str, float]]
"""Decision, arm and value."""


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


def close(ground: Ground, rewards: Rewards, rewarded: int) -> list[str]:
    """Stop the service, start it again, stop it, and audit; what is wrong, a line each.

    rewards    of the victim that were acknowledged one by one
    rewarded   acknowledged in all
    """
    before = digests(ground.running, ground)
    wrong = [*stopped("the service", ground.running), *logged("without keys", ground.open_door)]
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
    return [*wrong, *audited(ground), *kept(ground.store, rewards, rewarded)]


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


def kept(store: str, rewards: Rewards, rewarded: int) -> list[str]:
    """What the victim's log lacks of what was acknowledged, or has twice."""
    given: dict[tuple[str, str], list[float]] = {}
    counts: Counter[str] = asyncio.run(_read(store, given))
    wrong = [
        f"reward {value} of {decision}: the log has {given.get((decision, arm), [])}"
        for decision, arm, value in rewards
        if given.get((decision, arm)) != [value]
    ]
    wrong += [f"{key} was settled {len(each)} times" for key, each in given.items() if each[1:]]
    if counts["rewards"] != rewarded:
        wrong.append(f"{rewarded:,} rewards were acknowledged, the log has {counts['rewards']:,}")
    return wrong[:20]


async def _read(url: str, given: dict[tuple[str, str], list[float]]) -> Counter[str]:
    store, counts, position = open_store(url, readonly=True), Counter[str](), 0
    await store.open()
    try:
        while records := await store.read(VICTIM, position, PAGE):
            for record in records:
                event = decode_event(record.payload)
                if isinstance(event, Rewarded | Corrected):
                    counts["rewards"] += 1
                if isinstance(event, Learned):
                    for outcome in outcomes(event):
                        key = event.decision, outcome.settled.arm
                        given.setdefault(key, []).append(outcome.settled.reward)
            position = records[-1].position
    finally:
        await store.close()
    return counts


def size_bytes(folder: Path) -> int:
    """Of the database, with what is still in its write-ahead log."""
    return sum(path.stat().st_size for path in folder.glob("forage.db*"))
