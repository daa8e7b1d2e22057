"""`forage rebuild`: heads without what should not have been learned, over every store."""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.app import assemble
from service.definition.experiment import Definition
from service.definition.reward_request import RewardRequest
from service.definition.select_request import Envelope, SelectRequest
from service.errors import ConfigurationError, NotFound
from service.http.services import Services
from service.log.stores import Store, open_store
from service.log.stores.memory import MemoryStore
from service.offline.rebuild import Condition, Rebuilt, find, rebuild, rebuild_store
from service.security.token import TokenSealer
from service.settings import Settings
from service.state.artifacts import read_artifact
from service.state.decisions import decode_decision
from service.state.fold import State
from tests.support.scenarios import Test, as_test
from tests.unit.folding import NET, shop

SECRET = bytes(32)
POLICIES: dict[str, dict[str, Any]] = {
    "linucb": {"kind": "linucb"},
    "disjoint": {"kind": "lints", "disjoint": True, "draws": 16},
    "windowed": {"kind": "linucb", "window": 1_000},
    "forgetful": {"kind": "linucb", "gamma": 0.9, "decay_every": 2},
    "clicks": {"kind": "popularity", "draws": 16},
    "net": {"kind": "neural_linear_ts", "draws": 16, **NET, "training": {"first": 1_000}},
    "gradient": {"kind": "neural_ucb", "form": "full", **NET},
    "random": {"kind": "random"},
}
LEARNED = [name for name in POLICIES if name != "random"]
TURNS = 12
PAGE = Envelope(caller="page")


def over(store: Store, scenario: Callable[[Services], Awaitable[Any]]) -> Any:
    """What a scenario says, against the parts of a service over a store."""

    async def run() -> Any:
        settings = Settings(store="memory://", token_keys=[SECRET])
        await store.open()
        services = assemble(settings, store, [SECRET])
        try:
            await services.log.open()
            return await scenario(services)
        finally:
            await services.log.close()
            await store.close()

    return asyncio.run(run())


def over_every_service(scenario: Callable[..., Awaitable[Any]]) -> Test:
    """A test of a service over every store."""
    return as_test(scenario, lambda backend, work: over(backend.make(), work), "backend")


def state_of(services: Services) -> State:
    state = services.log.replicas.state("shop")
    assert state is not None
    return state


async def play(
    services: Services, *, hostile: bool, policies: Collection[str] = POLICIES.keys()
) -> None:
    """Each policy learns from TURNS visits. hostile: and from as many for which a page asked, for
    one unit, and lied."""
    definition = shop(**{name: {**POLICIES[name], "learns_from": "own"} for name in policies})
    await services.admin.define("shop", Definition.model_validate(definition), "")
    for turn in range(TURNS):
        for policy in policies:
            honest = SelectRequest(
                {"pet": ["cat", "dog"][turn % 2], "age": float(turn)},
                policy=policy,
                arms=["food1", "toy2", "bed1"][turn % 3 :][:1],
                unit=f"visitor {turn}",
            )
            answer = await services.selector.select(honest, Envelope(caller="backend"))
            await services.settlements.reward(RewardRequest(answer.token, reward=float(turn % 2)))
            if hostile:
                lie = SelectRequest(
                    {"pet": "cat", "age": 90.0}, policy=policy, arms=["toy1"], unit="troll"
                )
                answer = await services.selector.select(lie, PAGE)
                await services.settlements.reward(RewardRequest(answer.token, reward=1.0))


def asked() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((6, 6))


def means(state: State, policy: str) -> np.ndarray:
    version = state.learners[policy].active
    x = asked()[:, : state.schema.width]
    arms = ["food1", "toy1", "bed1"] * 2
    return version.mean(version.phi(x), arms)


async def rebuilt(services: Services, *conditions: Condition) -> dict[str, Rebuilt]:
    state, store = state_of(services), services.store
    without = await find(store, "shop", conditions, TokenSealer([SECRET]))
    found = [await rebuild(store, state, state.learners[name], without) for name in LEARNED]
    return {each.policy: each for each in found}


async def activate(services: Services, found: dict[str, Rebuilt]) -> None:
    for each in found.values():
        await services.admin.stage(state_of(services), each.policy, each.artifact, "")
    for _ in range(1_000):
        if not any(learner.challenger for learner in state_of(services).learners.values()):
            return
        await asyncio.sleep(0.01)
    pytest.fail("a version does not come to serve")


@pytest.fixture(scope="module")
def expected() -> dict[str, np.ndarray]:
    """The means of the same policies where nobody lied."""

    async def honest(services: Services) -> dict[str, np.ndarray]:
        await play(services, hostile=False)
        return {name: means(state_of(services), name) for name in LEARNED}

    return over(MemoryStore(), honest)


@over_every_service
async def test_rebuilt_heads_are_what_honest_visits_alone_would_have_made(
    services: Services, expected: dict[str, np.ndarray]
) -> None:
    """Of decisions by the name of the key, and for good: neither a lie that is settled later, nor a
    snapshot, nor a second rebuild without further decisions brings one back."""
    await play(services, hostile=True)
    late = await services.selector.select(
        SelectRequest({"pet": "cat", "age": 90.0}, policy="linucb", arms=["toy1"]), PAGE
    )
    poisoned = {name: means(state_of(services), name) for name in LEARNED}
    found = await rebuilt(services, Condition(key="page"))
    for name, each in found.items():
        assert np.abs(poisoned[name] - expected[name]).max() > 0.01, name
        assert (each.settlements, each.left_out, each.net) == (TURNS, TURNS, None), name
        before = state_of(services).learners[name].active
        assert (before.number, each.version) == (0, 1)
    await activate(services, found)
    for name in LEARNED:
        assert means(state_of(services), name) == pytest.approx(expected[name], abs=1e-9), name
    held = {name: means(state_of(services), name) for name in LEARNED}
    await services.settlements.reward(RewardRequest(late.token, reward=1.0))
    assert np.array_equal(means(state_of(services), "linucb"), held["linucb"])
    again = State.restore(state_of(services).snapshot())
    assert again.learners["linucb"].active.without == (
        state_of(services).learners["linucb"].active.without
    )
    assert len(again.learners["linucb"].active.without) == TURNS * len(POLICIES) + 1
    second = (await rebuilt(services, Condition(unit="visitor 3")))["disjoint"]
    assert (second.version, second.left_out) == (2, TURNS + 1)
    version = read_artifact(state_of(services).learners["disjoint"], second.artifact)
    assert len(version.without) == (TURNS + 1) * len(POLICIES) + 1
    assert version.head is not None
    assert version.head.health().effective_count == TURNS - 1


@over_every_service
async def test_a_correction_of_what_was_left_out_moves_nothing(services: Services) -> None:
    definition = shop(linucb={"kind": "linucb"}) | {"reward": {"default": 0.0}}
    await services.admin.define("shop", Definition.model_validate(definition), "")
    question = SelectRequest({"pet": "cat"}, arms=["toy1"])
    answer = await services.selector.select(question, PAGE)
    row = decode_decision((await services.store.decisions("shop", 0, 1))[0].payload)
    await services.expiry.expire(state_of(services), row)
    state, store = state_of(services), services.store
    without = await find(store, "shop", [Condition(key="page")], TokenSealer([SECRET]))
    found = await rebuild(store, state, state.learners["linucb"], without)
    await activate(services, {"linucb": found})
    head: Any = state_of(services).learners["linucb"].active.head
    assert head.n == 0
    outcome = await services.settlements.reward(RewardRequest(answer.token, reward=1.0))
    assert outcome.status == "corrected"
    head = state_of(services).learners["linucb"].active.head
    assert (head.n, np.abs(head.b).max()) == (0, 0)


@over_every_service
async def test_what_is_named_is_found_by_key_by_unit_and_by_time(services: Services) -> None:
    policies = ["linucb", "random"]
    await play(services, hostile=True, policies=policies)
    store, sealer = services.store, TokenSealer([SECRET])
    rows = [decode_decision(row.payload) for row in await store.decisions("shop", 0, 1_000)]
    first, middle = rows[0].at, rows[len(rows) // 2].at

    async def of(*conditions: Condition) -> set[str]:
        return set(await find(store, "shop", conditions, sealer))

    lies = {row.id for row in rows if row.key == "page"}
    assert len(lies) == TURNS * len(policies)
    assert await of(Condition(key="page")) == lies
    assert await of(Condition(unit="troll")) == lies
    assert await of(Condition(unit="nobody")) == set()
    assert await of(Condition(since=middle)) == {r.id for r in rows if r.at >= middle}
    assert await of(Condition(since=first, until=middle)) == {
        row.id for row in rows if row.at < middle
    }
    both = Condition(key="page", until=middle)
    assert await of(both) == {row.id for row in rows if row.id in lies and row.at < middle}
    assert await of(Condition(unit="visitor 0"), Condition(unit="visitor 1")) == {
        row.id for row in rows if row.key == "backend"
    } - await of(*[Condition(unit=f"visitor {turn}") for turn in range(2, TURNS)])


def test_the_head_of_a_shadow_is_rebuilt_as_well(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/forage.db"

    async def scenario(services: Services) -> list[tuple[str, int, int]]:
        definition = shop(random={"kind": "random"}, dark={"kind": "linucb", "shadow": True})
        await services.admin.define("shop", Definition.model_validate(definition), "")
        for envelope in (PAGE, Envelope(caller="backend"), PAGE):
            answer = await services.selector.select(SelectRequest({"pet": "cat"}), envelope)
            await services.settlements.reward(RewardRequest(answer.token, reward=1.0))
        found = await rebuild_store(url, None, None, [Condition(key="page")], [SECRET])
        return [(each.policy, each.settlements, each.left_out) for each in found]

    assert over(open_store(url), scenario) == [("dark", 1, 2)]


def test_what_has_no_head_to_learn_is_refused(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/forage.db"

    async def scenario(services: Services) -> None:
        definition = shop(random={"kind": "random"}, frozen={"kind": "linucb", "learning": False})
        await services.admin.define("shop", Definition.model_validate(definition), "")
        await services.selector.select(SelectRequest({"pet": "cat"}), PAGE)
        for policies, key, said in (
            (["random"], "page", "has no head"),
            (["frozen"], "page", "is frozen"),
            (["nobody"], "page", "there is no policy 'nobody'; there are: 'frozen', 'random'"),
            (None, "other", "no such decision"),
        ):
            with pytest.raises((ConfigurationError, NotFound), match=said):
                await rebuild_store(url, None, policies, [Condition(key=key)], [SECRET])

    over(open_store(url), scenario)
