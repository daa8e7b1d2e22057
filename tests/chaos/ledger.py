"""What the clients were told, kept apart from the service: a line before a call, one after."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Key = tuple[str, str]
"""A decision's short id and the arm that it showed."""


@dataclass(slots=True)
class Claim:
    """One reward that a client gave, and what it was told of it.

    answers   200s, whatever they said: from the first on the reward is acknowledged
    counted   200s that said accepted or corrected: one at most
    """

    decision: str
    arm: str
    policy: str
    reward: float
    answers: int = 0
    counted: int = 0


class Ledger:
    """A file of lines, whole even where the run itself is killed, and the claims they add up to."""

    def __init__(self, path: Path) -> None:
        self.claims: dict[Key, Claim] = {}
        self.surprises: list[str] = []
        self.acknowledged = 0
        self._file = path.open("a", encoding="utf-8", buffering=1)

    def ask(self, decision: str, arm: str, policy: str, reward: float) -> Key:
        """Before a reward is given for the first time."""
        key = decision, arm
        self.claims[key] = Claim(decision, arm, policy, reward)
        self._write(asked=decision, arm=arm, policy=policy, reward=reward)
        return key

    def tell(self, key: Key, status: str) -> None:
        """After each 200 answer to it."""
        claim = self.claims[key]
        self.acknowledged += not claim.answers
        claim.answers += 1
        claim.counted += status != "duplicate"
        self._write(told=claim.decision, arm=claim.arm, status=status)

    def surprise(self, what: str) -> None:
        """An answer that no fault explains."""
        self.surprises.append(what)
        self._write(surprise=what)

    @property
    def unknown(self) -> int:
        """Rewards that were given and never acknowledged."""
        return len(self.claims) - self.acknowledged

    def close(self) -> None:
        self._file.close()

    def _write(self, **line: Any) -> None:
        self._file.write(json.dumps(line) + "\n")
