"""Snapshots and artifacts: arrays and JSON in one blob with a checksum. Never pickle.

Layout: magic, SHA-256 of the rest, npz (whose member `meta` is JSON as bytes).
"""

import hashlib
import io
import json
import zipfile
from collections.abc import Mapping
from itertools import islice
from math import prod
from typing import IO

import msgspec
import numpy as np

from service.bandits.heads.base import Meta, Stored
from service.errors import Damaged, UnknownSchema

MAGIC = b"forage1\n"
SLICE = 512
"""Members per slice: about a millisecond of arms with 32 features."""

DIRECTORY = 2**20
"""Bytes of the directory of an artifact's members: some 10,000."""

_END = b"PK\x05\x06"
_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
_DIGEST = 32
_UNREADABLE = (
    LookupError, TypeError, AttributeError, ValueError, OSError, EOFError, RecursionError,
    MemoryError, zipfile.BadZipFile,
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


def unpack(blob: bytes, schema: int, limit: int | None = None) -> tuple[Meta, dict[str, Stored]]:
    """Return meta and arrays. Raises Damaged, also for more than `limit` bytes, before it allocates
    any; UnknownSchema for a schema other than `schema`."""
    head, digest = blob[: len(MAGIC)], blob[len(MAGIC) : len(MAGIC) + _DIGEST]
    content = blob[len(MAGIC) + _DIGEST :]
    if head != MAGIC or hashlib.sha256(content).digest() != digest:
        raise Damaged("the checksum does not match: cut short or changed")
    try:
        _expect_bounded(content, limit)
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        meta: Meta = json.loads(arrays.pop("meta").tobytes())
        written = int(meta.pop("schema"))
    except _UNREADABLE as fault:
        raise Damaged(f"not a blob of Forage's: {fault}") from fault
    if written != schema:
        raise UnknownSchema(f"written with schema {written}, and this Forage reads schema {schema}")
    return meta, arrays


def _expect_bounded(content: bytes, limit: int | None) -> None:
    """Raises ValueError where members exceed the limit, or their own size in the directory: a
    megabyte of zeros packs into a kilobyte. A read stops at the size in the directory, and an
    array's header gives its memory."""
    end = content[-len(_END) - 18 :]
    if end[: len(_END)] != _END:
        raise ValueError("there is no directory of its members at its end")
    directory = int.from_bytes(end[12:16], "little")
    if limit is not None and directory > DIRECTORY:
        raise ValueError(f"the directory of its members has {directory} bytes")
    with zipfile.ZipFile(io.BytesIO(content)) as file:
        whole = sum(member.file_size for member in file.infolist())
        if limit is not None and whole > limit:
            raise ValueError(f"it holds {whole} bytes uncompressed, and may hold {limit}")
        for member in file.infolist():
            with file.open(member) as stream:
                taken = _bytes_of(stream)
            if taken > member.file_size:
                raise ValueError(f"{member.filename} says that it is larger than it is")


def _bytes_of(stream: IO[bytes]) -> int:
    """Return the memory of an array, by its header."""
    version = np.lib.format.read_magic(stream)
    read = _HEADERS.get(version)
    if read is None:
        raise ValueError("an array has a header of another version")
    shape, _, dtype = read(stream)
    return prod(shape) * dtype.itemsize
