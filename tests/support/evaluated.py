"""Evaluations over HTTP, from their start to their end, and their processes."""

import os
import signal
from pathlib import Path

from tests.support.service import Json, Wire

ENDED = ("done", "failed", "cancelled")

NOTHING_TOLD: Json = {
    "experiment": "shop", "sentence": "Nothing can be told.", "decisions": 0, "since": None,
    "until": None, "frozen": False, "shadows": False, "metric": "reward_per_decision",
    "confidence": 0.95, "logged": {"value": None, "interval": None}, "logged_by": {},
    "earned_by": {}, "slates": 0, "shortlists": 0, "without_probabilities": 0, "erased": 0,
    "left_out": {}, "policies": [],
}  # fmt: skip
"""An answer on a log without a decision."""


def evaluated(wire: Wire, body: Json, experiment: str = "shop") -> Json:
    """Start an evaluation, wait for its end, and return the job."""
    answer = wire.post(f"/experiments/{experiment}/evaluations", body)
    assert answer.status_code == 202, answer.text
    path, job = answer.headers["location"], answer.json()

    def ended() -> bool:
        nonlocal job
        job = wire.get(path).json()
        return job["state"] in ENDED

    wire.until(ended)
    found: Json = job
    return found


def estimates(wire: Wire, body: Json, experiment: str = "shop") -> Json:
    """Return the result of an evaluation that does not fail."""
    job = evaluated(wire, body, experiment)
    assert job["state"] == "done", job["problem"]
    result: Json = job["result"]
    return result


def workers(service: int) -> list[int]:
    """Return the evaluating processes of the process of a service."""
    found = []
    for path in Path(f"/proc/{service}/task").glob("*/children"):
        for child in map(int, path.read_text().split()):
            command = Path(f"/proc/{child}/cmdline").read_bytes()
            found += [child] if b"service.analysis.worker" in command else []
    return found


def stop(service: int) -> int:
    """Stop the evaluating process of a service, and return it: it neither ends nor goes on, but can
    be killed."""
    [process] = workers(service)
    os.kill(process, signal.SIGSTOP)
    return process
