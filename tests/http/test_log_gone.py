"""The log cannot be written: decisions go on, rewards wait, and the service says so."""

from collections.abc import Iterator
from math import inf

import pytest

from service.offline.audit import Audit
from service.offline.audit_report import table
from tests.http.test_decisions import EMBEDDED, PHOTO
from tests.support.clock import VirtualClock
from tests.support.service import Wire, expect_problem, serving
from tests.support.stores import Disk

CAT = {"persona": "cat"}

BUFFER_BYTES = 2_000
"""Room for three decisions of the shop, and not for four."""


@pytest.fixture
def disk() -> Disk:
    return Disk()


@pytest.fixture
def wire(disk: Disk) -> Iterator[Wire]:
    with serving(disk, buffer_bytes=BUFFER_BYTES) as wire:
        yield wire
        disk.full = disk.gone = False


def returns(wire: Wire, disk: Disk) -> None:
    disk.full = False
    wire.until(lambda: not wire.services.log.committer.degraded)


def test_decisions_are_answered_from_memory_and_written_later(wire: Wire, disk: Disk) -> None:
    disk.full = True
    waiting = [wire.select(policy="linucb") for _ in range(3)]
    assert [decision["logged"] for decision in waiting] == [False] * 3
    expect_problem(wire.get(f"/decisions/{waiting[0]['id']}"), 404)
    metrics = wire.metrics()
    assert metrics["forage_unlogged_decisions_total"] == 3
    assert metrics["forage_lost_decisions_total"] == 0
    assert metrics["forage_degraded"] == 1
    lost = [wire.select() for _ in range(2)]  # the buffer has no room
    assert wire.metrics()["forage_lost_decisions_total"] == 2
    returns(wire, disk)
    for decision in waiting:
        assert wire.explain(decision)["policy"] == "linucb"
        assert wire.reward(decision, 1.0) == "accepted"
    for decision in lost:
        expect_problem(wire.get(f"/decisions/{decision['id']}"), 404)
    assert wire.policy("linucb")["decisions"] == 3
    assert wire.select()["logged"] is True
    assert wire.metrics()["forage_degraded"] == 0


def test_waiting_decisions_are_written_or_counted_when_the_service_ends(
    disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(disk) as wire:
        disk.full = True
        decision = wire.select()
        disk.full = False
    with serving(disk) as wire:
        assert wire.explain(decision)["id"] == decision["id"]
        disk.full = True
        assert [wire.select()["logged"] for _ in range(3)] == [False] * 3
    assert "3 answered decisions are lost" in caplog.text


def test_a_reward_is_not_acknowledged_and_can_be_sent_again(wire: Wire, disk: Disk) -> None:
    decision = wire.select(policy="linucb")
    disk.full = True
    for _ in range(2):
        problem = wire.refuse(503, decision)
        assert problem["type"].endswith("/log-unavailable")
        assert "secret" not in str(problem)
    assert wire.rewards() == 0
    wire.select()
    returns(wire, disk)
    assert [wire.reward(decision, 1.0) for _ in range(2)] == ["accepted", "duplicate"]
    assert wire.rewards() == 1


def test_the_service_is_alive_and_not_ready(wire: Wire, disk: Disk) -> None:
    healthy = wire.get("/healthz").json()
    assert (healthy["status"], healthy["store"]) == ("ok", "memory")
    assert "process" in healthy["durability"]
    ready = wire.get("/readyz").json()
    assert (ready["ready"], ready["positions"]) == (True, {"shop": 1})
    disk.full = True
    wire.select()
    degraded = wire.get("/healthz")  # alive: a restart would mend nothing
    assert (degraded.status_code, degraded.json()["status"]) == (200, "degraded")
    ready = wire.get("/readyz")
    assert (ready.status_code, ready.json()["reason"]) == (503, "degraded")
    returns(wire, disk)
    assert wire.get("/readyz").status_code == 200
    assert wire.get("/healthz").json()["status"] == "ok"


def test_nothing_that_is_served_changes(wire: Wire, disk: Disk) -> None:
    definition = wire.definition()
    disk.full = True
    arm = {"features": {"category": "toy"}}
    for answer in (
        wire.put("/experiments/shop", definition),
        wire.put("/experiments/new", definition),
        wire.delete("/experiments/shop"),
        wire.put("/arms/rope", arm),
        wire.post("/arms", {"arms": {"rope": arm["features"]}}),
        wire.delete("/arms/mouse"),
    ):
        expect_problem(answer, 503)
    assert wire.definition() == definition
    assert wire.get("/experiments/shop").json()["revision"] == 1


def test_many_arms_are_one_commit_so_that_all_or_none_are_taken(wire: Wire, disk: Disk) -> None:
    disk.commits = 1
    arms, more = ({f"{n}-{number}": {"category": "toy"} for number in range(50)} for n in "ab")
    assert wire.post("/arms", {"arms": arms}).status_code == 200
    assert list(wire.definition()["arms"])[3:] == list(arms)
    expect_problem(wire.post("/arms", {"arms": more}), 503)
    assert len(wire.definition()["arms"]) == 53


def test_a_batch_is_answered_item_by_item(wire: Wire, disk: Disk) -> None:
    item = {"decision_id": wire.select()["decision_id"], "reward": 1.0}
    disk.full = True
    selected = wire.post("/select/batch", {"requests": [{"context": CAT}] * 2}).json()
    assert [each["answer"]["logged"] for each in selected["results"]] == [False, False]
    rewarded = wire.post("/reward/batch", {"requests": [item] * 2}).json()
    assert [each["status"] for each in rewarded["results"]] == [503, 503]


def test_answers_that_only_the_log_has_are_unavailable(wire: Wire, disk: Disk) -> None:
    disk.gone = True
    expect_problem(wire.get("/experiments/unheard"), 503)
    expect_problem(wire.get("/experiments/unheard/arms"), 503)
    expect_problem(wire.post("/select", {"context": CAT, "experiment": "unheard"}), 503)
    assert wire.select()["logged"] is False


def test_an_outage_is_logged_when_it_begins_and_when_it_ends(
    disk: Disk, clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """However many requests are refused meanwhile, and however long default rewards wait."""
    with serving(disk, expiry_seconds=0.01, clock=clock) as wire:
        wire.redefine(reward={"wait_seconds": 60})
        decision = wire.select(policy="linucb")
        caplog.clear()
        disk.gone = True
        clock.skip(60)
        for _ in range(5):
            wire.refuse(503, decision)
            wire.sleep(0.1)
        disk.gone = False
        wire.until(lambda: wire.rewards() == 1)
        told = [record.getMessage() for record in caplog.records if record.levelname != "INFO"]
        begin, end = told
        assert begin.startswith("the log cannot be written or folded")
        assert end == "the log can be written again"


def test_default_rewards_wait_for_the_log(disk: Disk, clock: VirtualClock) -> None:
    with serving(disk, expiry_seconds=0.01, clock=clock) as wire:
        wire.redefine(reward={"wait_seconds": 60})
        decision = wire.select(policy="linucb")
        disk.gone = True
        clock.skip(60)
        wire.sleep(0.1)
        assert wire.rewards() == 0
        disk.gone = False
        wire.until(lambda: wire.rewards() == 1)
        assert wire.reward(decision, 1.0) == "corrected"


def test_a_decision_whose_features_only_the_log_can_hold_is_not_made(
    wire: Wire, disk: Disk
) -> None:
    assert wire.put("/experiments/photos", EMBEDDED).status_code == 201
    disk.full = True
    question = {"experiment": "photos", "context": PHOTO}
    expect_problem(wire.post("/select", question), 503)
    assert wire.select(experiment="shop")["logged"] is False
    returns(wire, disk)
    assert wire.select(**question)["logged"] is True


def test_a_metric_says_how_long_an_outage_the_memory_bridges(disk: Disk) -> None:
    """Rows of some 500 bytes, ten a second: 50,000 bytes last about ten seconds."""
    with serving(disk, buffer_bytes=50_000) as wire:
        assert wire.metrics()["forage_buffer_seconds"] == inf
        for _ in range(30):
            wire.select(policy="linucb")
            wire.clock.skip(0.1)
        bridged = wire.metrics()["forage_buffer_seconds"]
        assert 9 < bridged < 11
        disk.full = True
        for _ in range(10):
            wire.select(policy="linucb")
            wire.clock.skip(0.1)
        assert wire.metrics()["forage_buffer_seconds"] == pytest.approx(bridged - 1, abs=0.2)
        wire.clock.skip(3_600)
        assert (
            wire.metrics()["forage_buffer_seconds"] > 1_000
        )  # the rate is that of the last minute
        disk.full = False


def test_a_decision_that_ended_with_its_process_can_be_rewarded_and_audited(disk: Disk) -> None:
    """Its answer said that it was not logged. The service is killed before the log is back."""
    with serving(disk) as wire:
        disk.full = True
        late = wire.select(policy="linucb")
        disk.full = False
        wire.until(lambda: not wire.services.log.committer.degraded)
        disk.full = True
        lost = wire.select(policy="linucb")
        assert not lost["logged"]
        assert wire.metrics()["forage_lost_decisions_total"] == 0
    disk.full = False
    with serving(disk) as wire:
        assert wire.reward(late, 1.0) == "accepted"
        assert wire.metrics()["forage_lost_decisions_total"] == 0
        assert [wire.reward(lost, 1.0) for _ in range(2)] == ["accepted", "duplicate"]
        assert wire.metrics()["forage_lost_decisions_total"] == 1
        report = wire.run(Audit(disk, "shop").run())
        assert report.clean
        assert (report.unlogged, report.row()["missing"]) == (1, 0)
        assert "1 rewarded decisions have no row" in table([report])


def test_a_row_that_somebody_deleted_is_still_missing(wire: Wire, disk: Disk) -> None:
    decision = wire.select(policy="linucb")
    assert wire.reward(decision, 1.0) == "accepted"
    shop = disk._experiments["shop"]
    del shop.decisions[decision["id"]], shop.numbers[decision["id"]]
    report = wire.run(Audit(disk, "shop").run())
    assert not report.clean
    assert (report.unlogged, report.row()["missing"]) == (0, 1)
