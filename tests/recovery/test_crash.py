"""Kill -9, restart, two replicas: nothing acknowledged is lost, nothing counts twice.

The long course of each (`make slow`) trains a net on the way, which falls due at 256 rewards, and
is killed while a trainer runs beside the service; the short one is of the same steps.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from service.bandits.heads import digest
from service.log.stores import open_store
from service.state.events import decode_event, settlements_of
from tests.recovery.serving import eventually, folded, replaying
from tests.support.redis_server import redis_server
from tests.support.service_process import Service, service

pytestmark = [
    pytest.mark.process,
    pytest.mark.timeout(600),
]  # processes that start, on a machine that may be busy
REPLAY_S = 300.0

POLICIES = ["linucb", "linucb_disjoint", "lints", "neural_linear_ts", "popularity"]


@dataclass(frozen=True, slots=True)
class Course:
    """visits: of each policy. trainer: as FORAGE_TRAINER has it."""

    visits: int
    kills: int
    snapshot_every_events: int
    trainer: str

    def options(self, seed: int) -> list[str]:
        """Of `forage-sim replay`."""
        told = ["--policies", ",".join(POLICIES), "--visits", str(self.visits)]
        return [*told, "--seed", str(seed)]


@pytest.fixture(
    params=[
        pytest.param(Course(20, 1, 30, "off"), id="short"),
        pytest.param(Course(280, 3, 150, "on"), id="long", marks=pytest.mark.slow),
    ]
)
def course(request: pytest.FixtureRequest) -> Course:
    chosen: Course = request.param
    return chosen


def settlements(store: str, experiment: str) -> Counter[tuple[str, str]]:
    """How often the log settles each (policy, decision)."""

    async def read() -> Counter[tuple[str, str]]:
        log = open_store(store, readonly=True)
        await log.open()
        try:
            records = await log.read(experiment, 0, 1_000_000)
        finally:
            await log.close()
        events = [decode_event(record.payload) for record in records]
        return Counter((e.policy, e.decision) for each in events for e in settlements_of(each))

    return asyncio.run(read())


def acknowledged(folder: Path, policy: str) -> list[float]:
    """The rewards that the client was told are kept, in order."""
    lines = (folder / "run" / f"visits-{policy}.jsonl").read_text().splitlines()
    return [json.loads(line)["clicks"] for line in lines]


def visited(folder: Path) -> int:
    """Visits of all policies that the client has been told are kept, so far."""
    return sum(path.read_bytes().count(b"\n") for path in folder.glob("run/visits-*.jsonl"))


def expect_all_once(folder: Path, store: str, services: list[Service], visits: int) -> None:
    """The log, the live heads and the client's own account agree to the last bit and click."""
    experiment = json.loads((folder / "summary.json").read_text())["experiment"]
    state = folded(store, experiment)
    counts = settlements(store, experiment)
    assert set(counts.values()) == {1}
    for policy in POLICIES:
        rewards = acknowledged(folder, policy)
        assert len(rewards) == visits
        assert sum(settled == policy for settled, _ in counts) == visits
        assert state.reward_sums[policy].count == visits
        assert state.reward_sums[policy].total == sum(rewards)
        head = state.learners[policy].active.head
        assert head is not None
        for serving in services:
            status = serving.get(f"/experiments/{experiment}/policies/{policy}")
            assert status["rewards"] == visits
            assert status["head"]["digest"] == digest(head)


def test_killed_under_a_replay_a_service_loses_and_doubles_nothing(
    course: Course, tmp_path: Path
) -> None:
    store = f"sqlite:///{tmp_path}/forage.db"
    settings = {
        "FORAGE_SNAPSHOT_EVERY_EVENTS": str(course.snapshot_every_events),
        "FORAGE_TRAINER": course.trainer,
    }
    total = course.visits * len(POLICIES)
    with (
        service(tmp_path, store, **settings) as serving,
        replaying(tmp_path, serving.url, *course.options(seed=7)) as replay,
    ):
        for kill in range(1, course.kills + 1):
            eventually(reached(tmp_path, total * kill // (course.kills + 1)))
            assert replay.poll() is None
            serving.kill()
            serving.start()
        output, _ = replay.communicate(timeout=REPLAY_S)
        assert replay.returncode == 0, output
        expect_all_once(tmp_path, store, [serving], course.visits)
        assert serving.stop() == 0
        serving.start()  # from the last snapshot now, and still the same
        expect_all_once(tmp_path, store, [serving], course.visits)


def reached(folder: Path, visits: int) -> Callable[[], bool]:
    return lambda: visited(folder) >= visits


@pytest.mark.slow
def test_two_services_on_one_redis_end_with_equal_heads(course: Course, tmp_path: Path) -> None:
    with (
        redis_server(tmp_path) as redis,
        service(tmp_path, redis.url, FORAGE_TRAINER=course.trainer) as left,
        service(tmp_path, redis.url) as right,
        replaying(tmp_path, f"{left.url},{right.url}", *course.options(seed=3)) as replay,
    ):
        output, _ = replay.communicate(timeout=REPLAY_S)
        assert replay.returncode == 0, output
        summary = json.loads((tmp_path / "summary.json").read_text())
        path = f"/experiments/{summary['experiment']}"
        eventually(lambda: left.get(path)["position"] == right.get(path)["position"])
        expect_all_once(tmp_path, redis.url, [left, right], course.visits)
        trained = left.get(f"{path}/policies/neural_linear_ts/versions")["versions"]
        assert bool(trained) == (course.trainer == "on")
