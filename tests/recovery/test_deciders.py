"""Kill -9 of the learner under load: deciders go on, a standby publishes, and nothing is lost."""

import asyncio
import threading
from pathlib import Path
from random import Random

import httpx
import pytest

from service.offline.audit import audit_store
from tests.recovery.serving import eventually
from tests.support.redis_server import RedisServer
from tests.support.service_process import Service, service

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]

CALLERS = 4


class Load:
    """Callers of one process that select and report until they are stopped.

    accepted   rewards
    refused    answers other than 200
    """

    def __init__(self, url: str) -> None:
        self.accepted, self.refused = 0, list[str]()
        self._url, self._stopped = url, threading.Event()
        self._threads = [
            threading.Thread(target=self._call, args=(Random(seed),)) for seed in range(CALLERS)
        ]

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join()

    def _call(self, rng: Random) -> None:
        personas = "new_puppy_parent", "cat_connoisseur"
        with httpx.Client(base_url=self._url, timeout=30.0) as client:
            while not self._stopped.is_set():
                context = {"persona": rng.choice(personas)}
                answer = client.post("/select", json={"context": context})
                if answer.status_code == 200:
                    body = {"decision_id": answer.json()["decision_id"], "reward": rng.random()}
                    answer = client.post("/reward", json=body)
                    self.accepted += answer.status_code == 200
                if answer.status_code != 200:
                    self.refused.append(answer.text)


def position(process: Service) -> int:
    found: int = process.get("/readyz")["positions"]["zooplus"]
    return found


def kill(learner: Service, decider: Service, load: Load) -> None:
    """Kill a learner: decisions and rewards go on, and so do publications once another leads."""
    eventually(lambda: position(decider) > 50)
    learner.kill()
    taken = load.accepted
    eventually(lambda: load.accepted > taken + 50)
    at = position(decider)
    eventually(lambda: position(decider) > at + 50)


def test_a_standby_publishes_once_the_learner_that_leads_is_killed(
    tmp_path: Path, redis: RedisServer
) -> None:
    role = {"FORAGE_ROLE": "decider"}
    with (
        service(tmp_path, redis.url) as one,
        service(tmp_path, redis.url) as other,
        service(tmp_path, redis.url, **role) as decider,
        Load(decider.url) as load,
    ):
        for learner in (one, other):  # one of them leads
            kill(learner, decider, load)
            learner.start()
        load.__exit__()
        eventually(lambda: position(decider) == 1 + load.accepted)
        assert load.refused == []
        decider.stop()
    [report] = asyncio.run(audit_store(redis.url))
    assert report.events == 1 + load.accepted
    assert report.decisions == load.accepted
    assert report.counts.total() == 0
