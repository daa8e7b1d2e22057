"""Kill -9 of the learner under load: deciders go on, a standby publishes, and nothing is lost."""

import asyncio
from pathlib import Path
from random import Random

import httpx
import pytest

from service.offline.audit import audit_store
from tests.recovery.serving import Callers, eventually
from tests.support.redis_server import RedisServer
from tests.support.service_process import Service, service

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]

CALLERS = 4


class Load(Callers):
    """Callers of one process that select and report.

    accepted   rewards
    refused    answers other than 200
    """

    def __init__(self, url: str) -> None:
        super().__init__(url, CALLERS, self._visit_once)
        self.accepted, self.refused = 0, list[str]()

    def _visit_once(self, client: httpx.Client, rng: Random) -> None:
        context = {"persona": rng.choice(("new_puppy_parent", "cat_connoisseur"))}
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
