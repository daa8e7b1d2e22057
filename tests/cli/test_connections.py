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
"""What is left of the files."""
HALF = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Endless: "
ENDLESS_BYTES = 300_000_000
GROWTH_BYTES = 10_000_000
WAIT_S = 30.0


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("connections")
    with serving(folder, "--store", "memory://", files=FILES) as running:
        yield running


def connected(running: Serving, address: str = "127.0.0.1") -> socket.socket:
    """A connection from an address of loopback, which has 16 million."""
    port = urlsplit(running.url).port
    return socket.create_connection(
        ("127.0.0.1", port or 0), timeout=WAIT_S, source_address=(address, 0)
    )


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


@pytest.mark.parametrize("addresses", [1, 8])
def test_held_connections_shut_nobody_out(running: Serving, addresses: int) -> None:
    """Three times as many as there are files: idle ones, and ones with half a head."""
    with ExitStack() as held:
        for number in range(3 * FILES):
            one = held.enter_context(connected(running, f"127.0.1.{1 + number % addresses}"))
            if number % 2:
                one.send(HALF)
            if number % CONNECTIONS == 0:
                expect_served(running)
        expect_served(running)
        assert running.metric("forage_connections_bound") == CONNECTIONS
        text = running.client.get("/metrics").text
        open_now = re.findall(r"^forage_connections\{.*\} (\S+)$", text, re.MULTILINE)
        assert sum(map(float, open_now)) <= CONNECTIONS
    assert running.metric('forage_connections_closed_total{reason="room"}') > FILES


def test_a_head_that_never_ends_costs_no_memory_and_delays_nobody(running: Serving) -> None:
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
            pass  # it is read no more, or was closed
        assert sent < ENDLESS_BYTES
        expect_served(running)
        most = max(most, resident_bytes(running))
    assert most - before < GROWTH_BYTES
    assert running.metric('forage_connections_closed_total{reason="head_size"}') == 1


def test_who_sends_too_large_a_head_is_told(running: Serving) -> None:
    with connected(running) as client:
        client.sendall(HALF + b"a" * 20_000)
        answer = client.recv(65_536)
    assert answer.startswith(b"HTTP/1.1 431 ")


def test_a_connection_that_is_refused_is_closed_though_its_client_keeps_it(
    running: Serving,
) -> None:
    with connected(running) as client:
        client.sendall(b"nonsense\r\n\r\n")
        deadline = time.monotonic() + WAIT_S
        try:
            while client.recv(65_536):
                assert time.monotonic() < deadline
            while time.monotonic() < deadline:  # it reads a little longer, for who still sends
                client.send(b"a")
                time.sleep(0.05)
        except OSError:
            return
    raise AssertionError("it was never closed")
