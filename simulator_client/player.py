"""A visit over the wire: a decision and its reward."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from simulator_client.client import Client
from simulator_client.journal import Record, Run
from simulator_client.worlds import Outcome, Stream, World


class Pending(NamedTuple):
    visit: int
    decision_id: str
    shown: list[str]
    select_ms: float
    retries: int
    lost_selects: int


@dataclass(frozen=True, slots=True)
class Player:
    run: Run
    policy: str
    client: Client
    world: World[Any]
    stream: Stream[Any]

    async def select(self, number: int) -> Pending:
        request = self.world.request(self.stream.visit(number))
        answer = await self.client.select(
            {"experiment": self.run.experiment, "policy": self.policy, **request}
        )
        slate = request.get("top_k", 1) > 1
        body = answer.body
        shown = [place["arm"] for place in body["ranking"]] if slate else [body["arm"]]
        return Pending(
            number, body["decision_id"], shown, answer.latency_ms, answer.retries, answer.lost
        )

    def outcome(self, pending: Pending) -> Outcome:
        return self.world.outcome(self.stream.visit(pending.visit), pending.shown)

    async def finish(self, pending: Pending, outcome: Outcome, *, tell: bool = True) -> Record:
        """Return the finished visit; tell: report its outcome to the service, if there is one."""
        reward_ms, retries = None, 0
        if tell and outcome.feedback is not None:
            told = {"decision_id": pending.decision_id, **outcome.feedback}
            answer = await self.client.reward(told)
            reward_ms, retries = round(answer.latency_ms, 3), answer.retries
        return Record(
            visit=pending.visit,
            shown=pending.shown,
            group=outcome.group,
            clicks=outcome.clicks,
            expected=outcome.expected,
            best=outcome.best,
            select_ms=round(pending.select_ms, 3),
            reward_ms=reward_ms,
            retries=pending.retries + retries,
            lost_selects=pending.lost_selects,
            uniform=outcome.uniform,
            settled=settled_arms(outcome.feedback, pending.shown),
        )


def settled_arms(feedback: dict[str, Any] | None, shown: Sequence[str]) -> int:
    """Count the shown arms that a feedback settles: the service counts each as a reward."""
    if feedback is None:
        return 0
    if feedback.get("feedback") == "cascade":
        clicked = feedback["clicked"]
        return len(shown) if clicked is None else shown.index(clicked) + 1
    return 1
