"""What the other tenant, and whoever operates the service, notice of an attack."""

import asyncio
import json
import os
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any, Final

import httpx

from tests.attack.hostile.tenants import QUESTION, VICTIM

LOOK_S: Final = 0.1
PROBE_S: Final = 0.05
VISIT_S: Final = 0.2
ASK_S: Final = 30.0
MEBIBYTE: Final = 1 << 20


def memory_bytes(pid: int) -> int:
    """Resident, of one process; 0 where it has ended."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1_024
    return 0


def open_files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))  # noqa: PTH208 (counted, not looked at)


@dataclass
class Seen:
    """What was seen of a service while it was watched.

    stalls_ms  of each probe: how long the service took to say that it lives
    answers    counts, by what the other tenant asked and how it was answered
    rewards    of it that were acknowledged: decision, arm and value
    """

    memory_most: int = 0
    files_most: int = 0
    stalls_ms: list[float] = field(default_factory=list)
    answers: Counter[str] = field(default_factory=Counter)
    rewards: list[tuple[str, str, float]] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)


@asynccontextmanager
async def watching(pid: int, url: str, key: str) -> AsyncIterator[Seen]:
    """A process that watches a service inside the block; what it saw is there after it. It is a
    process of its own: whoever attacks is too busy to tell how fast the service answers."""
    pipe, seen = asyncio.subprocess.PIPE, Seen()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", __name__, str(pid), url, stdin=pipe, stdout=pipe, limit=1 << 26
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{key}\n".encode())
    try:
        await process.stdout.readline()  # it has begun
        yield seen
        told, _ = await process.communicate(b"")  # closed, which ends it
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    found = json.loads(told)
    seen.__dict__.update({**found, "answers": Counter(found["answers"])})


class _Watch:
    def __init__(self, pid: int, url: str, key: str) -> None:
        self._pid, self._url, self._key = pid, url, key
        self._seen = Seen()

    async def run(self, until: "asyncio.Future[Any]") -> Seen:
        """Look, probe and visit."""
        self._until = until
        await asyncio.gather(self._look(), self._probe(), self._visit())
        return self._seen

    async def _goes_on(self, pause_s: float) -> bool:
        await asyncio.wait([self._until], timeout=pause_s)
        return not self._until.done()

    async def _look(self) -> None:
        seen = self._seen
        while await self._goes_on(LOOK_S):
            seen.memory_most = max(seen.memory_most, memory_bytes(self._pid))
            with suppress(OSError):
                seen.files_most = max(seen.files_most, open_files(self._pid))

    async def _probe(self) -> None:
        """Over a connection of its own each time, as probes of an orchestrator come."""
        limits = httpx.Limits(max_keepalive_connections=0)
        async with httpx.AsyncClient(limits=limits, timeout=ASK_S, trust_env=False) as client:
            while await self._goes_on(PROBE_S):
                begun = monotonic()
                await self._ask(client, "GET", f"{self._url}/healthz", "a probe")
                self._seen.stalls_ms.append(round(1e3 * (monotonic() - begun), 3))

    async def _visit(self) -> None:
        headers, rewards = {"Authorization": f"Bearer {self._key}"}, self._seen.rewards
        async with httpx.AsyncClient(headers=headers, timeout=ASK_S, trust_env=False) as client:
            while await self._goes_on(VISIT_S):
                made = await self._ask(client, "POST", f"{self._url}/select", "a select", QUESTION)
                if made is not None:
                    reward = float(len(rewards) % 2)
                    told = {"decision_id": made["decision_id"], "reward": reward}
                    if await self._ask(client, "POST", f"{self._url}/reward", "a reward", told):
                        rewards.append((made["id"], made["arm"], reward))

    async def _ask(
        self, client: httpx.AsyncClient, method: str, url: str, what: str, body: Any = None
    ) -> Any:
        """The answer; None where it is not 200, which is a violation."""
        try:
            answer = await client.request(method, url, json=body)
        except httpx.HTTPError as fault:
            self._note(what, type(fault).__name__)
            return None
        if answer.status_code != 200:
            self._note(what, str(answer.status_code))
            return None
        self._seen.answers[f"{what}: 200"] += 1
        return answer.json()

    def _note(self, what: str, kind: str) -> None:
        self._seen.answers[f"{what}: {kind}"] += 1
        line = f"{what} of tenant {VICTIM} was answered {kind}"
        if line not in self._seen.violations:
            self._seen.violations.append(line)


async def _main() -> None:
    pid, url = sys.argv[1:]
    loop = asyncio.get_running_loop()
    key = sys.stdin.readline().strip()
    until = loop.run_in_executor(None, sys.stdin.read)  # until it is closed
    sys.stdout.write("\n")
    sys.stdout.flush()
    seen = await _Watch(int(pid), url, key).run(until)
    sys.stdout.write(json.dumps(vars(seen)))


if __name__ == "__main__":
    asyncio.run(_main())
