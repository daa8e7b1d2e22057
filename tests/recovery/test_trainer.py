"""The trainer dies, or loses its service: serving goes on, and training is still done."""

import os
import signal
from pathlib import Path

import httpx
import pytest

from tests.recovery.serving import eventually
from tests.support.service_process import Service, service

pytestmark = pytest.mark.process

POLICY = "/experiments/zooplus/policies/neural_linear_ts"
FIRST = 256


def children(pid: int) -> list[int]:
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in listed.split()]


def play(serving: Service, visits: int) -> None:
    context = {"persona": "cat_connoisseur"}
    question = {"policy": "neural_linear_ts", "context": context}
    with httpx.Client(base_url=serving.url) as client:
        for visit in range(visits):
            answer = client.post("/select", json=question).raise_for_status().json()
            reward = {"decision_id": answer["decision_id"], "reward": visit % 2}
            client.post("/reward", json=reward).raise_for_status()


@pytest.mark.slow  # `make chaos` kills trainers as well
def test_a_killed_trainer_is_replaced_and_the_version_comes(tmp_path: Path) -> None:
    with service(tmp_path, f"sqlite:///{tmp_path}/forage.db") as serving:
        [first] = eventually(lambda: children(serving.pid))
        os.kill(first, signal.SIGKILL)
        play(serving, FIRST)
        status = eventually(lambda: (s := serving.get(POLICY))["staged"] == 1 and s)
        [second] = children(serving.pid)
        assert second != first
        [version] = serving.get(f"{POLICY}/versions")["versions"]
        assert (version["state"], version["rewards"]) == ("challenger", FIRST)
        assert version["staged_position"] > version["trained_to"]
        assert not status["training_due"]
        assert status["training_due_at"] == 2 * FIRST


@pytest.mark.slow
def test_a_trainer_whose_service_is_gone_ends(tmp_path: Path) -> None:
    with service(tmp_path, f"sqlite:///{tmp_path}/forage.db") as serving:
        [trainer] = eventually(lambda: children(serving.pid))
        serving.kill()
        eventually(lambda: not running(trainer))


def running(pid: int) -> bool:
    """Zombies, which wait for whoever adopts them, do not run."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
