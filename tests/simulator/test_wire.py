"""Parse answers that arrive in any pieces."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator_client.wire import Lost, whole

Parsed = tuple[int, bytes, bool]
FORMS: list[tuple[bytes, Parsed]] = [
    (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabcde", (200, b"abcde", True)),
    (b"HTTP/1.1 200 OK\r\ncontent-length:0\r\nx: y\r\n\r\n", (200, b"", True)),
    (b"HTTP/1.1 204 No Content\r\n\r\n", (204, b"", True)),
    (
        b"HTTP/1.1 503 Later\r\nConnection: close\r\nContent-Length: 2\r\n\r\nno",
        (503, b"no", False),
    ),
    (b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\na", (200, b"a", False)),
    (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"3\r\nabc\r\n2;x=y\r\nd\n\r\n0\r\n\r\n",
        (200, b"abcd\n", True),
    ),
    (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n1\r\na\r\n0\r\nTrailer: 1\r\n\r\n",
        (200, b"a", True),
    ),
]  # fmt: skip


def parsed(sent: bytes, *, ended: bool = False) -> Parsed:
    answer = whole(sent, ended=ended)
    assert answer is not None
    return answer.status, answer.body, answer.keep


@pytest.mark.parametrize(("sent", "answer"), FORMS)
def test_an_answer_is_whole_with_its_last_byte(sent: bytes, answer: Parsed) -> None:
    assert all(whole(sent[:size], ended=False) is None for size in range(len(sent)))
    assert parsed(sent) == answer


@given(body=st.binary(max_size=300), sizes=st.lists(st.integers(1, 40), min_size=1, max_size=9))
def test_chunks_of_any_size_are_the_body(body: bytes, sizes: list[int]) -> None:
    sent, at, turn = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", 0, 0
    while at < len(body):
        part = body[at : at + sizes[turn % len(sizes)]]
        sent += b"%x\r\n%b\r\n" % (len(part), part)
        at, turn = at + len(part), turn + 1
    sent += b"0\r\n\r\n"
    assert parsed(sent) == (200, body, True)
    assert whole(sent[:-1], ended=False) is None


def test_without_a_length_an_answer_ends_with_the_connection() -> None:
    sent = b"HTTP/1.1 200 OK\r\n\r\nto the end"
    assert whole(sent, ended=False) is None
    assert parsed(sent, ended=True) == (200, b"to the end", False)


@pytest.mark.parametrize(
    "sent",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 okay\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-2\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000,
    ],
)
def test_other_bytes_are_broken(sent: bytes) -> None:
    with pytest.raises(Lost, match="broken"):
        whole(sent, ended=False)


def test_headers_are_read_by_lower_case_name() -> None:
    answer = whole(b"HTTP/1.1 429 No\r\nRetry-After: 7\r\nContent-Length:0\r\n\r\n", ended=False)
    assert answer is not None
    assert answer.headers() == {"retry-after": "7", "content-length": "0"}
