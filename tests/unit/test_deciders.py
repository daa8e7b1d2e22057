"""A decider beside learners of one log: what it decides, appends and refuses, and what it needs."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest

from service.app import open_services, open_store_services, start
from service.definition.experiment import Definition
from service.definition.reward_request import RewardRequest
from service.definition.select_request import Envelope, SelectRequest
from service.errors import ConfigurationError, NoEligibleArm, Quarantined
from service.http.application import create_app
from service.http.services import Services
from service.log.presence import ALIVE_SECONDS, BEAT_SECONDS
from service.log.stores.base import Append, digest
from service.offline.audit import Audit
from service.settings import Settings
from service.state.decisions import Decision, decode_decision
from service.state.events import decode_event
from service.state.fold import State
from tests.support.clock import clock_of_loop, run_virtual
from tests.support.stores import SharedStore
from tests.unit.folding import shop

SOON_SECONDS = 0.5
"""Time in which a publication reaches a decider, and the next ones show that none is missing."""


class Fleet:
    """Learners and deciders over one store, in virtual time.

    stacks   what closes each process
    """

    def __init__(self, stack: AsyncExitStack, seed: int = 1) -> None:
        self.store, self._stack, self._seed = SharedStore(), stack, seed
        self.stacks: dict[int, AsyncExitStack] = {}
        self.learners: list[Services] = []

    async def start(self, role: str, **settings: Any) -> Services:
        chosen: dict[str, Any] = {"store": "memory://", "expiry_seconds": 3_600.0, **settings}
        stack = await self._stack.enter_async_context(AsyncExitStack())
        self._seed += 1
        services = await stack.enter_async_context(
            open_services(
                Settings(role=role, **chosen),  # type: ignore[arg-type]
                self.store,
                clock=clock_of_loop(),
                rng=Random(self._seed),
            )
        )
        self.stacks[id(services)] = stack
        if role == "learner":
            self.learners.append(services)
        return services

    async def stop(self, services: Services) -> None:
        """End a process as SIGTERM does."""
        await self.stacks.pop(id(services)).aclose()

    @staticmethod
    def kill(services: Services) -> None:
        """Stop all that a process does by itself."""
        for task in [*services.log.background._tasks]:
            task.cancel()


def fleet(scenario: Callable[[Fleet], Awaitable[None]]) -> Callable[[], None]:
    """Make a test of a fleet in virtual time."""

    async def run() -> None:
        async with AsyncExitStack() as stack:
            await scenario(Fleet(stack))

    def test() -> None:
        run_virtual(run())

    test.__name__, test.__doc__ = scenario.__name__, scenario.__doc__
    return test


async def define(learner: Services, name: str = "shop", **more: Any) -> None:
    policies = {
        "linucb": {"kind": "linucb"},
        "lints": {"kind": "lints", "disjoint": True, "draws": 32},
        "auto": {"kind": "auto"},
    }
    definition = {**shop(**policies), **more}
    await learner.admin.define(name, Definition.model_validate(definition), "")


async def visit(services: Services, rng: Random, name: str = "shop", **more: Any) -> Decision:
    """Decide and reward at one process."""
    context = {"pet": rng.choice(["cat", "dog"]), "age": 9 * rng.random()}
    answer = await services.selector.select(SelectRequest(context, name, **more))
    arms = [one.arm for one in answer.decision.shown]
    rewards = {arm: float(rng.random() < 0.2 + 0.6 * (arm == "toy1")) for arm in arms}
    await services.settlements.reward(RewardRequest(answer.token, rewards=rewards))
    return answer.decision


def state_of(services: Services, name: str = "shop") -> State:
    state = services.log.replicas.state(name)
    assert state is not None
    return state


async def expect_clean(store: SharedStore, name: str = "shop") -> int:
    """Audit the log; the decisions that were derived."""
    report = await Audit(store, name).run()
    assert report.clean, report.kept
    assert not report.counts.total()
    return report.decisions


@fleet
async def test_a_decider_decides_by_what_a_learner_publishes_and_appends_rewards(
    fleet: Fleet,
) -> None:
    learner = await fleet.start("learner")
    await define(learner)
    decider, rng = await fleet.start("decider"), Random(3)
    positions = set[str]()
    for _ in range(300):
        decision = await visit(decider, rng)
        positions.add(decision.model_version.partition("@")[2])
        await asyncio.sleep(0.02)
    await asyncio.sleep(SOON_SECONDS)
    assert len(positions) > 50
    assert state_of(decider).position == state_of(learner).position == 301
    assert sum(tally.count for tally in state_of(learner).reward_sums.values()) == 300
    assert await expect_clean(fleet.store) == 300


@fleet
async def test_a_decider_goes_on_without_a_learner_and_a_standby_takes_over(fleet: Fleet) -> None:
    learner = await fleet.start("learner")
    await define(learner)
    await fleet.start("learner")
    decider, rng = await fleet.start("decider"), Random(3)
    await visit(decider, rng)
    await asyncio.sleep(SOON_SECONDS)
    first, standby = sorted(fleet.learners, key=lambda one: one.log.presence.name)
    assert (first.log.presence.leads, standby.log.presence.leads) == (True, False)
    fleet.kill(first)
    since = asyncio.get_running_loop().time()
    positions, published = list[int](), 0.0
    while asyncio.get_running_loop().time() < since + 10.0:
        decision = await visit(decider, rng)  # decided and taken all the time
        positions.append(int(decision.model_version.partition("@")[2]))
        if positions[-1] > positions[0] + 20 and not published:
            published = asyncio.get_running_loop().time() - since
        await asyncio.sleep(0.1)
    assert positions == sorted(positions)
    assert 0 < published < ALIVE_SECONDS + 4
    assert decider.log.age_seconds("shop") < SOON_SECONDS
    assert await expect_clean(fleet.store) == len(positions) + 1


@fleet
async def test_a_decider_never_leads_and_settles_nothing_by_itself(fleet: Fleet) -> None:
    learner = await fleet.start("learner")
    await define(learner, reward={"range": [0, 1], "default": 0.0, "wait_seconds": 1.0})
    decider = await fleet.start("decider", expiry_seconds=0.1)
    await decider.selector.select(SelectRequest({"pet": "cat"}, "shop"))
    await fleet.stop(learner)
    await asyncio.sleep(60.0)
    assert not decider.log.presence.leads
    assert decider.log.presence.learners == []
    assert (await fleet.store.describe("shop")).position == 1
    assert await fleet.store.snapshots("shop")  # of the learner, when it ended
    standby = await fleet.start("learner", expiry_seconds=0.1)
    await asyncio.sleep(5.0)
    assert standby.log.presence.leads
    assert state_of(decider).position == state_of(standby).position == 2


@fleet
async def test_it_is_ready_once_a_learner_has_published_what_is_there(fleet: Fleet) -> None:
    learner = await fleet.start("learner")
    await define(learner)
    rng = Random(3)
    for _ in range(20):
        await visit(learner, rng)
    decider = await fleet.start("decider")
    assert state_of(decider).position == 21
    await fleet.stop(decider)
    await asyncio.sleep(2 * BEAT_SECONDS)
    stamps = await fleet.store.stamps()
    for _ in range(20):
        await visit(learner, rng)
    await asyncio.sleep(SOON_SECONDS)
    assert await fleet.store.stamps() == stamps  # where nobody decides by it, nothing is published
    assert state_of(await fleet.start("decider")).position == 41
    fleet.kill(learner)
    await asyncio.sleep(2 * ALIVE_SECONDS)
    await visit(learner, rng)
    late = await fleet.start("decider")  # what is there is better than nothing
    assert state_of(late).position == 41
    assert (await visit(late, rng)).model_version.endswith("@41")


@fleet
async def test_without_any_publication_it_is_starting_and_says_so(fleet: Fleet) -> None:
    learner = await fleet.start("learner")
    await define(learner)
    await fleet.stop(learner)
    settings = Settings(store="memory://", role="decider", allowed_hosts=["forage"])
    clock = clock_of_loop()
    async with open_store_services(settings, fleet.store, clock=clock, rng=Random(9)) as services:
        starting = asyncio.create_task(start(services))
        await asyncio.sleep(30.0)
        async with connected(services) as client:
            ready = await client.get("/readyz")
            assert (ready.status_code, ready.json()["reason"]) == (503, "starting")
            await fleet.start("learner")
            await starting
            ready = await client.get("/readyz")
            assert (ready.status_code, ready.json()["positions"]["shop"]) == (200, 1)


def connected(services: Services) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(create_app(services))
    return httpx.AsyncClient(transport=transport, base_url="http://forage")


@fleet
async def test_it_answers_what_belongs_to_decisions_and_names_the_learner_else(
    fleet: Fleet,
) -> None:
    learner = await fleet.start("learner")
    await define(learner)
    there = {"allowed_hosts": ["forage"]}
    named = await fleet.start("decider", learner_url="https://learner.example", **there)
    unnamed = await fleet.start("decider", **there)
    async with connected(named) as client, connected(unnamed) as other:
        question = {"context": {"pet": "cat"}, "experiment": "shop"}
        deferred = (await client.post("/select", json={**question, "deferred": True})).json()
        activated = await other.post(f"/decisions/{deferred['id']}/activate")
        assert activated.json() == {"status": "activated"}
        decision = (await client.post("/select", json=question)).json()
        reward = {"decision_id": decision["decision_id"], "reward": 1.0}
        assert (await other.post("/reward", json=reward)).json()["status"] == "accepted"
        assert (await client.post("/reward", json=reward)).json()["status"] == "duplicate"
        both = await client.post("/select/batch", json={"requests": [question, question]})
        assert both.status_code == 200, both.text
        for path in ("/experiments", "/experiments/shop", "/status", "/", "/console/main.js"):
            refused = await client.get(path)
            assert refused.status_code == 409
            assert refused.json()["type"].endswith("/learners-only")
            assert "https://learner.example" in refused.json()["detail"]
        assert "FORAGE_LEARNER_URL" in (await other.put("/arms/toy1", json={})).json()["detail"]
        for path in ("/healthz", "/readyz", "/metrics"):
            assert (await client.get(path)).status_code == 200
        text = (await client.get("/metrics")).text
        assert 'forage_publication_age_seconds{experiment="shop"}' in text
        assert "forage_snapshot_lag_ratio{" not in text
        assert "forage_follow_lag_seconds 0" not in text


@fleet
async def test_a_count_that_several_deciders_share_is_used_up_and_never_passed(
    fleet: Fleet,
) -> None:
    learner = await fleet.start("learner")
    rule = {"cap": {"arm": "toy1", "count": 30, "every": "1d"}}
    only = {"linucb": {"kind": "linucb"}}
    await define(learner, **shop(**only), rules={"few": rule})
    deciders = [await fleet.start("decider") for _ in range(2)]
    rng, shown = Random(3), 1
    request = SelectRequest({"pet": "cat"}, "shop", only=["toy1"])
    await deciders[0].selector.select(request)  # waits for its part of the count
    for number in range(200):
        try:
            await deciders[number % 2].selector.select(request)
            shown += 1
        except NoEligibleArm:
            await asyncio.sleep(0.1)
        if rng.random() < 0.3:
            await asyncio.sleep(0.2)
    assert shown == 30
    assert await expect_clean(fleet.store) == 30


@fleet
async def test_an_idempotency_key_stands_for_one_decision_at_every_process(fleet: Fleet) -> None:
    learner = await fleet.start("learner")
    await define(learner)
    decider, other = await fleet.start("decider"), await fleet.start("decider")
    rng, request = Random(3), SelectRequest({"pet": "dog"}, "shop")
    for number in range(30):
        await visit(decider, rng)
        key = Envelope(key=f"key {number}", caller="")
        answers = await asyncio.gather(
            *(each.selector.select(request, key) for each in (decider, other, learner))
        )
        assert len({one.decision.id for one in answers}) == 1
        assert len({one.decision.model_version for one in answers}) == 1
    assert await expect_clean(fleet.store) == 60


@fleet
async def test_it_follows_definitions_deletions_and_new_experiments(fleet: Fleet) -> None:
    learner = await fleet.start("learner")
    await define(learner)
    decider, rng = await fleet.start("decider"), Random(3)
    old = await decider.selector.select(SelectRequest({"pet": "cat"}, "shop"))
    await learner.admin.delete(state_of(learner), "")
    await asyncio.sleep(SOON_SECONDS)
    assert decider.log.replicas.state("shop") is None
    await define(learner, name="other")
    await define(learner)
    await asyncio.sleep(SOON_SECONDS)
    for name in ("shop", "other"):
        await visit(decider, rng, name)
    with pytest.raises(Exception, match="deleted"):
        await decider.settlements.reward(RewardRequest(old.token, reward=1.0))
    await learner.admin.put_arm(state_of(learner), "new", {"kind": "toy"}, {}, "")
    await asyncio.sleep(SOON_SECONDS)
    decision = await visit(decider, rng, arms=["new"])
    assert decision.arms == ["new"]
    await asyncio.sleep(SOON_SECONDS)
    await expect_clean(fleet.store)
    await expect_clean(fleet.store, "other")


@fleet
async def test_an_experiment_that_no_learner_can_fold_is_not_decided_until_it_is_mended(
    fleet: Fleet,
) -> None:
    learner = await fleet.start("learner")
    await define(learner)
    decider, rng = await fleet.start("decider"), Random(3)
    await fleet.store.commit([Append("shop", b"no event", {})])
    await asyncio.sleep(SOON_SECONDS + 1.0)
    with pytest.raises(Quarantined, match="no learner can fold its log"):
        await visit(decider, rng)
    await learner.admin.skip("shop", 2, "")
    await asyncio.sleep(SOON_SECONDS + 1.0)
    assert (await visit(decider, rng)).model_version.endswith("@3")


@fleet
async def test_a_log_that_came_back_without_its_end_is_followed_from_there(fleet: Fleet) -> None:
    learner = await fleet.start("learner")
    await define(learner)
    decider, rng = await fleet.start("decider"), Random(3)
    for _ in range(20):
        await visit(decider, rng)
    await asyncio.sleep(SOON_SECONDS)
    cut_off(fleet.store, 10)
    await asyncio.sleep(5.0)  # a learner notices, folds the log anew, and logs the loss
    state = state_of(decider)
    assert (state.lost_to, state.position) == (21, state_of(learner).position)
    assert state.position < 21
    await visit(decider, rng)


def cut_off(store: SharedStore, position: int) -> None:
    """Take the events after a position out of the log, as Redis may that has lost its last
    second."""
    kept = store._experiments["shop"]
    for lost in range(position + 1, kept.position + 1):
        del kept.events[lost]
    kept.position, kept.digest = position, digest(kept.events[position])


def test_a_store_that_takes_no_publications_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        settings = Settings(store=f"sqlite:///{tmp_path}/forage.db", role="decider")
        with pytest.raises(ConfigurationError, match=r"FORAGE_ROLE.*not through SQLite"):
            async with open_services(settings):
                pass

    asyncio.run(scenario())


@fleet
async def test_two_learners_that_both_believe_they_lead_harm_nothing(fleet: Fleet) -> None:
    first, second = await fleet.start("learner"), await fleet.start("learner")
    await define(first)
    for each in (first, second):
        each.log.presence.__class__ = type(
            "Leading", (type(each.log.presence),), {"leads": property(lambda _: True)}
        )
    decider, rng = await fleet.start("decider"), Random(3)
    positions = list[int]()
    for _ in range(200):
        decision = await visit(decider, rng)
        positions.append(int(decision.model_version.partition("@")[2]))
        await asyncio.sleep(0.02)
    assert positions == sorted(positions)
    assert len(set(positions)) > 5
    assert await expect_clean(fleet.store) == 200


@fleet
async def test_a_learner_publishes_again_what_the_store_has_lost(fleet: Fleet) -> None:
    learner = await fleet.start("learner")
    await define(learner)
    await fleet.start("decider")
    kept = fleet.store._experiments["shop"]
    kept.stamp, kept.published = "", {}
    await asyncio.sleep(2 * SOON_SECONDS)
    assert "image" in kept.published


@fleet
async def test_what_a_decider_decides_by_is_hardly_older_than_a_tenth_of_a_second(
    fleet: Fleet,
) -> None:
    """Of what the waits alone make: in virtual time nothing takes any."""
    learner = await fleet.start("learner")
    await define(learner)
    deciders = [await fleet.start("decider") for _ in range(2)]
    rng = Random(3)
    for number in range(1_000):
        await visit(deciders[number % 2], rng)
        await asyncio.sleep(rng.expovariate(100.0))
    events = await fleet.store.read("shop", 0, 2_000)
    times = [0.0, *(decode_event(record.payload).at for record in events)]
    ages = list[float]()
    for row in await fleet.store.decisions("shop", 0, 1_000):
        decision = decode_decision(row.payload)
        position = int(decision.model_version.partition("@")[2])
        later = times[position + 1 : position + 2]
        ages.append(max(decision.at - later[0], 0.0) if later else 0.0)
    ages.sort()
    assert ages[500] < 0.1
    assert ages[990] < 0.13


@fleet
async def test_a_decider_counts_each_of_its_decisions_in_a_window_once(fleet: Fleet) -> None:
    """Those that are logged and not published yet, too."""
    learner = await fleet.start("learner")
    rule = {"cap": {"arm": "toy1", "share": 0.3, "every": 1_000}}
    await define(learner, **shop(linucb={"kind": "linucb"}), rules={"most": rule})
    decider, rng = await fleet.start("decider"), Random(3)
    for _ in range(300):
        await visit(decider, rng)
        await asyncio.sleep(rng.expovariate(100.0))
    rows = await fleet.store.decisions("shop", 0, 1_000)
    counts = [decode_decision(row.payload).facts.counts for row in rows]
    assert [one.decisions for [one] in counts] == list(range(300))
    assert await expect_clean(fleet.store) == 300
