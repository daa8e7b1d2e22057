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
from tests.attack.hostile.load import SHARE, VictimLoad, Window, percentiles_ms
from tests.attack.hostile.pace import Pace
from tests.attack.hostile.runner import Runner, Tally
from tests.attack.hostile.tenants import RATES, VICTIM, Ground, tenants
from tests.attack.hostile.watch import MEBIBYTE, Seen, memory_bytes, open_files, watching
from tests.attack.hostile.wire import Patience

WINDOW_S: Final = 8.0
"""Of load without an attack, and then of load under it: in turn, so that both meet the same noise
of the machine."""
SATURATION_S: Final = 4.0
ROUNDS: Final = 40
"""At most: of a campaign that does not come to its end."""
DRAIN_S: Final = 5.0
RATIO, P99_MS = 2.0, 20.0
"""The victim's p99 under attack at most doubles, or stays below so many milliseconds."""
MEMORY_MIB: Final = 512
"""What an attack may add to the memory of the service."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a campaign is to do.

    judged   load of the victim beside the attack, and what it may lose; else a short form
    """

    requests: int = 20_000
    families: Sequence[str] = tuple(FAMILIES)
    seed: int = 1
    judged: bool = True
    memory_mib: int = MEMORY_MIB
    patience: Patience = field(default_factory=Patience)


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

    @property
    def clean(self) -> bool:
        return not self.violations

    def as_json(self) -> dict[str, Any]:
        return {
            "requests": self.sent,
            "seconds": round(self.seconds, 1),
            "families": {name: tally.as_json() for name, tally in self.tallies.items()},
            "victim": self.victim,
            "process": self.process,
            "violations": self.violations,
        }


Say = Callable[[str], None]
"""Takes a line of progress."""


def attack(folder: Path, asked: Asked, say: Say = lambda line: None) -> Found:
    """Carry it out, in a folder of its own."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    found = Found()
    with tenants(folder) as ground:
        campaign = _Campaign(ground, asked, found, say)
        asyncio.run(campaign.run())
        log_bytes = verdict.size_bytes(folder)
        files, wrong = verdict.rest(ground.running, found.process["files_before"])
        found.process |= {"files_after": files, "log_mib": _mib(log_bytes)}
        found.violations += wrong
        found.violations += verdict.close(ground, campaign.seen.rewards, campaign.rewarded)
    return found


class _Campaign:
    """rewarded: of the victim that were acknowledged, in all."""

    def __init__(self, ground: Ground, asked: Asked, found: Found, say: Say) -> None:
        self._ground, self._asked, self._found, self._say = ground, asked, found, say
        self._alone: list[Window] = []
        self._attacked: list[Window] = []
        self.seen = Seen()
        self.rewarded = 0

    async def run(self) -> None:
        asked, found, running = self._asked, self._found, self._ground.running
        arsenal = await asyncio.to_thread(self._ground.arsenal)
        await asyncio.to_thread(hostile_artifacts)  # made before anybody is timed
        key, load = self._ground.keys.text(VICTIM), None
        families = [FAMILIES[name] for name in asked.families]
        pace = Pace(RATES if asked.judged else {})
        runner = Runner(arsenal, families, asked.seed, asked.patience, pace)
        begun = monotonic()
        if asked.judged:
            load = await VictimLoad.of(running.url, key, asked.seed)
            found.victim["saturation"] = round(await load.saturate(SATURATION_S))
        found.tallies = runner.tallies
        found.process = {
            "files_before": open_files(running.pid),
            "memory_before_mib": _mib(memory_bytes(running.pid)),
        }
        async with watching(running.pid, running.url, key) as self.seen:
            attack = runner.start(counts_of(asked.requests, asked.families))
            try:
                if load is None:
                    runner.gate.set()
                    await attack
                else:
                    await self._in_turns(runner, load, attack)
            finally:
                attack.cancel()
                with suppress(asyncio.CancelledError):
                    await attack
        found.seconds = monotonic() - begun
        self.rewarded = len(self.seen.rewards) + (load.rewarded if load else 0)
        self._judge()

    async def _in_turns(
        self, runner: Runner, load: VictimLoad, attack: "asyncio.Future[Any]"
    ) -> None:
        for number in range(ROUNDS):
            self._alone.append(await load.window(WINDOW_S))
            runner.gate.set()
            window = asyncio.create_task(load.window(WINDOW_S))
            if number == 0:
                await self._evaluate()
            self._attacked.append(await window)
            await runner.quiet(DRAIN_S)
            self._say(f"round {number + 1}: {runner.sent:,} of {self._asked.requests:,} requests")
            if attack.done():
                return
        self._found.violations.append(
            f"time was out: {runner.sent:,} of {self._asked.requests:,} requests were sent"
        )

    async def _evaluate(self) -> None:
        """The victim asks for an evaluation while the attacker does."""
        await asyncio.sleep(WINDOW_S / 2)
        headers = self._ground.keys.headers(VICTIM)
        path = f"/experiments/{VICTIM}/evaluations"
        answer = await asyncio.to_thread(
            self._ground.running.client.post, path, json={"decisions": 200}, headers=headers
        )
        self._found.victim["evaluation"] = answer.status_code
        if answer.status_code != 200:
            self._found.violations.append(
                f"an evaluation of tenant {VICTIM} was answered {answer.status_code}"
            )

    def _judge(self) -> None:
        found, seen, asked = self._found, self.seen, self._asked
        for name, tally in found.tallies.items():
            if tally.wrong:
                found.violations.append(f"{name}: {tally.wrong} answers are wrong: "
                                        + "; ".join(tally.violations))  # fmt: skip
        found.violations += seen.violations
        stalls = sorted(seen.stalls_ms)
        before = found.process["memory_before_mib"]
        most = _mib(seen.memory_most)
        found.process |= {
            "memory_most_mib": most,
            "memory_bound_mib": before + asked.memory_mib,
            "files_most": seen.files_most,
            "probe_ms_p99": round(stalls[int(0.99 * len(stalls))], 1) if stalls else None,
            "probe_ms_max": round(stalls[-1], 1) if stalls else None,
        }
        if most > before + asked.memory_mib:
            line = f"memory rose from {before} to {most} MiB, by more than {asked.memory_mib}"
            found.violations.append(line)
        found.victim["answers"] = dict(sorted(seen.answers.items()))
        if asked.judged:
            self._judge_load()

    def _judge_load(self) -> None:
        found = self._found
        quiet, loud = percentiles_ms(self._alone), percentiles_ms(self._attacked)
        ratio = loud["p99"] / quiet["p99"]
        errors = Counter[tuple[str, str]]()
        for load in self._alone + self._attacked:
            errors += load.errors
        found.victim |= {
            "load": f"{SHARE:.0%} of saturation",
            "alone_ms": quiet,
            "attacked_ms": loud,
            "p99_ratio": round(ratio, 2),
            "errors": {" ".join(what): count for what, count in errors.items()},
        }
        if loud["p99"] > P99_MS and ratio > RATIO:
            found.violations.append(
                f"p99 of tenant {VICTIM} rose from {quiet['p99']:.1f} to {loud['p99']:.1f} ms, "
                f"{ratio:.1f} times"
            )
        for what, count in errors.items():
            line = f"{count} requests of tenant {VICTIM} were not answered 200: {' '.join(what)}"
            found.violations.append(line)


def _mib(size: int) -> int:
    return round(size / MEBIBYTE)
