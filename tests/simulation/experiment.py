"""What the simulated processes serve, and how a trainer works on its log."""

from typing import Any

from msgspec.structs import asdict

from service.definition.experiment import Definition
from service.state import codec
from service.state.artifacts import SNAPSHOT_SCHEMA, pack_artifact
from service.state.events import TrainingReport
from tests.unit.folding import Log, shop

WAIT_S, ACCEPT_S = 40.0, 120.0
DEFAULT = 0.75
TRAINED = "neural"
POLICIES: dict[str, dict[str, Any]] = {
    "linucb": {"kind": "linucb", "features": ["pet x kind"]},
    "windowed": {"kind": "linucb", "features": ["pet x kind"], "window": 6},
    TRAINED: {
        "kind": "neural_linear_ts",
        "learns_from": "all",
        "draws": 16,
        "hidden": [4],
        "embedding": 2,
        "training": {"first": 4},
    },
}


def definition_of(aggregation: str, revision: int = 0) -> Definition:
    """Each revision is of other heads than the one before."""
    policies = {name: {**one, "ridge": 1.0 + revision % 2} for name, one in POLICIES.items()}
    reward: dict[str, Any] = {
        "range": [0, 1],
        "default": DEFAULT,
        "aggregation": aggregation,
        "wait_seconds": WAIT_S,
        "accept_seconds": ACCEPT_S,
    }
    if aggregation == "sum":
        reward["total"] = [0, 100]
    return Definition.model_validate(shop(**policies) | {"reward": reward})


def reported(artifact: bytes) -> bytes:
    """The artifact with the trainer's report, which has a gate compare it."""
    meta, arrays = codec.unpack(artifact, SNAPSHOT_SCHEMA)
    report = TrainingReport(meta["version_rewards"], 0.0, 1.0, 1.0, 9.0)
    return pack_artifact({**meta, "training": asdict(report)}, arrays)


class Training(Log):
    """A trainer's work on a log, without the handing over."""

    artifact = b""

    def hand_over(self, policy: str, artifact: bytes, *, gated: bool = False) -> None:
        self.artifact = reported(artifact) if gated else artifact
