"""The only test of the gate with a process of its own: a kill loses nothing acknowledged."""

import signal
from pathlib import Path

from tests.cli.forage import forage, serving

QUESTION = {"policy": "linucb", "context": {"persona": "cat_connoisseur"}}


def test_a_killed_service_starts_again_with_all_it_acknowledged_and_audits_clean(
    tmp_path: Path,
) -> None:
    with serving(tmp_path) as running:
        decision = running.post("/select", QUESTION)
        reward = {"decision_id": decision["decision_id"], "reward": 1.0}
        assert running.post("/reward", reward)["status"] == "accepted"
        before = running.get("/policies/linucb")
        running.signal(signal.SIGKILL)
        assert running.wait() == -signal.SIGKILL
    with serving(tmp_path) as running:
        assert running.post("/reward", reward)["status"] == "duplicate"
        after = running.get("/policies/linucb")
        for learned in ("rewards", "model_version", "head"):
            assert after[learned] == before[learned], learned
        audit = forage("audit", folder=tmp_path)
        assert (audit.returncode, audit.stderr) == (0, "")
