"""Arrays and JSON in one checked blob: snapshots and artifacts. Never pickle.

Layout: magic, SHA-256 of the rest, npz (whose member `meta` is JSON as bytes).
"""

import hashlib
import io
import json
import zipfile
from collections.abc import Mapping
from itertools import islice
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from service.errors import Damaged, LogTooNew, Outdated

MAGIC = b"forage1\n"
SLICE = 512
"""Members that are written at a time: about a millisecond of arms with 32 features."""

_DIGEST = 32
_UNREADABLE = (LookupError, TypeError, AttributeError, ValueError, OSError, EOFError)


def pack(schema: int, meta: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> bytes:
    """Arrays come back bit for bit. schema: number of the layout of meta and arrays."""
    return seal(text_of(schema, meta), arrays)


def text_of(schema: int, meta: Mapping[str, Any]) -> bytes:
    return json.dumps({"schema": schema, **meta}, allow_nan=False).encode()


def with_member(text: bytes, name: str, values: Mapping[str, Any]) -> bytes:
    """The text with one more member, a mapping of finite values that may be large: it is written
    in slices, between which other threads have their turn."""
    slices, rest = [], iter(values.items())
    while some := dict(islice(rest, SLICE)):
        slices.append(msgspec.json.encode(some)[1:-1])
    return b"".join((text[:-1], b',"', name.encode(), b'":{', b",".join(slices), b"}}"))


def seal(text: bytes, arrays: Mapping[str, npt.NDArray[Any]]) -> bytes:
    """`pack`, of a text that stands."""
    body = io.BytesIO()
    members: dict[str, Any] = {"meta": np.frombuffer(text, np.uint8), **arrays}
    np.savez(body, **members)
    content = body.getvalue()
    return MAGIC + hashlib.sha256(content).digest() + content


def unpack(blob: bytes, schema: int) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
    """Meta and arrays. Raises Damaged, Outdated where the blob has a schema below `schema`,
    LogTooNew where it has one above."""
    head, digest = blob[: len(MAGIC)], blob[len(MAGIC) : len(MAGIC) + _DIGEST]
    content = blob[len(MAGIC) + _DIGEST :]
    if head != MAGIC or hashlib.sha256(content).digest() != digest:
        raise Damaged("the checksum does not match: cut short or changed")
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        meta: dict[str, Any] = json.loads(arrays.pop("meta").tobytes())
        written = int(meta.pop("schema"))
    except (*_UNREADABLE, zipfile.BadZipFile) as fault:
        raise Damaged(f"not a blob of Forage's: {fault}") from fault
    if written > schema:
        raise LogTooNew(f"written with schema {written}, this Forage reads up to {schema}")
    if written < schema:
        raise Outdated(f"written with schema {written}, this Forage reads {schema}")
    return meta, arrays
