"""Imported visits: what policies learn from them is what they would have learned live, and what
`auto` knows without them."""

from collections.abc import Awaitable, Callable
from math import ceil
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from service.bandits.heads import digest
from service.bandits.heads.averaged_informed import InformedHead
from service.decide.scoring import decide
from service.definition.experiment import Definition
from service.definition.reward_request import RewardRequest
from service.definition.select_request import SelectRequest
from service.errors import Gone, Refused
from service.features.row import Row
from service.http.services import Services
from service.log.stores.memory import MemoryStore
from service.manage.importing import VISITS_PER_COMMIT, ImportStatus, Visit, decision_id
from service.offline.audit import Audit
from service.settings import Settings
from service.state.artifacts import read_artifact
from service.state.decider import Decider
from service.state.decisions import decode_decision
from service.state.fold import State
from simulator_client.worlds.zooplus import PERSONAS, Zooplus
from tests.support.clock import run_virtual
from tests.support.service import virtual_services
from tests.support.training import trainer
from tests.unit.folding import head_of

WORLD = Zooplus()
VISITS = 150
POLICIES: dict[str, dict[str, Any]] = {
    "linucb": {"kind": "linucb"},
    "watcher": {"kind": "lints", "learns_from": "all", "draws": 64},
    "static": {"kind": "static", "hidden": [8], "training": {"first": VISITS, "epochs": 4}},
    "random": {"kind": "random"},
    "auto": {"kind": "auto"},
}
Serve = Callable[[Services], Awaitable[None]]


def logged(visits: int = VISITS) -> list[Visit]:
    """Visits of the pet shop, served uniformly by somebody else."""
    stream, rng, arms = WORLD.stream(1), Random(7), [str(k) for k in range(50)]
    found = []
    for number in range(visits):
        visit, arm = stream.visit(number), rng.choice(arms)
        found.append(
            Visit(
                id=f"visit-{number}",
                at=1_700_000_000.0 + number,
                context=WORLD.request(visit)["context"],
                arm=arm,
                propensity=1 / 50,
                reward=WORLD.outcome(visit, [arm]).clicks,
            )
        )
    return found


def serve(*lives: Serve) -> MemoryStore:
    """Lives of a service over one store."""
    store = MemoryStore()

    async def live(work: Serve) -> None:
        services = virtual_services(Settings(store="memory://"), store)
        await services.log.open()
        if not services.log.replicas.states:
            definition = {**WORLD.definition(["linucb"]), "policies": POLICIES}
            await services.admin.define("zooplus", Definition.model_validate(definition), "")
        await work(services)
        await services.log.close()

    for work in lives:
        run_virtual(live(work))
    return store


async def take(
    services: Services, visits: list[Visit], policy: str = "linucb", *, skip: bool = False
) -> list[ImportStatus | Refused]:
    state = services.log.replicas.states["zooplus"]
    return await services.importer.take(state, policy, visits, "", skip_refused=skip)


def states_of(*lives: Serve) -> State:
    """The state that the lives end with."""
    found = []

    async def look(services: Services) -> None:
        found.append(services.log.replicas.states["zooplus"])

    serve(*lives, look)
    return found[0]


async def import_all(services: Services) -> None:
    assert await take(services, logged()) == ["imported"] * VISITS


async def learn_live(services: Services, policy: str = "linucb") -> None:
    for visit in logged():
        question = SelectRequest(visit.context, policy=policy, arms=[visit.arm])
        answer = await services.selector.select(question)
        await services.settlements.reward(RewardRequest(answer.token, reward=visit.reward))


def choices(state: State, policy: str) -> list[str]:
    """Of each persona, ten."""
    found = []
    for persona in PERSONAS:
        context = state.schema.encode_context({"persona": persona})
        for seed in range(0, 2**63, 2**63 // 10):
            _, slate = decide(
                Decider.serving(state.learners[policy]), context, state.candidates, 1, seed
            )
            found.append(state.candidates.ids[slate.arms[0]])
    return found


@pytest.mark.parametrize("policy", ["linucb", "watcher"])
def test_an_imported_log_warm_starts_a_policy_as_if_it_had_learned_it_live(policy: str) -> None:
    """And one that learns from all, too."""
    imported, live = states_of(import_all), states_of(learn_live)
    assert head_of(imported, policy) == head_of(live, policy)
    assert choices(imported, policy) == choices(live, policy)
    assert imported.learners[policy].rewards == VISITS
    fresh = states_of(take_nothing)
    assert head_of(imported, policy) != head_of(fresh, policy)
    assert choices(imported, policy) != choices(fresh, policy)


def test_auto_knows_what_it_learned_live_without_imports() -> None:
    """A restarted service knows it too, and its decisions, which count both, can be derived."""

    async def import_for_auto(services: Services) -> None:
        assert await take(services, logged(), "auto") == ["imported"] * VISITS

    async def serve_auto(services: Services) -> None:
        await learn_live(services, "auto")

    store = serve(import_for_auto, serve_auto)
    report = run_virtual(Audit(store, "zooplus").run())
    assert (report.clean, report.decisions, report.imported) == (True, 2 * VISITS, VISITS)
    found = []
    for lives in ((serve_auto,), (import_for_auto, serve_auto)):
        head = states_of(*lives).learners["auto"].active.head
        assert isinstance(head, InformedHead)
        found.append(head)
    without, both = found
    assert (without.plain, both.settled) == (None, 2 * VISITS)
    assert both.plain is not None
    assert digest(both.plain) == digest(without)


async def take_nothing(services: Services) -> None: ...


@pytest.mark.process
def test_an_imported_log_makes_a_static_policy_due_and_is_what_it_is_trained_on() -> None:
    train = trainer()
    states = []

    async def import_for_static(services: Services) -> None:
        await take(services, logged(), "static")
        states.append(services.log.replicas.states["zooplus"])

    store = serve(import_for_static)
    learner = states[0].learners["static"]
    assert (learner.rewards, learner.training_due) == (VISITS, True)
    artifact = run_virtual(train(store, states[0], learner))
    version = read_artifact(learner, artifact)
    assert (version.number, version.rewards) == (1, VISITS)


def test_the_same_import_twice_changes_nothing() -> None:
    async def import_again(services: Services) -> None:
        before = services.log.replicas.states["zooplus"].position
        assert await take(services, logged()) == ["duplicate"] * VISITS
        assert services.log.replicas.states["zooplus"].position == before

    store = serve(import_all, import_again, import_again)
    assert len(run_virtual(store.decisions("zooplus", 0, 1_000))) == VISITS
    assert run_virtual(store.describe("zooplus")).counts == {"linucb@1": VISITS}


def test_an_import_that_was_cut_off_goes_on() -> None:
    async def import_half(services: Services) -> None:
        await take(services, logged()[: VISITS // 2])

    async def import_the_rest(services: Services) -> None:
        half = VISITS // 2
        expected = ["duplicate"] * half + ["imported"] * (VISITS - half)
        assert await take(services, logged()) == expected

    imported = states_of(import_half, import_the_rest)
    assert head_of(imported, "linucb") == head_of(states_of(import_all), "linucb")


def test_a_reward_that_comes_to_be_known_is_learned_by_a_later_import() -> None:
    [visit] = logged(1)
    unknown = Visit(visit.id, visit.at, visit.context, visit.arm, visit.propensity)

    async def both(services: Services) -> None:
        state = services.log.replicas.states["zooplus"]
        assert await take(services, [unknown, unknown]) == ["imported", "duplicate"]
        assert (state.position, state.learners["linucb"].rewards) == (2, 0)
        assert await take(services, [visit, unknown, visit]) == ["imported"] + ["duplicate"] * 2
        assert (state.position, state.learners["linucb"].rewards) == (4, 1)

    store = serve(both)
    assert run_virtual(store.describe("zooplus", whole=True)).due == {}


def test_an_import_is_known_when_its_rows_have_been_trimmed() -> None:
    """The marks of its events are kept for ever."""

    async def again(services: Services) -> None:
        state = services.store._experiments["zooplus"]  # type: ignore[attr-defined]
        state.drop([decision_id(visit.id) for visit in logged()])
        assert state.keep_until == {}
        assert await take(services, logged()) == ["duplicate"] * VISITS

    serve(import_all, again)


def test_an_erased_visit_does_not_come_back_by_the_same_import() -> None:
    [visit] = logged(1)
    own = Visit(visit.id, visit.at, visit.context, visit.arm, 1.0, reward=1.0, unit="user-1")
    unknown = replace(own, reward=None)

    async def erase(services: Services) -> None:
        await take(services, [own])
        assert (await services.eraser.erase("user-1", ""))["zooplus"].decisions == 1
        for again in (own, unknown):
            [refused] = await take(services, [again])
            assert isinstance(refused, Gone)

    store = serve(erase)
    assert run_virtual(store.decisions("zooplus", 0, 9)) == []
    assert run_virtual(Audit(store, "zooplus").run()).clean


def test_an_audit_counts_imported_decisions_and_holds_their_events_against_them() -> None:
    found = run_virtual(Audit(serve(import_all, learn_live), "zooplus").run())
    assert found.kept == []
    assert (found.clean, found.decisions, found.imported) == (True, 2 * VISITS, VISITS)

    store = serve(import_all)
    rows = store._experiments["zooplus"].decisions
    first, second = (decision_id(visit.id) for visit in logged(2))
    rows[first], rows[second] = rows[second], rows[first]
    found = run_virtual(Audit(store, "zooplus").run())
    assert found.counts["fields"] == 4  # two ids, and two arms that the events settle
    assert not found.clean


def test_a_row_tells_what_is_known_of_the_visit() -> None:
    [visit] = logged(1)
    chances = [0.25, 0.75]

    async def one(services: Services) -> None:
        full = Visit(
            visit.id, visit.at, visit.context, "3", 0.75, ["4", "3"], chances, None, "user-1"
        )
        assert await take(services, [full]) == ["imported"]

    store = serve(one)
    [kept] = run_virtual(store.decisions("zooplus", 0, 9))
    row = decode_decision(kept.payload)
    assert (row.id, len(row.id)) == (decision_id("visit-0"), 22)
    assert (row.at, row.policy, row.arms) == (1_700_000_000.0, "linucb", ["4", "3"])
    assert (row.probabilities, row.shown[0].propensity) == (chances, 0.75)
    assert (row.model_version, row.assignment) == ("imported/0@0", 1.0)
    assert row.unit not in (None, "user-1")
    assert row.shown[0].row == Row(b"", (1, 5))  # a persona and a category


@pytest.mark.parametrize(
    "at", [0, 1, VISITS_PER_COMMIT - 1, VISITS_PER_COMMIT, VISITS_PER_COMMIT + 1]
)
def test_what_is_refused_ends_an_import_or_is_skipped(at: int) -> None:
    visits = logged(VISITS_PER_COMMIT + 3)
    visits[at] = Visit("bad", 0.0, {"persona": "dragon"}, "3", 0.5)

    async def stop(services: Services) -> None:
        *taken, last = await take(services, visits)
        assert taken == ["imported"] * at
        assert isinstance(last, Refused)
        assert [fault.path for fault in last.faults] == ["context.persona"]
        assert services.log.replicas.states["zooplus"].position == 1 + at + ceil(
            at / VISITS_PER_COMMIT
        )

    async def skip(services: Services) -> None:
        became = await take(services, visits, skip=True)
        assert became[:at] == ["duplicate"] * at
        assert isinstance(became[at], Refused)
        assert became[at + 1 :] == ["imported"] * (VISITS_PER_COMMIT + 2 - at)

    serve(stop, skip)
