"""A service under a small limit of open files, and clients that hold connections or never end."""

import re
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from tests.cli.forage import Serving, serving

pytestmark = pytest.mark.process

FILES = 128
CONNECTIONS = 64
"""The connections that FILES leaves room for."""
HALF = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Endless: "
ENDLESS_BYTES = 300_000_000
GROWTH_BYTES = 10_000_000
WAIT_S = 30.0
UNREAD_WAIT_S = 120.0


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("connections")
    with serving(folder, "--store", "memory://", files=FILES) as running:
        yield running


def connected(running: Serving, receive_bytes: int | None = None) -> socket.socket:
    made = socket.socket()
    made.settimeout(WAIT_S)
    if receive_bytes is not None:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    made.connect(("127.0.0.1", urlsplit(running.url).port or 0))
    return made


def expect_served(running: Serving) -> None:
    """By connections of their own."""
    with httpx.Client(base_url=running.url, timeout=WAIT_S, trust_env=False) as client:
        assert client.get("/healthz").status_code == 200
        question = {"policy": "linucb", "context": {"persona": "cat_connoisseur"}}
        assert client.post("/select", json=question).status_code == 200


def resident_bytes(running: Serving) -> int:
    status = Path(f"/proc/{running.pid}/status").read_text(encoding="ascii")
    [kilobytes] = re.findall(r"VmRSS:\s+(\d+) kB", status)
    return 1_024 * int(kilobytes)


def test_held_connections_are_bounded_and_end_by_themselves(running: Serving) -> None:
    """The client of the metrics keeps one connection; all others are taken, and then closed."""
    assert running.metric("forage_connections_bound") == CONNECTIONS
    with ExitStack() as held:
        for _ in range(CONNECTIONS + 10):
            held.enter_context(connected(running)).send(HALF)
        with connected(running) as late:
            assert late.recv(65_536).startswith(b"HTTP/1.1 503 ")
        deadline = time.monotonic() + WAIT_S
        while running.metric("forage_connections") > CONNECTIONS // 2:
            assert time.monotonic() < deadline
            time.sleep(0.5)
        expect_served(running)
    assert running.metric("forage_refused_connections_total") >= 10


def test_an_endless_head_costs_no_memory_and_delays_nobody(running: Serving) -> None:
    expect_served(running)
    before, most, sent = resident_bytes(running), 0, 0
    piece = b"a" * 1_000_000
    with connected(running) as endless:
        endless.settimeout(1.0)
        endless.send(HALF)
        try:
            while sent < ENDLESS_BYTES:
                sent += endless.send(piece)
                most = max(most, resident_bytes(running))
                if sent < 4 * len(piece):
                    expect_served(running)
        except OSError:
            pass  # the service reads no more, or has closed the connection
        assert sent < ENDLESS_BYTES
        expect_served(running)
        most = max(most, resident_bytes(running))
    assert most - before < GROWTH_BYTES


def test_a_client_that_reads_no_answer_loses_its_connection(running: Serving) -> None:
    with connected(running, receive_bytes=4_096) as unread:
        unread.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 1_000)
        before = running.metric("forage_connections")
        deadline = time.monotonic() + UNREAD_WAIT_S
        while running.metric("forage_connections") >= before:
            assert time.monotonic() < deadline
            time.sleep(1.0)
    expect_served(running)
