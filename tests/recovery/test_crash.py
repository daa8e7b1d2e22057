"""Kill -9, restart, two replicas: nothing acknowledged is lost, nothing counts twice."""

import asyncio
import json
import time
from collections import Counter
from pathlib import Path

from service.events import Learned, decode_event
from service.posterior import digest
from service.stores import open_store
from tests.recovery.serving import Service, folded, replaying, service
from tests.support.redis_server import redis_server

POLICIES = ["linucb", "linucb_disjoint", "lints", "neural_linear_ts", "popularity"]


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
        return Counter((e.policy, e.decision) for e in events if isinstance(e, Learned))

    return asyncio.run(read())


def acknowledged(folder: Path, policy: str) -> list[float]:
    """The rewards that the client was told are kept, in order."""
    lines = (folder / "run" / f"visits-{policy}.jsonl").read_text().splitlines()
    return [json.loads(line)["clicks"] for line in lines]


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
        assert state.tallies[policy].count == visits
        assert state.tallies[policy].total == sum(rewards)
        head = state.learners[policy].active.head
        assert head is not None
        for serving in services:
            status = serving.get(f"/experiments/{experiment}/policies/{policy}")
            assert status["rewards"] == visits
            assert status["head"]["digest"] == digest(head)


def test_killed_three_times_under_a_replay_a_service_loses_and_doubles_nothing(
    tmp_path: Path,
) -> None:
    store = f"sqlite:///{tmp_path}/forage.db"
    options = ["--policies", ",".join(POLICIES), "--visits", "280", "--seed", "7"]
    with (
        service(tmp_path, store, FORAGE_SNAPSHOT_EVERY_EVENTS="150") as serving,
        replaying(tmp_path, serving.url, *options) as replay,
    ):
        for _ in range(3):
            time.sleep(1.5)
            serving.kill()
            serving.start()
        output, _ = replay.communicate(timeout=90)
        assert replay.returncode == 0, output
        expect_all_once(tmp_path, store, [serving], visits=280)
        assert serving.stop() == 0
        serving.start()  # from the last snapshot now, and still the same
        expect_all_once(tmp_path, store, [serving], visits=280)


def test_two_services_on_one_redis_end_with_equal_heads(tmp_path: Path) -> None:
    options = ["--policies", ",".join(POLICIES), "--visits", "280", "--seed", "3"]
    with (
        redis_server(tmp_path) as redis,
        service(tmp_path, redis.url, FORAGE_TRAINER="on") as left,
        service(tmp_path, redis.url) as right,
        replaying(tmp_path, f"{left.url},{right.url}", *options) as replay,
    ):
        output, _ = replay.communicate(timeout=90)
        assert replay.returncode == 0, output
        summary = json.loads((tmp_path / "summary.json").read_text())
        time.sleep(0.5)  # the other replica's last event is on its way
        expect_all_once(tmp_path, redis.url, [left, right], visits=280)
        path = f"/experiments/{summary['experiment']}"
        assert left.get(path)["position"] == right.get(path)["position"]
        assert left.get(f"{path}/policies/neural_linear_ts")["version"] == 1
