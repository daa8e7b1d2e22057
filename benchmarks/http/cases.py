"""What is measured: each case a server and what is asked of it."""

import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.http.apps.wire import EXPERIMENT
from simulator_client.load import address
from simulator_client.load_plan import Plan
from simulator_client.load_requests import head, rewards, selects

CONNECTIONS: Final = 64
OPEN_CONNECTIONS: Final = 512
REWARDS_PER_SELECT: Final = 0.2
TIMEOUT_S: Final = 10.0
ECHO: Final = "echo"
POLICIES: Final = ("linucb", "lints", "neural_linear_ts")
STORES: Final = ("sqlite", "redis-everysec", "redis-always")


@dataclass(frozen=True, slots=True)
class Case:
    """server: a name of STORES, or a module of `apps`. rewards: none, mixed or alone."""

    name: str
    title: str
    server: str
    policy: str | None = None
    arms: bool = False  # spelled out
    rewards: str = "mixed"

    @property
    def ours(self) -> bool:
        """Whether it is the service."""
        return self.server in STORES

    @property
    def peer(self) -> bool:
        """Whether it learns, and is not ours."""
        return not self.ours and self.rewards == "mixed"


FLOORS: Final = (
    Case(ECHO, "bare ASGI, fixed answer of 200 bytes", "echo", rewards="none"),
    Case("fastapi", "FastAPI and pydantic, 50 arm ids, the same answer", "validated",
         arms=True, rewards="none"),
)  # fmt: skip
PEERS: Final = (
    Case("mabwiser", "FastAPI around MABWiser LinUCB", "mabwiser"),
    Case("vowpal", "FastAPI around Vowpal Wabbit squarecb", "vowpal"),
    Case("disjoint", "FastAPI around a tutorial's disjoint LinUCB", "disjoint"),
)
TOLD: Final = {
    "sqlite": "SQLite",
    "redis-everysec": "Redis everysec",
    "redis-always": "Redis always",
}


def _ours() -> Iterable[Case]:
    for store in STORES:
        for policy in POLICIES:
            for arms in (False, True):
                told = "50 ids" if arms else "arms left out"
                yield Case(
                    f"{store}-{policy}{'-ids' if arms else ''}",
                    f"`{policy}`, {told}, {TOLD[store]}",
                    store, policy, arms,
                )  # fmt: skip
        yield Case(
            f"{store}-reward", f"`/reward` alone, {TOLD[store]}", store, "linucb", rewards="alone"
        )


CASES: Final = {case.name: case for case in (*FLOORS, *PEERS, *_ours())}


def plan(
    case: Case, url: str, *, seconds: float, warmup_s: float, rate: float | None, seed: int
) -> Plan:
    """What is sent: contexts with a number that never repeats, a reward for every five selects."""
    asked: dict[str, Any] = {"policy": case.policy} if case.policy else {}
    arms = list(EXPERIMENT["arms"]) if case.arms else None
    requests, numbered = selects(
        url, EXPERIMENT, asked, arms, random.Random(seed), fresh=True
    )  # fmt: skip
    return Plan(
        addresses=[address(url)],
        selects=requests,
        numbered=numbered,
        reward_head=head(url, "/reward"),
        rewards=rewards(EXPERIMENT),
        connections=CONNECTIONS if rate is None else OPEN_CONNECTIONS,
        processes=1,
        warmup_s=warmup_s,
        seconds=seconds,
        rate=rate,
        spacing="poisson",
        rewards_per_select=REWARDS_PER_SELECT if case.rewards == "mixed" else 0.0,
        rewards_alone=case.rewards == "alone",
        timeout_s=TIMEOUT_S,
        seed=seed,
    )
