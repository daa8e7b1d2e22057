"""Artifacts: trained versions, packed by the trainer and read by the fold."""

from collections.abc import Mapping

import msgspec
import numpy as np

from service.bandits.heads.base import Meta, Stored
from service.bandits.version import Version
from service.errors import Damaged, NotPositiveDefinite
from service.state import codec
from service.state.events import TrainingReport
from service.state.learner import Learner

SNAPSHOT_SCHEMA = 8
"""Schema of snapshots and artifacts. Raise it with every change of their meta or arrays."""


def read_artifact(learner: Learner, artifact: bytes) -> Version:
    """Return a trained version. Raises Damaged where it does not fit the policy."""
    meta, arrays = codec.unpack(artifact, SNAPSHOT_SCHEMA)
    try:
        version = learner.restored(meta, arrays)
        phi = version.encoder(np.zeros((1, learner.view.width)))
        seen = [version.mean(phi, [""]), version.encoder.predict(phi)]
        if version.head is not None:
            seen.append(version.head.width(phi, [""]))
        if not np.isfinite(seen).all():
            raise ValueError("a mean or a width is not finite")
    except (LookupError, TypeError, ValueError, AssertionError, NotPositiveDefinite) as fault:
        raise Damaged(f"the artifact does not fit policy {learner.name}: {fault}") from fault
    return version


def read_meta(artifact: bytes) -> Meta:
    """Return the trainer's metadata. Raises as `codec.unpack`."""
    return codec.unpack(artifact, SNAPSHOT_SCHEMA)[0]


def report_of(meta: Meta) -> TrainingReport | None:
    """Return what the trainer tells of its training; None: there was none. Raises Damaged."""
    try:
        return msgspec.convert(meta.get("training"), TrainingReport | None)
    except msgspec.ValidationError as fault:
        raise Damaged(f"the report of the training cannot be read: {fault}") from fault


def pack_artifact(meta: Meta, arrays: Mapping[str, Stored]) -> bytes:
    return codec.pack(SNAPSHOT_SCHEMA, meta, arrays)
