import hashlib
import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from service.errors import Damaged, UnknownSchema
from service.state import codec

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip
metas = st.dictionaries(st.text().filter(lambda key: key != "schema"), JSON, max_size=4)
named = st.dictionaries(
    st.sampled_from(["A", "b", "net.weight0", "0.head.A"]),
    arrays(np.float64, array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3))
    | arrays(np.uint8, array_shapes(max_dims=1, max_side=9)),
    max_size=3,
)


@given(metas, named)
def test_meta_and_arrays_come_back_bit_for_bit(meta: dict, given_arrays: dict) -> None:
    """NaN payloads, negative zeros, empty and scalar arrays, and their types included. The same
    content is the same blob, so that an artifact's hash names it."""
    blob = codec.pack(1, meta, given_arrays)
    assert blob == codec.pack(1, meta, given_arrays)
    found, back = codec.unpack(blob, 1)
    assert found == meta
    assert back.keys() == given_arrays.keys()
    for name, array in given_arrays.items():
        assert (back[name].dtype, back[name].shape) == (array.dtype, array.shape)
        assert back[name].tobytes() == array.tobytes()


@given(metas, st.integers(0, 1_100))
def test_a_large_member_comes_back_like_the_others(meta: dict, count: int) -> None:
    arms = {f'{number} é"': {"size": number / 3, "kind": "toy"} for number in range(count)}
    text = codec.with_member(codec.text_of(1, meta), "its arms", arms)
    found, _ = codec.unpack(codec.seal(text, {}), 1)
    assert found == meta | {"its arms": arms}


def test_every_flipped_byte_and_every_cut_is_damaged() -> None:
    blob = codec.pack(1, {"name": "zoo"}, {"A": np.eye(2)})
    for index in range(len(blob)):
        changed = bytearray(blob)
        changed[index] ^= 1 << (index % 8)
        with pytest.raises(Damaged):
            codec.unpack(bytes(changed), 1)
        with pytest.raises(Damaged):
            codec.unpack(blob[:index], 1)
    with pytest.raises(Damaged):
        codec.unpack(blob + b"\0", 1)


def test_a_blob_of_schema_2_is_read_as_that_alone() -> None:
    blob = codec.pack(2, {"name": "zoo"}, {})
    for schema in (1, 3):
        with pytest.raises(UnknownSchema, match=f"schema 2, and this Forage reads schema {schema}"):
            codec.unpack(blob, schema)
    assert codec.unpack(blob, 2) == ({"name": "zoo"}, {})


def npz(meta: bytes | None = None, **members: np.ndarray) -> bytes:
    body = io.BytesIO()
    text = {} if meta is None else {"meta": np.frombuffer(meta, np.uint8)}
    np.savez(body, **text, **members)  # type: ignore[arg-type]
    return body.getvalue()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not a zip",
        b"PK\x03\x04",
        npz(A=np.eye(2)),
        npz(b'{"schema": 1}', A=np.array([{}], dtype=object)),  # it would be unpickled
        *map(npz, [b"{", b"1", b"[]", b"{}", b'{"schema": "one"}', b'{"schema": null}']),
        npz(b'{"schema": 1, "schema": 1}'),
    ],
)
def test_foreign_content_with_a_right_checksum_is_damaged_and_never_unpickled(
    content: bytes,
) -> None:
    with pytest.raises(Damaged):
        codec.unpack(codec.MAGIC + hashlib.sha256(content).digest() + content, 1)


def test_a_meta_that_is_no_json_is_not_written() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        codec.pack(1, {"rewards": float("nan")}, {})
