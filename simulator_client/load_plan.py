"""What a load test sends, and how fast: all that a process of it has to know, as JSON."""

import json
from dataclasses import asdict, dataclass
from typing import Any, Final

COUNTER: Final = 10**8
"""A request's number is eight digits of a number in its context; then they repeat."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A load test.

    selects     requests, whole, sent in turn; %08d is the place of its number
    numbered    places of the number in each request
    rewards     bodies of rewards, sent in turn; %s is the token's place
    """

    addresses: list[list[Any]]  # family, host, port; connections are dealt out in turn
    selects: list[str]
    numbered: int
    reward_head: str  # up to the length of the body
    rewards: list[str]
    connections: int  # in all; at a rate at most so many
    processes: int
    warmup_s: float
    seconds: float
    rate: float | None  # selects a second; None: every connection asks as soon as it is answered
    spacing: str  # poisson or even
    rewards_per_select: float
    rewards_alone: bool  # decide while it warms up, then reward
    timeout_s: float
    seed: int

    def as_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self))

    @classmethod
    def of(cls, text: str) -> "Plan":
        """Of one line."""
        return cls(**json.loads(text))

    def share(self, index: int) -> int:
        """The connections of a process."""
        return self.connections // self.processes + (index < self.connections % self.processes)


class Requests:
    """The bytes of each request of one process; only what changes is formatted."""

    def __init__(self, plan: Plan, index: int) -> None:
        self._selects = [each.encode("latin-1") for each in plan.selects]
        self._numbered = plan.numbered
        start = plan.reward_head.replace("%", "%%").encode("latin-1")
        self._reward_head = start + b"%d\r\n\r\n%b"
        self._rewards = [tuple(each.encode().split(b"%s")) for each in plan.rewards]
        self._number = index * (COUNTER // plan.processes)
        self._reward_number = 0

    def select(self) -> bytes:
        """The next."""
        self._number += 1
        request = self._selects[self._number % len(self._selects)]
        return request % ((self._number % COUNTER,) * self._numbered) if self._numbered else request

    def reward(self, token: bytes) -> bytes:
        """The next, of a decision."""
        self._reward_number += 1
        before, after = self._rewards[self._reward_number % len(self._rewards)]
        body = b"%b%b%b" % (before, token, after)
        return self._reward_head % (len(body), body)


def token_of(body: bytes) -> bytes:
    """The decision's token, found without parsing the answer; b"" where it has none."""
    at = body.find(b'"decision_id"')
    start = body.find(b'"', at + 13) + 1
    end = body.find(b'"', start)
    return body[start:end] if at >= 0 and 0 < start <= end else b""


def is_unlogged(body: bytes) -> bool:
    """Whether the answer says that its decision is not in the log yet."""
    return b'"logged":false' in body or b'"logged": false' in body
