"""Families against a service: who sends what when, and what was answered."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from tests.attack.hostile.families import Family
from tests.attack.hostile.judge import faults
from tests.attack.hostile.pace import Pace
from tests.attack.hostile.shots import Answer, Arsenal, Shot
from tests.attack.hostile.wire import Patience, fire

SHOWN: Final = 5
"""Violations of a family that are written out; all are counted."""


@dataclass
class Tally:
    """What one family sent, and what it was answered."""

    sent: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    slowest_s: float = 0.0
    slowest: str = ""
    wrong: int = 0
    violations: list[str] = field(default_factory=list)

    def take(self, shot: Shot, answer: Answer, *, patient: bool = True) -> None:
        """Count an answer, and judge it."""
        self.sent += 1
        self.kinds[answer.kind] += 1
        if answer.seconds > self.slowest_s and shot.whole:
            self.slowest_s, self.slowest = answer.seconds, shot.target
        for fault in faults(shot, answer, patient=patient):
            self.wrong += 1
            line = f"{shot.target}: {fault}"
            if len(self.violations) < SHOWN and not self._known(line):
                self.violations.append(line)

    def _known(self, line: str) -> bool:
        return any(line[:60] == known[:60] for known in self.violations)

    def as_json(self) -> dict[str, Any]:
        return {
            "sent": self.sent,
            "answers": dict(sorted(self.kinds.items())),
            "slowest_seconds": round(self.slowest_s, 3),
            "slowest": self.slowest,
            "wrong": self.wrong,
            "violations": self.violations,
        }


class Runner:
    """Families at work. While the gate is closed no new request is sent."""

    def __init__(
        self, arsenal: Arsenal, families: Sequence[Family], seed: int, patience: Patience,
        pace: Pace,
    ) -> None:  # fmt: skip
        self.gate = asyncio.Event()
        self.tallies = {family.name: Tally() for family in families}
        self._families, self._seed, self._arsenal = families, seed, arsenal
        self._patience, self._pace = patience, pace
        self._left: dict[str, int] = {}
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
            await self._pace.turn(shot.key)
            await self.gate.wait()
            answer = await self._fire(shot)
            self.tallies[name].take(shot, answer, patient=self._patience.judges)
            shot = attack.send(answer)

    async def _fire(self, shot: Shot) -> Answer:
        host = self._arsenal.open_host if shot.open_door else self._arsenal.host
        self._busy += shot.whole
        self._idle.clear()
        try:
            await asyncio.sleep(shot.delay_s)
            return await fire(shot, host, self._patience)
        finally:
            self._busy -= shot.whole
            if not self._busy:
                self._idle.set()
