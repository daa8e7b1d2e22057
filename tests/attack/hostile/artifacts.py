"""Artifacts of trained versions as no trainer makes them."""

import hashlib
import json
import struct
import zlib
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from service.bandits.networks import Network
from service.definition.experiment import load_definition
from service.definition.policies import Network as PolicyNetwork
from service.state.artifacts import SNAPSHOT_SCHEMA, pack_artifact
from service.state.codec import MAGIC
from service.state.events import ExperimentDefined
from service.state.fold import State

DEFINITION: Final = Path(__file__).parent / "experiments" / "nets.toml"
NETS: Final = tuple(load_definition(DEFINITION)[1].policies)
INFLATED_BYTES: Final = 1_600_000_000
"""Of an artifact of a megabyte and a half."""
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
    settings = learner.settings
    assert isinstance(settings, PolicyNetwork)
    sizes = [learner.view.width, *settings.hidden, settings.embedding]
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
    packed = {
        f"{name}.npy": _inflating() if content is None else _deflated(content)
        for name, content in members.items()
    }
    content = _archive(packed)
    return MAGIC + hashlib.sha256(content).digest() + content


class _Packed(NamedTuple):
    """A member of an archive. size, checksum: of what it inflates to."""

    content: bytes
    size: int
    checksum: int


def _deflated(content: bytes) -> _Packed:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    packed = packer.compress(content) + packer.flush()
    return _Packed(packed, len(content), zlib.crc32(content))


@cache
def _inflating() -> _Packed:
    """An array of zeros, deflated once for all of its blocks: zipfile takes ten seconds for it."""
    head, block = _header("<f8", f"({INFLATED_BYTES // 8},)"), bytes(INFLATED_BYTES // 100)
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    first = packer.compress(head) + packer.flush(zlib.Z_FULL_FLUSH)
    repeated = packer.compress(block) + packer.flush(zlib.Z_FULL_FLUSH)
    checksum = zlib.crc32(head)
    for _ in range(100):
        checksum = zlib.crc32(block, checksum)
    packed = first + 100 * repeated + packer.flush()
    return _Packed(packed, len(head) + 100 * len(block), checksum)


def _archive(members: dict[str, _Packed]) -> bytes:
    """A zip file (APPNOTE 6.3.10, 4.3): each member, then the directory, then its end."""
    files, directory = bytearray(), bytearray()
    for name, (content, size, checksum) in members.items():
        about = struct.pack(
            "<HHHHHIIIHH", 20, 0, 8, 0, 33, checksum, len(content), size, len(name), 0
        )
        directory += b"PK\x01\x02" + struct.pack("<H", 20) + about
        directory += struct.pack("<HHHII", 0, 0, 0, 0, len(files)) + name.encode()
        files += b"PK\x03\x04" + about + name.encode() + content
    count = len(members)
    end = struct.pack("<HHHHIIH", 0, 0, count, count, len(directory), len(files), 0)
    return bytes(files + directory) + b"PK\x05\x06" + end
