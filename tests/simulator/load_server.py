"""A tiny HTTP server in a thread that speaks the wire of a service, with faults on demand."""

import json
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import BufferedIOBase
from typing import Any, Self

Json = dict[str, Any]
DEFINITION: Json = {
    "features": {
        "context": {
            "persona": {"type": "categorical", "values": ["cat", "100% dog"]},
            "basket": {"type": "numeric", "center": 40.0, "scale": 25.0, "default": None},
        }
    },
    "arms": {"ball": {}, "bone": {}},
    "policies": {"linucb": {"kind": "linucb"}, "random": {"kind": "random"}},
    "reward": {"range": [0.0, 1.0]},
}
CLOSE = b"close"  # in place of an answer: hang up


def ok(body: Json) -> bytes:
    content = json.dumps(body).encode()
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(content), content)


def refusal(status: int) -> bytes:
    content = b'{"title": "Not now", "detail": "no", "errors": []}'
    return b"HTTP/1.1 %d No\r\nContent-Length: %d\r\n\r\n%b" % (status, len(content), content)


class LoadServer:
    """Counts what it is asked. `fault` is given path and number of a /select or /reward, from 1,
    and may answer in place of the server; it may sleep, and then the whole server does."""

    def __init__(self, fault: Callable[[str, int], bytes | None] | None = None) -> None:
        self.fault = fault
        self.selects: list[Json] = []
        self.rewards: list[Json] = []
        self.connections = 0
        self.url = ""
        self._lock = threading.Lock()

    def answer(self, method: str, path: str, body: Json | None) -> bytes:
        if path == "/readyz":
            return ok({"ready": True})
        if path == "/experiments":
            return ok({"experiments": [{"name": "shop"}]})
        if path == "/experiments/shop":
            return ok({"name": "shop", "definition": DEFINITION})
        if path not in ("/select", "/reward") or body is None:
            return refusal(404)
        asked = self.selects if path == "/select" else self.rewards
        asked.append(body)
        if self.fault and (answer := self.fault(path, len(asked))) is not None:
            return answer
        if path == "/reward":
            return ok({"status": "accepted"})
        token = f"token-{len(self.selects)}"
        return ok({"arm": "ball", "decision_id": token})

    def talk(self, reader: BufferedIOBase, writer: BufferedIOBase) -> None:
        """A connection, to its end."""
        with self._lock:
            self.connections += 1
        while line := reader.readline():
            method, path, _ = line.decode().split(" ", 2)
            length = 0
            while (field := reader.readline().lower()) not in (b"\r\n", b""):
                if field.startswith(b"content-length:"):
                    length = int(field.partition(b":")[2])
            content = reader.read(length)
            with self._lock:  # one at a time: who sleeps holds up all
                answer = self.answer(method, path, json.loads(content) if content else None)
            if answer == CLOSE:
                break
            writer.write(answer)

    @contextmanager
    def running(self) -> Iterator[Self]:
        told = self

        class Handler(socketserver.StreamRequestHandler):
            disable_nagle_algorithm = True

            def handle(self) -> None:
                with suppress(OSError):
                    told.talk(self.rfile, self.wfile)

        with Server(("127.0.0.1", 0), Handler) as server:
            self.url = f"http://127.0.0.1:{server.server_address[1]}"
            thread = threading.Thread(target=server.serve_forever, args=(0.02,))
            thread.start()
            try:
                yield self
            finally:
                server.shutdown()
                thread.join()


class Server(socketserver.ThreadingTCPServer):
    request_queue_size = 128


def stalling(at: int, seconds: float) -> Callable[[str, int], None]:
    """The whole server stands still once, when it is asked for the `at`-th decision."""

    def fault(path: str, number: int) -> None:
        if path == "/select" and number == at:
            time.sleep(seconds)

    return fault
