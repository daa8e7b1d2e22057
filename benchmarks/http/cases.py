"""The cases: each a server and the requests to it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.http.apps.wire import EXPERIMENT
from simulator_client.load import Plan
from simulator_client.load_requests import HEADERS, Requests, origin_of

CONNECTIONS: Final = 64
OPEN_CONNECTIONS: Final = 512
REWARDS_PER_SELECT: Final = 0.2
ECHO: Final = "echo"
POLICIES: Final = ("linucb", "lints", "neural_linear_ts", "auto")
STORES: Final = {
    "sqlite": "SQLite",
    "redis-everysec": "Redis everysec",
    "redis-always": "Redis always",
}


@dataclass(frozen=True, slots=True)
class Case:
    """server: a name of STORES, or a module of `apps`. rewards: none, mixed or alone."""

    name: str
    title: str
    server: str
    policy: str | None = None
    lists_arms: bool = False
    rewards: str = "mixed"

    @property
    def ours(self) -> bool:
        """Whether the server is Forage."""
        return self.server in STORES

    @property
    def peer(self) -> bool:
        """Whether the server is another learner."""
        return not self.ours and self.rewards == "mixed"


OTHERS: Final = (
    Case(ECHO, "bare ASGI, fixed answer of 200 bytes", "echo", rewards="none"),
    Case("fastapi", "FastAPI and pydantic, 50 arm ids, the same answer", "validated",
         lists_arms=True, rewards="none"),
    Case("mabwiser", "FastAPI around MABWiser LinUCB", "mabwiser"),
    Case("vowpal", "FastAPI around Vowpal Wabbit squarecb", "vowpal"),
    Case("disjoint", "FastAPI around a tutorial's disjoint LinUCB", "disjoint"),
)  # fmt: skip


def _ours() -> Iterator[Case]:
    for store, title in STORES.items():
        for policy in POLICIES:
            for arms, told in (("", "arms not listed"), ("-ids", "50 ids")):
                name = f"{store}-{policy}{arms}"
                yield Case(name, f"`{policy}`, {told}, {title}", store, policy, bool(arms))
        yield Case(f"{store}-reward", f"`/reward` alone, {title}", store, "linucb", rewards="alone")


CASES: Final = {case.name: case for case in (*OTHERS, *_ours())}


def plan(case: Case, url: str, *, headers: str = HEADERS, **asked: Any) -> Plan:
    """Make a plan of fresh contexts, with a reward for every five selects. asked: fields of Plan
    that differ from those of a closed loop; `seed` is one of them."""
    fixed = {"policy": case.policy} if case.policy else {}
    requests = Requests(
        url, EXPERIMENT, fixed, arms=case.lists_arms, headers=headers, seed=asked.get("seed", 1)
    )
    standard: dict[str, Any] = {
        "connections": OPEN_CONNECTIONS if asked.get("rate") else CONNECTIONS,
        "rewards_per_select": REWARDS_PER_SELECT if case.rewards == "mixed" else 0.0,
        "rewards_alone": case.rewards == "alone",
    }
    return Plan(origins=[origin_of(url)], requests=requests, **(standard | asked))
