"""What the clients were told, kept apart from the service."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

Key = tuple[str, str]
"""A decision's short id and an arm that it showed."""
Ranking = tuple[tuple[str, float], ...]
"""The arms of a decision, each with its propensity."""


@dataclass(slots=True)
class Claim:
    """One reward that a client gave, and what it was told of it.

    answers   200s, whatever they said: from the first on the reward is acknowledged
    counted   200s that said accepted or corrected: one at most
    other     another value that was given later, which is refused
    """

    reward: float
    other: float | None = None
    answers: int = 0
    counted: int = 0


class Ledger:
    """Rewards and decisions by what their clients were told.

    rankings      of decisions that were said to be logged
    keyed         of decisions with an Idempotency-Key, by that key, once one was said to be logged
    other         ids of decisions whose key was answered with another ranking later
    inactive      deferred decisions that no client has tried to activate
    contradicted  rewards of which two values were acknowledged
    """

    def __init__(self) -> None:
        self.claims: dict[Key, Claim] = {}
        self.rankings: dict[str, Ranking] = {}
        self.keyed: dict[str, tuple[str, Ranking]] = {}
        self.other: list[str] = []
        self.inactive: set[str] = set()
        self.contradicted: list[Key] = []
        self.counts: Counter[str] = Counter()
        self.surprises: list[str] = []
        self.acknowledged = 0

    def select(self, decision: Mapping[str, Any], key: str | None = None) -> None:
        """After a 200 answer."""
        decision_id, logged = decision["id"], decision["logged"]
        self.counts["selects"] += 1
        self.counts["unlogged"] += not logged
        self.counts["slates"] += len(decision["ranking"]) > 1
        if not logged:
            return
        ranking = tuple((each["arm"], each["propensity"]) for each in decision["ranking"])
        self.rankings[decision_id] = ranking
        if key is not None:
            self.counts["keyed"] += 1
            first = self.keyed.setdefault(key, (decision_id, ranking))
            if first != (decision_id, ranking):
                self.other.append(decision_id)

    def defer(self, id: str) -> None:
        self.counts["deferred"] += 1
        self.inactive.add(id)

    def activate(self, id: str) -> None:
        """Before it is tried for the first time."""
        self.counts["activations"] += 1
        self.inactive.discard(id)

    def ask(self, id: str, rewards: Mapping[str, float]) -> None:
        """Before rewards of a decision, by arm, are given for the first time."""
        for arm, reward in rewards.items():
            self.claims[id, arm] = Claim(reward)

    def tell(self, id: str, arms: Iterable[str], status: str) -> None:
        """After each 200 answer to them."""
        for arm in arms:
            claim = self.claims[id, arm]
            self.acknowledged += not claim.answers
            claim.answers += 1
            claim.counted += status in ("accepted", "corrected")
        self.counts[status] += 1

    def contradict(self, id: str, others: Mapping[str, float]) -> None:
        """Before another value of what is acknowledged is given."""
        self.counts["contradictions"] += 1
        for arm, other in others.items():
            self.claims[id, arm].other = other

    def surprise(self, what: str) -> None:
        """An answer that no fault explains."""
        self.surprises.append(what)

    @property
    def unknown(self) -> int:
        """Rewards that were given and never acknowledged."""
        return len(self.claims) - self.acknowledged
