"""Artifacts of trained versions as no trainer makes them."""

import hashlib
import json
import struct
from functools import cache
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import Final
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile

import numpy as np

from service.bandits.networks import Network
from service.definition.experiment import load_definition
from service.state.artifacts import SNAPSHOT_SCHEMA, pack_artifact
from service.state.codec import MAGIC
from service.state.events import ExperimentDefined
from service.state.fold import State

DEFINITION: Final = Path(__file__).parent / "experiments" / "nets.toml"
NETS: Final = tuple(load_definition(DEFINITION)[1].policies)
INFLATED_BYTES: Final = 1_600_000_000
"""Of an artifact of a few megabytes."""
WEIGHT: Final = 1e100
"""A row of zeros does not show it."""


@cache
def poisoned(policy: str) -> bytes:
    """A version that fits its policy in all but the size of its weights."""
    state = State("attacker-nets")
    definition = load_definition(DEFINITION)[1].model_dump(mode="json")
    event = ExperimentDefined(at=0.0, revision=1, schema_version=1, definition=definition)
    state.apply(1, event)
    learner = state.learners[policy]
    net = learner.policy.net
    assert net is not None
    sizes = [learner.view.width, *net.hidden, net.embedding]
    layers = [(np.full(size, WEIGHT), np.zeros(size[1])) for size in pairwise(sizes)]
    output = np.full((sizes[-1], 1), WEIGHT), np.zeros(1)
    version = learner.version(1, learner.trained(Network(layers), output))
    version.trained_to = 1
    meta, arrays = learner.describe(version)
    return pack_artifact(meta, arrays)


@cache
def hostile_artifacts() -> list[bytes]:
    """Each vouched for by its checksum but the last three."""
    meta = {"schema": SNAPSHOT_SCHEMA, "version": 1, "trained_to": 1, "rewards": 1, "born": 1}
    described = _array(json.dumps(meta).encode(), "|u1")
    layers = {
        f"{kind}{index}": _array(struct.pack(f"<{count}d", *[1e100] * count), "<f8", shape)
        for index, (rows, columns) in enumerate([(3, 8), (8, 1)])
        for kind, count, shape in (
            ("weight", rows * columns, f"({rows}, {columns})"),
            ("bias", columns, f"({columns},)"),
        )
    }
    endless = b"x" * 1_000_000
    return [
        _sealed({"meta": described, "weight0": None}),
        _sealed({"meta": None}),
        _sealed({"meta": described, **layers}),
        _sealed({"meta": described, "weight0": _header("<f8", "(1000000000, 1000)")}),
        _sealed({"meta": described, "weight0": _header("<f8", "(-1,)")}),
        _sealed({"meta": described, "weight0": _header("|O", "(1,)")}),
        _sealed({"meta": described, "weight0": _header("<f8", "(" + "9" * 4_000 + ",)")}),
        _sealed({"meta": described, **{f"weight{n}": b"" for n in range(20_000)}}),
        _sealed({"meta": _array(b"[" * 100_000, "|u1")}),
        _sealed({"meta": _array(b"9" * 100_000, "|u1")}),
        MAGIC + hashlib.sha256(endless).digest() + endless,
        MAGIC + bytes(32) + endless,
        b"",
    ]


def _header(kind: str, shape: str) -> bytes:
    """Of an array, without its data."""
    text = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


def _array(data: bytes, kind: str, shape: str | None = None) -> bytes:
    return _header(kind, shape or f"({len(data)},)") + data


def _sealed(members: dict[str, bytes | None]) -> bytes:
    """An artifact that its checksum vouches for. None: a member of zeros that inflates."""
    content, inflates = BytesIO(), None in members.values()
    kind = ZIP_DEFLATED if inflates else ZIP_STORED
    with ZipFile(content, "w", kind, compresslevel=1) as archive:
        for name, member in members.items():
            with archive.open(f"{name}.npy", "w") as file:
                file.write(
                    _header("<f8", f"({INFLATED_BYTES // 8},)") if member is None else member
                )
                for _ in range(100 if member is None else 0):
                    file.write(bytes(INFLATED_BYTES // 100))
    return MAGIC + hashlib.sha256(content.getvalue()).digest() + content.getvalue()
