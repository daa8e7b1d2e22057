"""Many rewards of one arm of one decision: what they may come to, and what each of them costs."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import pytest
from pydantic import ValidationError

from service.definition.experiment import RewardRules
from service.definition.reward_request import RewardRequest
from service.definition.select_request import SelectRequest
from service.errors import Exhausted, NotLoggable
from service.features.row import Row
from service.http.services import Services
from service.log.stores.base import Append, CommitResult, Entry, Mark
from service.log.stores.memory import MemoryStore
from service.state.decisions import decode_decision
from service.state.events import Outcome, Rewarded, encode_event
from tests.support.clock import run_virtual
from tests.unit.audited import define, live, state_of
from tests.unit.folding import shop

LINUCB = {"kind": "linucb", "features": ["pet x kind"]}


class Counting(MemoryStore):
    """It counts what it is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.entries = self.looked_up = 0

    async def commit(self, entries: Sequence[Entry]) -> list[CommitResult]:
        self.entries += sum(isinstance(entry, Append) for entry in entries)
        return await super().commit(entries)

    async def marks(self, experiment: str, identities: Sequence[str]) -> dict[str, Mark]:
        self.looked_up += len(identities)
        return await super().marks(experiment, identities)


def serving(
    scenario: Callable[[Services, Counting], Awaitable[None]], reward: Mapping[str, Any]
) -> None:
    store = Counting()

    async def play(services: Services) -> None:
        await define(services, shop(linucb=LINUCB) | {"reward": reward})
        await scenario(services, store)

    run_virtual(live(store, play))


async def decide(services: Services) -> str:
    return (await services.selector.select(SelectRequest({"pet": "cat"}, policy="linucb"))).token


def learned(services: Services) -> float:
    return state_of(services).reward_sums["linucb"].total


def test_one_decision_teaches_no_more_than_its_total() -> None:
    """In the range [0, 1] it taught 400, with 400 values of reward_id."""

    async def scenario(services: Services, store: Counting) -> None:
        token, refused = await decide(services), 0
        for number in range(50):
            try:
                await services.settlements.reward(RewardRequest(token, 0.5, reward_id=str(number)))
            except Exhausted:
                refused += 1
        assert refused == 48
        assert learned(services) == 1.0
        same = await services.settlements.reward(RewardRequest(token, 0.5, reward_id="0"))
        assert same.status == "duplicate"

    serving(scenario, {"range": [0, 1], "aggregation": "sum"})


def test_a_definition_says_what_rewards_may_come_to() -> None:
    async def scenario(services: Services, store: Counting) -> None:
        token = await decide(services)
        for number in range(7):
            await services.settlements.reward(RewardRequest(token, 1.0, reward_id=str(number)))
        with pytest.raises(Exhausted, match=r"come to 7: with 1 they would leave .* -1 to 7"):
            await services.settlements.reward(RewardRequest(token, 1.0, reward_id="more"))
        await services.settlements.reward(RewardRequest(token, 0.0, reward_id="nothing"))
        assert learned(services) == 7.0

    serving(scenario, {"range": [0, 1], "aggregation": "sum", "total": [-1, 7]})


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"aggregation": "last", "total": [0, 5]}, "only rewards with aggregation"),
        ({"aggregation": "sum", "range": [0, 2], "total": [0, 1]}, "has to hold the range"),
        ({"aggregation": "sum", "range": [-1, 1], "total": [0, 1]}, "has to hold the range"),
    ],
)
def test_a_total_that_means_nothing_is_refused(rules: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        RewardRules.model_validate(rules)


@pytest.mark.parametrize("aggregation", ["sum", "last"])
def test_a_contribution_costs_the_same_however_many_came_before(aggregation: str) -> None:
    """A second commit where the first one met an earlier reward, and no look-up."""

    async def scenario(services: Services, store: Counting) -> None:
        token, costs = await decide(services), list[tuple[int, int]]()
        for number in range(300):
            before = store.entries, store.looked_up
            await services.settlements.reward(RewardRequest(token, 0.001, reward_id=str(number)))
            costs.append((store.entries - before[0], store.looked_up - before[1]))
        assert costs[0] == (1, 0)
        assert max(costs) == (2, 0)
        assert costs[299] == costs[150]

    serving(scenario, {"range": [0, 1], "aggregation": aggregation})


def test_contributions_that_come_at_once_each_cost_the_same() -> None:
    """Of 250 in one batch each commit took one and refused the others: 31,000 tries."""

    async def scenario(services: Services, store: Counting) -> None:
        token = await decide(services)
        outcomes = [RewardRequest(token, 1.0, reward_id=str(number)) for number in range(250)]
        before = store.entries
        settled = await asyncio.gather(*map(services.settlements.reward, outcomes))
        assert {each.status for each in settled} == {"accepted"}
        assert learned(services) == 250
        assert store.entries - before <= 2 * 250

    serving(scenario, {"range": [0, 1], "aggregation": "sum", "total": [0, 1000]})


def test_a_default_that_is_applied_twice_at_once_is_learned_once() -> None:
    """Of a slate of which one arm had a reward already."""

    async def scenario(services: Services, store: Counting) -> None:
        answer = await services.selector.select(
            SelectRequest({"pet": "cat"}, policy="linucb", top_k=2)
        )
        first = answer.decision.shown[0].arm
        await services.settlements.reward(RewardRequest(answer.token, rewards={first: 1.0}))
        row = await store.decision("shop", answer.decision.id)
        assert row is not None
        state = state_of(services)
        expire = services.expiry.expire
        await asyncio.gather(*(expire(state, decode_decision(row)) for _ in range(3)))
        assert state.learners["linucb"].rewards == 2
        assert len(await store.read("shop", 0, 100)) == 3

    serving(scenario, {"range": [0, 1], "aggregation": "sum", "default": 0.5})


@pytest.mark.parametrize("reward", [float("inf"), float("nan")])
def test_an_event_that_cannot_be_read_back_is_not_written(reward: float) -> None:
    settled = [Outcome("ball", reward, Row(b"", (1,)))]
    event = Rewarded(at=1.0, decision="d", policy="p", schema_version=1, settled=settled)
    with pytest.raises(NotLoggable, match="Rewarded cannot be read back"):
        encode_event(event)
