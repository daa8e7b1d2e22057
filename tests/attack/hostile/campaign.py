"""One campaign: families against a service with two tenants, and the verdict on it."""

import asyncio
import resource
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any, Final

from tests.attack.hostile import verdict
from tests.attack.hostile.artifacts import hostile_artifacts
from tests.attack.hostile.families import FAMILIES, counts_of
from tests.attack.hostile.load import VictimLoad, Window, percentiles_ms
from tests.attack.hostile.runner import Runner, Tally
from tests.attack.hostile.tenants import VICTIM, Ground, tenants

WINDOW_S: Final = 8.0
"""Of load without an attack, and then of load under it: in turn, so that both meet the same noise
of the machine."""
SATURATION_S: Final = 4.0
ROUNDS: Final = 40
"""At most: of a campaign that does not come to its end."""
DRAIN_S: Final = 5.0
EVALUATED_S: Final = 80.0
"""The victim's evaluation has ended by then: two of the attacker's may run before it (the half of
the places that one key has), each for 20 seconds."""
RATIO, P99_MS = 2.0, 20.0
"""The victim's p99 under attack at most doubles, or stays below so many milliseconds."""
MEMORY_MIB: Final = 512
"""What an attack may add to the memory of the service."""


@dataclass
class Found:
    """What a campaign found. violations: a line for each thing that is wrong."""

    tallies: dict[str, Tally] = field(default_factory=dict)
    victim: dict[str, Any] = field(default_factory=dict)
    process: dict[str, Any] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def sent(self) -> int:
        return sum(tally.sent for tally in self.tallies.values())

    def as_json(self) -> dict[str, Any]:
        families = {name: vars(tally) for name, tally in self.tallies.items()}
        return {"requests": self.sent, "families": families, **vars(self), "tallies": None}

    def table(self) -> str:
        """Return counts, slowest answers and findings for people."""
        width = max(map(len, self.tallies), default=0)
        lines = [f"{'family'.ljust(width)}  requests  slowest  answers"]
        for name, tally in self.tallies.items():
            answers = ", ".join(f"{kind} {count:,}" for kind, count in tally.answers.most_common())
            slowest = f"{tally.slowest_seconds:.2f} s"
            lines.append(f"{name.ljust(width)}  {tally.sent:8,}  {slowest:>7}  {answers}")
        lines.append(f"{'all'.ljust(width)}  {self.sent:8,}  in {self.seconds:.0f} s")
        return "\n".join([*lines, *map(str, (*self.victim.items(), *self.process.items()))])


def attack(
    folder: Path, requests: int, families: Sequence[str], seed: int, say: Callable[[str], None]
) -> Found:
    """Carry it out, in a folder of its own. say: takes a line of progress."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    found = Found()
    with tenants(folder) as ground:
        campaign = _Campaign(ground, seed, found, say)
        asyncio.run(campaign.run(counts_of(requests, families)))
        files, wrong = verdict.rest(ground.running, found.process["files_before"])
        found.process["files_after"] = files
        found.violations += wrong
        found.violations += verdict.close(ground, campaign.rewarded)
    return found


class _Campaign:
    """rewarded: rewards of the victim that were acknowledged, in all."""

    def __init__(self, ground: Ground, seed: int, found: Found, say: Callable[[str], None]) -> None:
        self._ground, self._seed, self._found, self._say = ground, seed, found, say
        self._alone: list[Window] = []
        self._attacked: list[Window] = []
        self.rewarded = 0

    async def run(self, counts: dict[str, int]) -> None:
        found, running = self._found, self._ground.running
        arsenal = await asyncio.to_thread(self._ground.arsenal)
        await asyncio.to_thread(hostile_artifacts)  # made before anybody is timed
        key = self._ground.keys.text(VICTIM)
        runner = Runner(arsenal, [FAMILIES[name] for name in counts], self._seed)
        found.tallies, begun = runner.tallies, monotonic()
        load = await VictimLoad.of(running.url, key, self._seed)
        found.victim["saturation"] = round(await load.saturate(SATURATION_S))
        found.process = {
            "files_before": verdict.open_files(running.pid),
            "memory_before_mib": verdict.peak_mib(running.pid),
        }
        attack = runner.start(counts)
        try:
            await self._in_turns(runner, load, attack, sum(counts.values()))
        finally:
            attack.cancel()
            with suppress(asyncio.CancelledError):
                await attack
        found.seconds, self.rewarded = monotonic() - begun, load.rewarded
        self._judge()
        self._judge_load()

    async def _in_turns(
        self, runner: Runner, load: VictimLoad, attack: "asyncio.Future[Any]", requests: int
    ) -> None:
        for number in range(ROUNDS):
            self._alone.append(await load.window(WINDOW_S))
            runner.gate.set()
            window = asyncio.create_task(load.window(WINDOW_S))
            if number == 0:
                await self._evaluate()
            self._attacked.append(await window)
            await runner.quiet(DRAIN_S)
            self._say(f"round {number + 1}: {runner.sent:,} of {requests:,} requests")
            if attack.done():
                return
        self._found.violations.append(f"{runner.sent:,} of {requests:,} requests were sent in time")

    async def _evaluate(self) -> None:
        """The victim asks for an evaluation while the attacker does."""
        await asyncio.sleep(WINDOW_S / 2)
        headers = self._ground.keys.headers(VICTIM)
        path = f"/experiments/{VICTIM}/evaluations"
        ask, body = self._ground.running.client.request, {"decisions": 200}
        answer = await asyncio.to_thread(ask, "POST", path, json=body, headers=headers)
        if answer.status_code != 202:
            self._found.violations.append(
                f"an evaluation of tenant {VICTIM} was answered {answer.status_code}"
            )
            return
        job, deadline = answer.json(), monotonic() + EVALUATED_S
        while job["state"] in ("waiting", "running") and monotonic() < deadline:
            await asyncio.sleep(0.5)
            answer = await asyncio.to_thread(ask, "GET", f"{path}/{job['id']}", headers=headers)
            job = answer.json()
        if job["state"] != "done":
            self._found.violations.append(f"an evaluation of tenant {VICTIM} is {job['state']}")

    def _judge(self) -> None:
        found = self._found
        for name, tally in found.tallies.items():
            if tally.wrong:
                told = "; ".join(tally.violations)
                found.violations.append(f"{name}: {tally.wrong} answers are wrong: {told}")
        before, most = (
            found.process["memory_before_mib"],
            verdict.peak_mib(self._ground.running.pid),
        )
        found.process["memory_most_mib"] = most
        if most > before + MEMORY_MIB:
            line = f"memory rose from {before} to {most} MiB, by more than {MEMORY_MIB}"
            found.violations.append(line)

    def _judge_load(self) -> None:
        found = self._found
        quiet, loud = percentiles_ms(self._alone), percentiles_ms(self._attacked)
        ratio = loud["p99"] / quiet["p99"]
        found.victim |= {"alone_ms": quiet, "attacked_ms": loud, "p99_ratio": round(ratio, 2)}
        if loud["p99"] > P99_MS and ratio > RATIO:
            found.violations.append(
                f"p99 of tenant {VICTIM} rose from {quiet['p99']:.1f} to {loud['p99']:.1f} ms, "
                f"{ratio:.1f} times"
            )
        windows = self._alone + self._attacked
        errors = sum((window.errors for window in windows), Counter[tuple[str, str]]())
        for what, count in errors.items():
            line = f"{count} requests of tenant {VICTIM} were not answered 200: {' '.join(what)}"
            found.violations.append(line)
