"""Snapshots and artifacts: arrays and JSON in one blob with a checksum. Never pickle.

Layout: magic, SHA-256 of the rest, npz (whose member `meta` is JSON as bytes).
"""

import hashlib
import io
import json
import zipfile
from collections.abc import Mapping
from itertools import islice

import msgspec
import numpy as np

from service.bandits.heads.base import Meta, Stored
from service.definition.members import parse_unique
from service.errors import Damaged, UnknownSchema

MAGIC = b"forage1\n"
SLICE = 512
"""Members per slice: about a millisecond of arms with 32 features."""

DIRECTORY = 2**20
"""Bytes of the directory of a blob's members, at most: some 10,000."""

_DIGEST = 32
_UNREADABLE = (
    LookupError, TypeError, AttributeError, ValueError, OSError, EOFError, RuntimeError,
    MemoryError, OverflowError, zipfile.BadZipFile,
)  # fmt: skip


def pack(schema: int, meta: Mapping[str, object], arrays: Mapping[str, Stored]) -> bytes:
    """Pack meta and arrays, which `unpack` returns bit for bit. schema: number of their layout."""
    return seal(text_of(schema, meta), arrays)


def text_of(schema: int, meta: Mapping[str, object]) -> bytes:
    return json.dumps({"schema": schema, **meta}, allow_nan=False).encode()


def with_member(text: bytes, name: str, values: Mapping[str, object]) -> bytes:
    """Return the text with one more member, a large mapping of finite values, encoded in slices
    between which other threads can run."""
    slices, rest = [], iter(values.items())
    while some := dict(islice(rest, SLICE)):
        slices.append(msgspec.json.encode(some)[1:-1])
    return b"".join((text[:-1], b',"', name.encode(), b'":{', b",".join(slices), b"}}"))


def seal(text: bytes, arrays: Mapping[str, Stored]) -> bytes:
    """Pack encoded meta, and arrays."""
    body = io.BytesIO()
    members: Meta = {"meta": np.frombuffer(text, np.uint8), **arrays}
    np.savez(body, **members)
    content = body.getvalue()
    return MAGIC + hashlib.sha256(content).digest() + content


def unpack(blob: bytes, schema: int) -> tuple[Meta, dict[str, Stored]]:
    """Return meta and arrays, in about as much memory as the blob. Raises Damaged; UnknownSchema
    for a schema other than `schema`."""
    head, digest = blob[: len(MAGIC)], blob[len(MAGIC) : len(MAGIC) + _DIGEST]
    content = blob[len(MAGIC) + _DIGEST :]
    if head != MAGIC or hashlib.sha256(content).digest() != digest:
        raise Damaged("the checksum does not match: cut short or changed")
    try:
        _expect_bounded(content)
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        meta: Meta = parse_unique(arrays.pop("meta").tobytes())
        written = int(meta.pop("schema"))
    except _UNREADABLE as fault:
        raise Damaged(f"not a blob of Forage's: {fault}") from fault
    if written != schema:
        raise UnknownSchema(f"written with schema {written}, and this Forage reads schema {schema}")
    return meta, arrays


def _expect_bounded(content: bytes) -> None:
    """Raise ValueError where the members, or their directory, would take more memory than they may:
    a megabyte of zeros packs into a kilobyte, and members can overlap."""
    end, zip64 = content[-22:], content[-42:-38] == b"PK\x06\x07"  # zip64 says the size elsewhere
    if end[:4] != b"PK\x05\x06" or zip64 or int.from_bytes(end[12:16], "little") > DIRECTORY:
        raise ValueError(f"it does not end in a directory of at most {DIRECTORY} bytes")
    with zipfile.ZipFile(io.BytesIO(content)) as file:
        members = file.infolist()
    if any(member.compress_type != zipfile.ZIP_STORED for member in members):
        raise ValueError("its members are compressed")
    if sum(member.file_size for member in members) > len(content):
        raise ValueError("its members are larger than it is")
