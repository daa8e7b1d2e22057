"""A small service that speaks the wire: its choices follow from its rewards; faults on demand."""

import asyncio
import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import httpx

from simulator_client.journal import Run

Json = dict[str, Any]
FIGURES = {
    "visits", "matched_visits", "ctr", "expected_ctr", "expected_ctr_last_5000",
    "expected_ctr_before_shock", "expected_ctr_after_shock", "expected_regret", "relative_regret",
    "share_of_optimal", "best_arm_share", "recovery_visits", "select_p50_ms", "select_p99_ms",
    "reward_p50_ms", "reward_p99_ms", "retries", "lost_selects", "rate_reached",
}  # fmt: skip
"""The figures of a policy in a summary."""


def run_of(**changes: Any) -> Run:
    """Describe a run in the shop that waits for training; changes: other fields."""
    run = Run(
        run="r", experiment="e", world="zooplus", world_seed=42, seed=1, visits=120, shock_at=None,
        policies=("linucb",), wait_for_training=True,
    )  # fmt: skip
    return replace(run, **changes)


async def no_nap(seconds: float) -> None:
    """Let others run, without a wait."""
    await asyncio.sleep(0)


class FakeService:
    """A reward that is lost or counted twice changes every later choice."""

    def __init__(
        self,
        *,
        first_training: int = 40,
        polls_to_train: int = 2,
        choice: Callable[[Json], str] | None = None,
        expired_a_look: int = 10**9,
    ) -> None:
        self.expired_a_look = expired_a_look  # default rewards, at most, when a policy is asked for
        self.decided_at: dict[str, float] = {}  # token -> monotonic seconds
        self.told: list[tuple[str, float, float]] = []  # token, reward, seconds since its decision
        self.choice = choice  # an arm of the definition, whatever was learned
        self.experiments: dict[str, Json] = {}
        self.decisions: dict[str, tuple[str, str]] = {}
        self.rewards: dict[str, float] = {}
        self.learned: defaultdict[tuple[str, str], float] = defaultdict(float)
        self.counts: defaultdict[tuple[str, str], int] = defaultdict(int)
        self.decided: defaultdict[tuple[str, str], int] = defaultdict(int)
        self.first_training, self.polls_to_train = first_training, polls_to_train
        self.due_at: dict[tuple[str, str], int] = {}
        self.staged: int | None = None
        self.polls: defaultdict[tuple[str, str], int] = defaultdict(int)
        self.selected: list[Json] = []
        self.served: list[tuple[str, str]] = []
        self.defined: list[str] = []
        self.deleted: list[str] = []

    def handle(self, request: httpx.Request) -> httpx.Response:
        """Answer a request of the contract."""
        path = request.url.path
        self.served.append((f"{request.url.scheme}://{request.url.netloc.decode()}", path))
        body = json.loads(request.content) if request.content else {}
        if path == "/readyz":
            return httpx.Response(200, json={"ready": True})
        if path == "/select":
            return self._select(body)
        if path == "/reward":
            return self._reward(body)
        _, _, name, *rest = path.split("/")
        return self._experiment(request.method, name, rest, body)

    def _experiment(self, method: str, name: str, rest: list[str], body: Json) -> httpx.Response:
        if method == "PUT":
            self.experiments[name] = body
            self.defined.append(name)
            return httpx.Response(201, json={"name": name, "definition": body})
        if name not in self.experiments:
            return problem(404, "Unknown experiment", f"there is no experiment {name!r}")
        if method == "DELETE":
            self.deleted.append(name)
            del self.experiments[name]
            return httpx.Response(204)
        if method == "POST" and rest == ["arms"]:
            self.experiments[name]["arms"] |= body["arms"]
            return httpx.Response(200, json={"arms": []})
        if not rest:
            definition = self.experiments[name]
            return httpx.Response(200, json={"name": name, "definition": definition})
        if len(rest) == 1:
            statuses = [self._status(name, policy) for policy in self._policies(name)]
            return httpx.Response(200, json={"policies": statuses})
        key = (name, rest[1])
        self.polls[key] += 1
        self._expire(*key)
        status = self._status(*key)
        if status["training_due"] and self.polls[key] % self.polls_to_train == 0:
            self.due_at[key] *= 2
        return httpx.Response(200, json=status)

    def values(self, policy: str) -> list[float]:
        """The rewards a policy got, in order."""
        return [r for token, r in self.rewards.items() if self.decisions[token][1] == policy]

    def _expire(self, experiment: str, policy: str) -> None:
        """Default rewards for what is past its wait window, the oldest first."""
        rules = self.experiments[experiment]["reward"]
        if rules.get("default") is None or "wait_seconds" not in rules:
            return
        before = time.monotonic() - rules["wait_seconds"]
        due = [
            token
            for token, at in self.decided_at.items()
            if at <= before
            and token not in self.rewards
            and self.decisions[token] == (experiment, policy)
        ]
        for token in due[: self.expired_a_look]:
            self._settle(token, rules["default"])

    def _policies(self, experiment: str) -> Json:
        return dict(self.experiments[experiment]["policies"])

    def _status(self, experiment: str, policy: str) -> Json:
        key = (experiment, policy)
        due_at = head = None
        kind = self._policies(experiment)[policy]["kind"]
        if kind != "random":
            count = float(self.counts[key])
            head = {
                "smallest_eigenvalue": 1.0 + count / 8,
                "effective_rank": count / 8,
                "effective_count": count,
            }
        if kind.startswith("neural"):
            due_at = self.due_at.setdefault(key, self.first_training)
        return {
            "name": policy,
            "head": head,
            "version": 0,
            "staged": self.staged,
            "decisions": self.decided[key],
            "rewards": self.counts[key],
            "training_due_at": due_at,
            "training_due": due_at is not None
            and self.staged is None
            and self.counts[key] >= due_at,
        }

    def _select(self, body: Json) -> httpx.Response:
        self.selected.append(body)
        experiment, policy = body["experiment"], body["policy"]
        if experiment not in self.experiments:
            return problem(404, "Unknown experiment", f"there is no experiment {experiment!r}")
        arms = list(self.experiments[experiment]["arms"])
        turn = 3 * self.counts[experiment, policy] + int(self.learned[experiment, policy])
        chosen = arms[turn % len(arms)]
        if self.choice:
            chosen = self.choice(self.experiments[experiment])
        token = f"token-{len(self.decisions)}"
        self.decisions[token] = (experiment, policy)
        self.decided_at[token] = time.monotonic()
        self.decided[experiment, policy] += 1
        ranking = [{"arm": chosen, "propensity": 1.0}]
        return httpx.Response(
            200, json={"decision_id": token, "arm": chosen, "propensity": 1.0, "ranking": ranking}
        )

    def _reward(self, body: Json) -> httpx.Response:
        token, reward = body["decision_id"], body["reward"]
        self.told.append((token, reward, time.monotonic() - self.decided_at[token]))
        if token in self.rewards:
            return httpx.Response(200, json={"status": "duplicate"})
        self._settle(token, reward)
        return httpx.Response(200, json={"status": "accepted"})

    def _settle(self, token: str, reward: float) -> None:
        self.rewards[token] = reward
        self.counts[self.decisions[token]] += 1
        self.learned[self.decisions[token]] += reward


def problem(status: int, title: str, detail: str = "", **headers: str) -> httpx.Response:
    """An error of the contract's shape; `retry_after="0"` becomes a header."""
    return httpx.Response(
        status,
        headers={name.replace("_", "-"): value for name, value in headers.items()}
        | {"content-type": "application/problem+json"},
        content=json.dumps(
            {"type": "about:blank", "title": title, "status": status, "detail": detail}
        ),
    )


Fault = Callable[[httpx.Request, Callable[[], httpx.Response]], httpx.Response]


def refused(request: httpx.Request, answer: Callable[[], httpx.Response]) -> httpx.Response:
    """Nobody listens."""
    raise httpx.ConnectError("connection refused", request=request)


def lost(request: httpx.Request, answer: Callable[[], httpx.Response]) -> httpx.Response:
    """The service did it; its answer never came."""
    answer()
    raise httpx.ReadError("connection reset", request=request)


def busy(request: httpx.Request, answer: Callable[[], httpx.Response]) -> httpx.Response:
    """Not now."""
    return problem(503, "Log unavailable", retry_after="0.2")


def transport(service: FakeService, faults: Iterable[Fault | None] = ()) -> httpx.MockTransport:
    """The service behind httpx; select and reward take the next fault, if there is one."""

    waiting = iter(faults)

    def respond(request: httpx.Request) -> httpx.Response:
        fault = next(waiting, None) if request.url.path in ("/select", "/reward") else None
        if fault:
            return fault(request, lambda: service.handle(request))
        return service.handle(request)

    return httpx.MockTransport(respond)
