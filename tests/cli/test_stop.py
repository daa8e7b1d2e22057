"""SIGTERM: clients of a service that stops get their answers, and no connection is reset."""

import os
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.forage import START_S, Serving, serving

pytestmark = pytest.mark.process

BODY = b'{"context": {"persona": "cat_connoisseur"}, "policy": "linucb"}'
SELECT = (
    b"POST /select HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n%b" % (len(BODY), BODY)
)
CLIENTS = 8
WAITING = 100


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Serving]:
    with serving(tmp_path, "--store", "memory://") as running:
        yield running


def connect(running: Serving) -> socket.socket:
    host, port = running.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), START_S)


def answer(client: socket.socket) -> bytes:
    """One whole answer; less where the connection ends before."""
    found = b""
    while True:
        head, _, body = found.partition(b"\r\n\r\n")
        length = next((int(f[15:]) for f in head.split(b"\r\n") if f.startswith(b"content-l")), 1)
        if b"\r\n\r\n" in found and len(body) >= length:
            return found
        piece = client.recv(65_536)
        if not piece:
            return found
        found += piece


def ask_until_refused(running: Serving, seen: Counter[str]) -> None:
    """Send one request after another, on the same connection while it is kept."""
    while True:
        try:
            client = connect(running)
        except (ConnectionRefusedError, TimeoutError):
            return
        with client:
            try:
                while True:
                    client.sendall(SELECT)
                    found = answer(client)
                    seen["answered" if found.startswith(b"HTTP/1.1 200") else repr(found)] += 1
                    if b"connection: close" in found or not found:
                        break
            except ConnectionError as fault:
                seen[type(fault).__name__] += 1


def test_busy_clients_get_an_answer_to_every_request(running: Serving) -> None:
    seen = Counter[str]()
    clients = [
        threading.Thread(target=ask_until_refused, args=(running, seen)) for _ in range(CLIENTS)
    ]
    for client in clients:
        client.start()
    while seen["answered"] < 10 * CLIENTS:
        time.sleep(0.01)
    assert running.stop() == 0
    for client in clients:
        client.join(START_S)
    assert set(seen) == {"answered"}, seen


def test_what_was_sent_before_the_stop_is_answered_though_it_was_not_read(
    running: Serving,
) -> None:
    """On kept connections, and on new ones that the service has not accepted yet."""
    kept = [connect(running) for _ in range(WAITING)]
    for client in kept:
        client.sendall(SELECT)
        assert answer(client).startswith(b"HTTP/1.1 200")
    os.kill(running.pid, signal.SIGSTOP)
    clients = kept + [connect(running) for _ in range(WAITING)]
    for client in clients:
        client.sendall(SELECT)
    running.signal(signal.SIGTERM)
    os.kill(running.pid, signal.SIGCONT)
    for client in clients:
        with client:
            assert answer(client).startswith(b"HTTP/1.1 200")
            assert client.recv(1) == b""
    assert running.wait() == 0


def test_an_idle_connection_ends_in_order(running: Serving) -> None:
    unused, used = connect(running), connect(running)
    used.sendall(SELECT)
    answer(used)
    running.signal(signal.SIGTERM)
    for client in (unused, used):
        with client:
            assert client.recv(1) == b""
    assert running.wait() == 0


def test_while_it_drains_it_answers_but_is_not_ready(tmp_path: Path) -> None:
    with serving(tmp_path, "--store", "memory://", FORAGE_DRAIN_SECONDS="600") as running:
        kept = connect(running)
        kept.sendall(SELECT)
        assert b"connection: close" not in answer(kept)
        running.signal(signal.SIGTERM)
        while (ready := running.client.get("/readyz")).status_code == 200:
            time.sleep(0.01)
        assert ready.status_code == 503
        assert ready.json()["ready"] is False
        assert ready.headers["connection"] == "close"
        for client in (kept, connect(running)):
            with client:
                client.sendall(SELECT)
                found = answer(client)
                assert found.startswith(b"HTTP/1.1 200")
                assert b"connection: close" in found
                assert client.recv(1) == b""
        running.signal(signal.SIGTERM)
        assert running.wait() == 143
