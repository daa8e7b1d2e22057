"""Families against a service: who sends what when, and whether the answers are right."""

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from time import monotonic
from typing import Any, Final

from tests.attack.hostile.families import Family
from tests.attack.hostile.shots import Answer, Arsenal, Shot
from tests.attack.hostile.tenants import RATES
from tests.attack.hostile.wire import fire

SHOWN: Final = 5
"""Violations of a family that are written out; all are counted."""
UNAVAILABLE: Final = ("quarantined", "log-unavailable", "overloaded", "too-many-connections")
"""Problems of a 503 that an attacker may get."""
PROBLEMS: Final = "https://forage.dev/problems/"
KEYLESS: Final = 200
"""Requests a second without a key."""
BEYOND: Final = 1.05
"""Requests of a key come this much faster than its rate: some are refused."""


def faults(shot: Shot, answer: Answer) -> Iterator[str]:
    """Yield what is wrong with an answer."""
    if answer.kind == "broken":
        yield f"what was answered is not HTTP: {answer.body[:80]!r}"
    if answer.kind == "open" and (shot.whole or shot.reads):
        yield f"neither answered nor closed after {answer.seconds:.0f} s"
    if answer.status >= 500 and not _unavailable(answer.status, answer.json()):
        yield f"answered {answer.status}: {answer.body[:200]!r}"
    if 200 <= answer.status < 300:
        if shot.must_fail:
            yield f"answered {answer.status}, and {shot.must_fail}"
        yield from _faults_within(answer)


def _faults_within(answer: Answer) -> Iterator[str]:
    """The same for the parts of a batch or a beacon, which have a status each."""
    content = answer.json() if answer.body[:12].startswith((b'{"results"', b'{"statuses"')) else {}
    for item in content.get("results", []):
        status = item.get("status", 0)
        if status >= 500 and not _unavailable(status, item.get("problem")):
            yield f"an item answered {status}: {item}"[:200]
    for status in content.get("statuses", []):
        if status >= 500 and status != 503:
            yield f"a part of a beacon answered {status}"


def _unavailable(status: int, problem: Any) -> bool:
    if status != 503 or not isinstance(problem, dict):
        return False
    return str(problem.get("type")).removeprefix(PROBLEMS) in UNAVAILABLE


@dataclass
class Tally:
    """What one family sent, and how it was answered."""

    sent: int = 0
    answers: Counter[str] = field(default_factory=Counter)
    slowest_seconds: float = 0.0
    slowest: str = ""
    wrong: int = 0
    violations: list[str] = field(default_factory=list)

    def take(self, shot: Shot, answer: Answer) -> None:
        """Count an answer, and judge it."""
        self.sent += 1
        self.answers[answer.kind] += 1
        if answer.seconds > self.slowest_seconds and shot.whole:
            self.slowest_seconds, self.slowest = round(answer.seconds, 3), shot.target
        for fault in faults(shot, answer):
            self.wrong += 1
            line = f"{shot.target}: {fault}"
            known = any(line[:60] == other[:60] for other in self.violations)
            if len(self.violations) < SHOWN and not known:
                self.violations.append(line)


class Runner:
    """Families at work. While the gate is closed no new request is sent."""

    def __init__(self, arsenal: Arsenal, families: Sequence[Family], seed: int) -> None:
        self.gate = asyncio.Event()
        self.tallies = {family.name: Tally() for family in families}
        self._families, self._seed, self._arsenal = families, seed, arsenal
        self._left: dict[str, int] = {}
        self._next: dict[str, float] = {}
        self._busy, self._idle = 0, asyncio.Event()

    @property
    def sent(self) -> int:
        return sum(tally.sent for tally in self.tallies.values())

    def start(self, counts: dict[str, int]) -> "asyncio.Future[Any]":
        """Begin, behind the gate; done once every family has sent its count. Cancel it to end."""
        self._left = dict(counts)
        workers = [
            self._work(family, number)
            for family in self._families
            for number in range(min(family.at_once, counts[family.name]))
        ]
        return asyncio.gather(*workers)

    async def quiet(self, within_s: float) -> None:
        """Close the gate, and wait until whole requests under way are answered."""
        self.gate.clear()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), within_s)

    async def _work(self, family: Family, number: int) -> None:
        name = family.name
        attack = family.attack(self._arsenal, Random(f"{self._seed} {name} {number}"))
        shot = next(attack)
        while self._left[name] > 0:
            self._left[name] -= 1
            await self._turn(shot.key)
            await self.gate.wait()
            answer = await self._fire(shot)
            self.tallies[name].take(shot, answer)
            shot = attack.send(answer)

    async def _turn(self, key: str) -> None:
        """Wait until a request with this key is due."""
        kind = key if key in RATES else ""
        at = max(self._next.get(kind, 0.0), monotonic())
        self._next[kind] = at + 1 / (BEYOND * RATES[kind] if kind else KEYLESS)
        await asyncio.sleep(max(0.0, at - monotonic()))

    async def _fire(self, shot: Shot) -> Answer:
        self._busy += shot.whole
        self._idle.clear()
        try:
            await asyncio.sleep(shot.delay_s)
            return await fire(shot, self._arsenal.host)
        finally:
            self._busy -= shot.whole
            if not self._busy:
                self._idle.set()
