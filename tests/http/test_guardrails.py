"""Guardrails of rollouts over the wire: what each does to a rollout, and what is said meanwhile."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from service.decide import select
from service.log.presence import Presence
from service.log.stores.base import KeptRow
from service.log.stores.memory import MemoryStore
from service.state.decisions import decode_decision
from service.state.events import RolloutStepped, decode_event
from service.state.learner import Learner
from tests.http.test_rollouts import LOOK_S, Visitors, start, status, two_policies
from tests.support.broken import break_head
from tests.support.clock import VirtualClock
from tests.support.service import SECRET, URL, Json, Wire, expect_problem, serving

WITHIN_S = 20.0
"""Seconds within which the decisions of a process are judged."""

FEATURES = {"context": {"country": {"type": "categorical", "values": ["DE", "FR"]}}}
OLD = {"kind": "linucb", "features": ["country"]}
NEW = {**OLD, "share": 0.0}
BY_ARM = {"kind": "linucb", "disjoint": True, "share": 0.0, "epsilon": 0.1}
HERE = {"context": {"country": "DE"}}


def shop_of(new: Json = NEW, **guardrails: Any) -> Json:
    """A shop in whose rollout no reward is settled for an hour."""
    return {
        **two_policies(features=FEATURES, rollout={"guardrails": guardrails}),
        "policies": {"old": OLD, "new": new},
        "reward": {"range": [0, 1], "wait_seconds": 3_600},
    }


@contextmanager
def opened(clock: VirtualClock, store: MemoryStore, **guardrails: Any) -> Iterator[Wire]:
    """A shop in which `new` takes over from `old`."""
    with serving(store, clock=clock, token_keys=[SECRET]) as wire:
        made = wire.put("/experiments/shop?replace=true", shop_of(**guardrails))
        assert made.status_code == 200, made.text
        start(wire)
        yield wire


@pytest.fixture
def wire(clock: VirtualClock, store: MemoryStore) -> Iterator[Wire]:
    with opened(clock, store) as wire:
        yield wire


def learner_of(wire: Wire, name: str) -> Learner:
    return wire.services.log.replicas.states["shop"].learners[name]


def decide(wire: Wire, policy: str, count: int = 1) -> list[Json]:
    return [wire.select(policy=policy, **HERE) for _ in range(count)]


def guardrail(wire: Wire, name: str) -> Json:
    [found] = [each for each in status(wire)["guardrails"] if each["guardrail"] == name]
    return dict(found)


def breached(wire: Wire) -> dict[str, float]:
    """The metric, by guardrail."""
    name = 'forage_rollout_guardrail_breached{experiment="shop",guardrail="'
    return {
        series.removeprefix(name).partition('"')[0]: value
        for series, value in wire.metrics().items()
        if series.startswith(name)
    }


def sentences(wire: Wire) -> list[str]:
    listed = wire.get("/experiments/shop/changes").json()["changes"]
    return [each["sentence"] for each in listed if each["kind"] == "rollout_stepped"]


@pytest.fixture
def slowed(clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Seconds that each policy's scoring takes."""
    seconds, decide = dict[str, float](), select.decide

    def slowly(learner: Learner, *asked: Any) -> Any:
        clock.skip(seconds.get(learner.name, 0.0))
        return decide(learner, *asked)

    monkeypatch.setattr(select, "decide", slowly)
    return seconds


def test_a_challenger_that_cannot_decide_is_taken_back_before_any_reward(wire: Wire) -> None:
    """Its head is no number: the fallback decides, so that nobody meets a fault."""
    decide(wire, "new", 5)
    wire.sleep(WITHIN_S)
    assert status(wire)["state"] == "running"
    break_head(learner_of(wire, "new"))
    decide(wire, "new", 8)
    now = guardrail(wire, "fallbacks")
    assert (now["state"], now["decisions"], now["on_breach"]) == ("breached", 13, "back")
    wire.sleep(WITHIN_S)
    ended = status(wire)
    assert (ended["state"], ended["guardrails"], ended["figures"]) == ("rolled_back", [], None)
    assert ended["last"] | {"at": 0.0} == {
        "kind": "roll back",
        "by": "automatic",
        "reason": "",
        "at": 0.0,
        "metric": "share of decisions by the fallback",
        "value": 8 / 13,
        "bound": 0.01,
        "decisions": 13,
        "own": 0,
        "baseline": 0,
        "sentence": ended["last"]["sentence"],
    }
    assert ended["last"]["sentence"] == (
        "'new' let the fallback decide 8 of its last 13 decisions, 62 percent: at most 1 percent "
        "is allowed. 'old' has its traffic back."
    )
    assert sentences(wire) == [
        "Forage rolled back the rollout of 'new': " + ended["last"]["sentence"].removesuffix(".")
    ]
    assert wire.metrics()['forage_rollout_rollbacks_total{experiment="shop"}'] == 1


@pytest.mark.parametrize("place", ["scoring", "recording"])
def test_a_challenger_that_fails_is_taken_back(
    place: str, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail_of(argument: int, called: Any) -> Any:
        def fail(*asked: Any) -> Any:
            if getattr(asked[argument], "decider", asked[argument]).name == "new":
                raise RuntimeError("a bug")
            return called(*asked)

        return fail

    if place == "scoring":
        monkeypatch.setattr(select, "decide", fail_of(0, select.decide))
    else:
        recorder = wire.services.selector._recorder
        monkeypatch.setattr(recorder, "_decision", fail_of(0, recorder._decision))
    decide(wire, "old", 3)
    client = httpx.AsyncClient(transport=httpx.ASGITransport(wire.app), base_url=URL)
    for _ in range(3):
        asked = {"policy": "new", **HERE}
        expect_problem(wire.run(client.post("/select", json=asked)), 500)
    wire.run(client.aclose())
    wire.sleep(WITHIN_S)
    last = status(wire)["last"]
    assert (last["kind"], last["metric"]) == ("roll back", "share of failed decisions")
    assert (last["value"], last["decisions"]) == (1.0, 3)


def test_refused_requests_are_no_failures(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is one that is refused once it was scored, for the length of its row."""
    monkeypatch.setattr(wire.services.selector._recorder, "_most_bytes", 100)
    long = {"arms": ["a", "b"]}
    for more in ({"top_k": 9}, {"arms": ["c"]}, {"context": {"country": "XX"}}, long, long, long):
        expect_problem(wire.post("/select", {"policy": "new", **HERE, **more}), 422)
    wire.sleep(WITHIN_S)
    assert guardrail(wire, "errors")["state"] == "no data"
    assert status(wire)["state"] == "running"


def test_a_slow_challenger_is_held_and_once_resumed_only_warns(
    wire: Wire, slowed: dict[str, float], caplog: pytest.LogCaptureFixture
) -> None:
    slowed.update(old=0.001, new=0.004)
    decide(wire, "old", 199)
    decide(wire, "new", 6)
    assert guardrail(wire, "latency")["state"] == "no data"
    decide(wire, "old")
    wire.sleep(WITHIN_S)
    held = status(wire)
    assert (held["state"], held["share"]) == ("held", 0.2)
    assert held["last"]["kind"] == "ask"
    assert held["last"]["metric"] == "share of slow decisions"
    assert (held["last"]["value"], held["last"]["bound"], held["last"]["decisions"]) == (1, 0.01, 6)
    assert held["last"]["sentence"] == (
        "'new' took longer than 2 ms for 6 of its last 6 decisions, 100 percent, where 99 percent "
        "of those of 'old' took 1 ms at most: at most 1 percent is allowed. The rollout is held at "
        "20 percent until a person decides."
    )
    assert wire.metrics()['forage_rollout_waits{experiment="shop",policy="new"}'] == 1
    assert breached(wire)["latency"] == 1
    wire.post("/experiments/shop/rollouts/new/resume", {"reason": "we know"})
    wire.sleep(3 * LOOK_S)
    now = status(wire)
    assert now["state"] == "running"
    assert "took longer than 2 ms" in now["sentence"]
    assert breached(wire) == {
        "fallbacks": 0, "errors": 0, "latency": 1, "sample_ratio": 0,
    }  # fmt: skip
    slowed.clear()
    decide(wire, "new", 994)
    wire.sleep(WITHIN_S)
    assert guardrail(wire, "latency")["state"] == "ok"
    assert breached(wire)["latency"] == 0
    assert not [each for each in caplog.records if "a guardrail" in each.getMessage()]


def test_choices_without_chance_warn(
    clock: VirtualClock, store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(clock, store, new=BY_ARM, entropy={"least": 0.5}) as wire:
        for decision in decide(wire, "old", 20):
            wire.reward(decision, float(decision["arm"] == "a"))
        decide(wire, "new", 199)
        assert guardrail(wire, "entropy")["state"] == "no data"
        decide(wire, "new")
        wire.sleep(3 * LOOK_S)
        now = status(wire)
        assert (now["state"], now["last"]) == ("running", None)
        assert "of the entropy of uniform chance in its last 200 decisions" in now["sentence"]
        found = guardrail(wire, "entropy")
        assert (found["state"], found["bound"], found["decisions"]) == ("breached", 0.5, 200)
        assert 0.2 < found["value"] < 0.4  # an epsilon of 0.1, of two arms: 0.29
        assert breached(wire)["entropy"] == 1
        told = [each.getMessage() for each in caplog.records if "a guardrail" in each.getMessage()]
        assert told == [f"experiment shop: a guardrail: {found['sentence']}"]


def test_a_guardrail_may_do_otherwise_and_may_be_off(
    clock: VirtualClock, store: MemoryStore, slowed: dict[str, float]
) -> None:
    slowed.update(new=0.004)
    more = {"on_breach": "back"}
    with opened(clock, store, latency=more, fallbacks="none", errors={"most": 0.5}) as wire:
        assert guardrail(wire, "fallbacks")["state"] == "off"
        assert guardrail(wire, "errors")["bound"] == 0.5
        break_head(learner_of(wire, "new"))
        decide(wire, "new", 10)
        wire.sleep(WITHIN_S)
        assert status(wire)["state"] == "running"
        decide(wire, "old", 200)
        wire.sleep(WITHIN_S)
        assert status(wire)["last"]["metric"] == "share of slow decisions"
        assert status(wire)["state"] == "rolled_back"


def test_guardrails_change_while_a_rollout_is_under_way(wire: Wire) -> None:
    wire.redefine(rollout={"guardrails": {"fallbacks": {"most": 0.9, "on_breach": "warn"}}})
    break_head(learner_of(wire, "new"))
    decide(wire, "new", 200)
    wire.sleep(WITHIN_S)
    assert status(wire)["state"] == "running"
    assert breached(wire)["fallbacks"] == 1


def test_another_attempt_begins_with_no_decisions(wire: Wire) -> None:
    break_head(learner_of(wire, "new"))
    decide(wire, "new", 3)
    wire.sleep(WITHIN_S)
    assert status(wire)["state"] == "rolled_back"
    decide(wire, "new", 3)
    start(wire)
    assert guardrail(wire, "fallbacks")["state"] == "no data"
    assert breached(wire) == {}
    wire.sleep(WITHIN_S)
    assert (status(wire)["state"], breached(wire)["fallbacks"]) == ("running", 0)


# -- by the log ----------------------------------------------------------------------------------


class Sieve(MemoryStore):
    """A store that has lost the rows of a policy."""

    lost = ""

    async def decisions(self, experiment: str, after: int, limit: int) -> list[KeptRow]:
        rows = await super().decisions(experiment, after, limit)
        return [row for row in rows if decode_decision(row.payload).policy != self.lost]


@pytest.mark.parametrize(("lost", "state"), [("", "running"), ("new", "held"), ("old", "held")])
def test_visitors_whose_rows_are_lost_hold_a_rollout(
    lost: str, state: str, clock: VirtualClock
) -> None:
    """No reward is settled, and a visitor counts once."""
    store = Sieve()
    with opened(clock, store) as wire:
        store.lost = lost
        for number in range(300):
            for _ in range(1 + number % 2):
                wire.select(context={"country": "DE"}, unit=f"visitor {number}")
        wire.sleep(2 * LOOK_S)
        now = status(wire)
        assert now["state"] == state
        found = guardrail(wire, "sample_ratio")
        if not lost:
            assert (found["state"], found["decisions"]) == ("ok", 300)
            return
        assert found["state"] == "breached"
        assert now["last"]["metric"] == "visitors beyond the share that was drawn"
        assert now["last"]["value"] > now["last"]["bound"]
        assert "rows are missing or doubled. The rollout is held" in now["last"]["sentence"]
        assert now["last"]["own"] == 0


SEGMENTS = {"where": {"germany": "country == 'DE'", "france": "country == 'FR'"}}


@pytest.fixture
def segmented(store: MemoryStore, clock: VirtualClock) -> Iterator[Wire]:
    """A shop of two countries, in which rewards settle after a minute."""
    definition = shop_of(segments=SEGMENTS) | {
        "policies": {"old": {"kind": "random"}, "new": {"kind": "random", "share": 0.0}},
        "reward": {"range": [0, 1], "wait_seconds": 60},
    }
    with serving(store, clock=clock, expiry_seconds=1.0, token_keys=[SECRET]) as wire:
        assert wire.put("/experiments/shop?replace=true", definition).status_code == 200
        yield wire


def test_a_segment_that_loses_holds_a_rollout_that_wins_as_a_whole(segmented: Wire) -> None:
    """One visitor in four is from France, where nobody clicks what the challenger shows."""
    start(segmented, stages=[0.5, 1.0], stage_hours=8_000)
    visitors = Visitors(segmented)
    rates = {("new", "DE"): 1.0, ("old", "DE"): 0.6, ("new", "FR"): 0.0, ("old", "FR"): 0.6}
    number = 0
    while (now := status(segmented))["state"] == "running":
        for _ in range(50):
            number += 1
            country = "FR" if number % 4 == 0 else "DE"
            unit = f"visitor {number}"
            decision = segmented.select(context={"country": country}, unit=unit)
            if visitors.rng.random() < rates[decision["policy"], country]:
                segmented.reward(decision, 1.0)
            segmented.sleep(1.0)
        assert number < 3_000
    assert (now["state"], now["last"]["kind"]) == ("held", "ask")
    assert now["last"]["metric"] == "reward above the margin in a segment"
    assert now["last"]["sentence"].startswith("In the segment 'france', 'new' earned 0")
    assert now["figures"]["lower"] > 0
    states = {
        each["segment"]: each["state"]
        for each in now["guardrails"]
        if each["guardrail"] == "segments"
    }
    assert states == {"germany": "ok", "france": "breached"}
    segmented.sleep(WITHIN_S)
    assert breached(segmented)["segments"] == 1


def test_the_conditions_of_segments_do_not_change_under_a_rollout(segmented: Wire) -> None:
    start(segmented)
    others = {"where": {**SEGMENTS["where"], "france": "country != 'DE'"}}
    for segments in (others, {"where": {}}, None):
        definition = {
            **segmented.definition(),
            "rollout": {"guardrails": {"segments": segments}},
        }
        answer = segmented.put("/experiments/shop?replace=true", definition)
        detail = expect_problem(answer, 409)["detail"]
        assert "the segments that it is judged in would change: end the rollout first" in detail
    segmented.redefine(rollout={"guardrails": {"segments": {**SEGMENTS, "margin": 0.5}}})
    segmented.post("/experiments/shop/rollouts/new/back", {})
    segmented.redefine(rollout={"guardrails": {"segments": others}})


@pytest.mark.parametrize(
    ("guardrails", "path", "says"),
    [
        ({"segments": {"where": {"de": "county == 'DE'"}}}, "segments.where.de", "no feature or"),
        ({"segments": {"where": {"de": "country > 3"}}}, "segments.where.de", "column 1"),
        ({"segments": {"where": {"d e": "country == 'DE'"}}}, "segments.where.d e", "letters"),
        (
            {"segments": {"where": {f"s{n}": "country == 'DE'" for n in range(17)}}},
            "segments.where",
            "at most 16 members",
        ),
        ({"latency": {"times": 0.5}}, "latency.times", "greater than or equal to 1"),
        ({"errors": {"most": 0}}, "errors.most", "greater than 0"),
        ({"errors": {"on_breach": "stop"}}, "errors.on_breach", "'back', 'hold' or 'warn'"),
        ({"speed": None}, "speed", "is unknown"),
    ],
)
def test_what_is_wrong_with_guardrails_is_said(
    guardrails: Json, path: str, says: str, wire: Wire
) -> None:
    answer = wire.put("/experiments/other", shop_of(**guardrails))
    [fault] = expect_problem(answer, 422)["errors"]
    assert fault["path"] == f"rollout.guardrails.{path}"
    assert says in fault["message"]


# -- two processes -------------------------------------------------------------------------------


def break_and_decide(wire: Wire) -> None:
    break_head(learner_of(wire, "new"))
    decide(wire, "new", 3)


def steps(wire: Wire, store: MemoryStore) -> int:
    records = wire.run(store.read("shop", 0, 10_000))
    return sum(isinstance(decode_event(each.payload), RolloutStepped) for each in records)


def test_of_two_processes_that_see_a_breach_the_first_acts(
    wire: Wire, store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    """Each by the decisions that it made itself."""
    with serving(store, clock=VirtualClock(), token_keys=[SECRET]) as late:
        for each in (wire, late):
            break_and_decide(each)
        wire.sleep(WITHIN_S)
        assert steps(wire, store) == 1
        caplog.set_level("INFO")
        late.run(late.services.rollouts.guard(late.services.log.replicas.states["shop"]))
        assert "another process was first" in caplog.text
        assert steps(wire, store) == 1


def test_of_two_judgements_at_once_one_acts(wire: Wire, store: MemoryStore) -> None:
    state, rollouts = wire.services.log.replicas.states["shop"], wire.services.rollouts
    break_and_decide(wire)

    async def all_at_once() -> None:
        await asyncio.gather(rollouts.guard(state), rollouts.judge(state), rollouts.guard(state))

    wire.run(all_at_once())
    assert (steps(wire, store), state.traffic.rollbacks) == (1, 1)


def test_a_process_that_does_not_lead_takes_a_broken_challenger_back(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Presence, "leads", False)
    break_and_decide(wire)
    wire.sleep(WITHIN_S)
    assert status(wire)["state"] == "rolled_back"


def test_what_only_the_leader_looks_at_is_no_business_of_others(
    clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that has led and looked at the log says no more what it found there."""
    store = Sieve()
    with opened(clock, store) as wire:
        store.lost = "new"
        for number in range(300):
            wire.select(context={"country": "DE"}, unit=f"visitor {number}")
        wire.sleep(2 * LOOK_S)
        assert breached(wire)["sample_ratio"] == 1
        monkeypatch.setattr(Presence, "leads", False)
        wire.sleep(WITHIN_S)
        assert breached(wire)["sample_ratio"] == 0
