"""Requests as bytes, of every kind that a service meets, and what it answers to each.

They are sent to fresh services whose clock stands still and whose generators are seeded: the same
requests get the same bytes in each run, over a connection and through ASGI.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple
from unittest import mock
from urllib.parse import unquote

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from service.http import request_id
from tests.support.clock import VirtualClock
from tests.support.keys import Keys
from tests.support.plug import Plug
from tests.support.service import SECRET, Json, Wire, serving

SHOP: Final = "https://shop.example"
EVIL: Final = "https://evil.example"
QUESTION: Final = b'{"context": {"persona": "cat"}, "policy": "linucb"}'
NO_CONTEXT: Final = b'{"context": {}}'
BATCH: Final = b'{"requests": [%b, {"context": 1}, %b]}' % (QUESTION, QUESTION)
REWARD: Final = b'{"decision_id": "forged", "reward": 1}'
REWARDS: Final = b'{"requests": [%b, {"reward": "1"}]}' % REWARD
BODIES: Final = {
    "/select": QUESTION, "/reward": REWARD, "/select/batch": BATCH, "/reward/batch": REWARDS,
}  # fmt: skip
HEAD_BYTES: Final = 2_000
BODY_BYTES: Final = 3_000
SETTLED_S: Final = 0.5
"""Seconds in which an answer that does not wait for its client is complete."""


class Exchange(NamedTuple):
    """What one client sends over a connection of its own.

    parts     bytes, and seconds that pass between them
    through   whether it is one whole request, which ASGI can carry as well
    """

    name: str
    parts: list[bytes | float]
    through: bool = False


class StillClock(VirtualClock):
    """Clocks that only go where a loop waits: reading them changes nothing."""

    def monotonic(self) -> float:
        return self.up_s + self._passed_s


def request(
    path: str,
    body: bytes = b"",
    *fields: str,
    method: str = "POST",
    version: str = "1.1",
    host: str | None = "forage",
    kind: str | None = "application/json",
    length: bool = True,
) -> bytes:
    """Write a request. kind: of its content. length: whether it is declared."""
    lines = [f"{method} {path} HTTP/{version}"]
    lines += [f"Host: {host}"] * (host is not None)
    lines += [f"Content-Type: {kind}"] * (kind is not None)
    lines += [f"Content-Length: {len(body)}"] * length
    return "\r\n".join([*lines, *fields, "", ""]).encode("latin-1") + body


def chunked(body: bytes, size: int, trailer: bytes = b"") -> bytes:
    parts = [body[start : start + size] for start in range(0, len(body), size)]
    whole = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)
    return whole + b"0\r\n%b\r\n" % trailer


CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
NAMED: Final = request("/select", QUESTION, "Idempotency-Key: one", "X-Request-ID: r1")
"""A request with one answer, however often it is sent."""
HEALTH: Final = request("/healthz", method="GET", kind=None, length=False)


def _one(name: str, *parts: bytes | float) -> Exchange:
    return Exchange(name, [*parts], through=True)


def _whole(*more: str, **options: Any) -> Iterator[Exchange]:
    """Ask every kind of route with these header fields."""
    said = " ".join([*more, *map(str, options.values())])
    for path, body in BODIES.items():
        yield _one(f"{path} {said}", request(path, body, *more, **options))
    for path in ("/healthz", "/experiments", "/nowhere"):
        yield _one(f"{path} {said}", request(path, b"", *more, **{**options, "method": "GET"}))


METHODS: Final = ("GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PURGE")
HOSTILE: Final = {
    "empty": b"",
    "not JSON": b"{'context': {}}",
    "cut short": b'{"context": ',
    "null": b"null",
    "a list": b"[]",
    "a number": b"1e999",
    "not UTF-8": b'{"context": {"persona": "\xff\xfe"}}',
    "half a pair": b'{"context": {"persona": "\\ud800"}}',
    "deep": b"[" * 1_400 + b"]" * 1_400,
    "an unknown member": b'{"context": {}, "colour": 1}',
    "twice": b'{"context": {"persona": "cat"}, "context": {}}',
    "NaN": b'{"context": {"age": NaN}}',
    "digits": b'{"top_k": ' + b"9" * 2_000 + b"}",
    "a NUL": b'{"context": {"persona": "\\u0000"}}',
    "an unknown experiment": b'{"context": {}, "experiment": "nowhere"}',
    "an unknown policy": b'{"context": {"persona": "cat"}, "policy": "none"}',
    "an unknown arm": b'{"context": {"persona": "cat"}, "arms": ["none"]}',
    "two of each": b'{"requests": [%b, %b], "requests": []}' % (QUESTION, QUESTION),
    "no item": b'{"requests": []}',
}


def plain() -> Iterator[Exchange]:
    """Requests to a service without keys and without listed origins."""
    yield from _whole()
    yield from _whole("X-Request-ID: mine", "Accept-Encoding: gzip")
    yield from _whole("X-Request-ID: not one!")
    yield from _whole("X-Request-ID: first", "X-Request-ID: last")
    yield from _whole(f"Origin: {EVIL}")
    yield from _whole("Origin: http://forage")
    yield from _whole("Origin: https://forage", "Sec-Fetch-Site: same-origin")
    yield from _whole("Sec-Fetch-Site: cross-site")
    yield from _whole("Content-Encoding: gzip")
    yield from _whole("Content-Encoding: identity")
    yield from _whole(host="evil.example")
    yield from _whole(kind="text/plain")
    yield from _whole(kind="application/problem+json; charset=utf-8")
    for path, body in BODIES.items():
        for method in METHODS:
            yield _one(f"{method} {path}", request(path, body, method=method))
        for name, hostile in HOSTILE.items():
            yield _one(f"{path} {name}", request(path, hostile))
        for other in (f"{path}/", f"{path}?a=%20b", f"{path}//", path.upper(), f"/%73{path[2:]}"):
            yield _one(f"target {other}", request(other, body))
        yield _one(f"old {path}", request(path, body, version="1.0"))
        yield _one(
            f"old, kept {path}", request(path, body, "Connection: keep-alive", version="1.0")
        )
        yield _one(f"old, no host {path}", request(path, body, version="1.0", host=None))
        yield _one(f"closed {path}", request(path, body, "Connection: close"))
        for size in (1, 7, 1_000):
            sent = request(path, b"", "Transfer-Encoding: chunked", length=False)
            yield _one(f"chunks of {size} {path}", sent + chunked(body, size))
        yield _one(f"a trailer {path}", sent + chunked(body, 9, b"X-Trailer: a\r\n"))
        for protocol in ("websocket", "h2c"):
            fields = ("Connection: Upgrade", f"Upgrade: {protocol}")
            yield _one(f"{protocol} {path}", request(path, body, *fields))
        for wait in ("0", "1", "900", "x", "9" * 20):
            field = f"X-Envoy-Expected-Rq-Timeout-Ms: {wait}"
            yield _one(f"waits {wait} {path}", request(path, body, field))
        yield _one(f"Idempotency-Key {path}", request(path, body, f"Idempotency-Key: {'k' * 300}"))
        waiting = request(path, body, "Expect: 100-continue")
        yield _one(f"continue at once {path}", waiting)
        yield _one(f"continue {path}", waiting[: -len(body)], 1.0, body)
        yield _one(f"a slow body {path}", waiting[: -len(body)], 20.0, body[:9], 9.0, body[9:])
        yield Exchange(f"no end {path}", [waiting[:-3], 40.0])
        yield Exchange(f"pipelined {path}", [request(path, body) * 3 + HEALTH])
        yield Exchange(f"pipelined behind {path}", [HEALTH + request(path, body) * 2])
        mixed = request(path, b"{") + request(path, body, method="PUT") + request(path, body)
        yield Exchange(f"pipelined refusals {path}", [mixed])
        yield Exchange(f"pipelined in halves {path}", [mixed[:-20], mixed[-20:] + HEALTH])
        yield Exchange(f"pipelined, last {path}", [request(path, body, "Connection: close") * 2])
        yield Exchange(f"kept {path}", [request(path, body), 74.0, request(path, body), 80.0])
        for host in ("http://forage", "http://FORAGE:8000", "http://[::1]:80", EVIL):
            whole = request(host + path, body, host="evil.example")
            yield Exchange(f"target {host}{path}", [whole])
    yield from malformed()
    for cut in range(1, len(NAMED)):
        yield Exchange(f"split at {cut}", [NAMED[:cut], 0.01, NAMED[cut:]])
    yield Exchange("byte by byte", [bytes([each]) for each in NAMED])


def malformed() -> Iterator[Exchange]:
    lengths = [f"Content-Length: {len(QUESTION)}", "Content-Length: 1"]
    for fields in (lengths, lengths[:1] * 2, [*lengths[:1], "Transfer-Encoding: chunked"]):
        whole = request("/select", QUESTION, *fields, length=False)
        yield Exchange(f"lengths {fields}", [whole])
    for length in ("-1", "x", "9" * 30, "+1", "0x5"):
        field = f"Content-Length: {length}"
        yield Exchange(f"length {length}", [request("/select", QUESTION, field, length=False)])
    for name, whole in {
        "no host": request("/select", QUESTION, host=None),
        "two hosts": request("/select", QUESTION, "Host: forage"),
        "an empty host": request("/select", QUESTION, host=""),
        "old chunks": request(
            "/select", b"", "Transfer-Encoding: chunked", version="1.0", length=False
        ),
        "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        "no target": request("http://[", QUESTION),
        "no size": request("/select", b"", "Transfer-Encoding: chunked", length=False) + b"no\r\n",
        "not UTF-8": request("/select%ff", QUESTION),
        "CONNECT": request("forage:443", b"", method="CONNECT"),
        "a long head": request("/select", QUESTION, f"X-A: {'a' * HEAD_BYTES}"),
        "a long body": request("/select", b" " * (BODY_BYTES + 1)),
        "a long chunked body": request(
            "/select", b"", "Transfer-Encoding: chunked", length=False
        ) + chunked(b" " * (BODY_BYTES + 1), 500),
        "a NUL": request("/select", QUESTION, "X-A: a\0b"),
        "folded": request("/select", QUESTION, "X-A: a\r\n b"),
        "an unknown version": request("/select", QUESTION, version="3.0"),
    }.items():  # fmt: skip
        yield Exchange(name, [whole])
        yield Exchange(f"{name}, behind", [NAMED + whole])
        yield Exchange(f"{name}, after", [NAMED, whole])
    yield Exchange("a slow head", [NAMED[:30], 12.0])
    yield Exchange("nothing", [12.0])


def listed() -> Iterator[Exchange]:
    """Requests to a service that lists an origin."""
    yield from _whole()
    for origin in (SHOP, EVIL, "null", "http://forage", "http://localhost:5173"):
        yield from _whole(f"Origin: {origin}")
        for asked in ("POST", "PUT", "TRACE"):
            for headers in (None, "content-type", "Authorization, x-api-key", "x-other"):
                fields = [f"Origin: {origin}", f"Access-Control-Request-Method: {asked}"]
                if headers is not None:
                    fields.append(f"Access-Control-Request-Headers: {headers}")
                whole = request("/select", b"", *fields, method="OPTIONS", kind=None)
                yield _one(f"preflight {fields}", whole)
        for path, body in BODIES.items():
            field = f"Origin: {origin}"
            yield _one(f"{field} {path} no JSON", request(path, b"{", field))
            yield _one(f"{field} PUT {path}", request(path, body, field, method="PUT"))
            yield _one(f"{field} OPTIONS {path}", request(path, body, field, method="OPTIONS"))
            yield _one(f"{field} gzip {path}", request(path, body, field, "Content-Encoding: gzip"))
    private = (
        "Access-Control-Request-Method: POST",
        "Access-Control-Request-Private-Network: true",
    )
    yield _one(
        "private preflight", request("/reward", b"", f"Origin: {SHOP}", *private, method="OPTIONS")
    )
    yield from _whole(f"Origin: {SHOP}", f"Origin: {EVIL}")
    yield from _whole(f"Origin: {SHOP}", "Sec-Fetch-Site: cross-site")
    yield from _whole(f"Origin: {SHOP}", host="evil.example")


def keyed() -> Iterator[Exchange]:
    """Requests to a service that requires keys, a name of one in braces."""
    for credential in (
        *(None, "Authorization: Bearer wrong", "Authorization: Basic YTpi", "X-API-Key: wrong"),
        *("Authorization: Bearer {all}", "X-API-Key: {all}", "X-API-Key: {page}"),
        *("Authorization: Bearer {revoked}", "Authorization: Bearer {elsewhere}"),
    ):
        fields = [credential] if credential else []
        yield from _whole(*fields)
        yield from _whole(*fields, f"Origin: {SHOP}")
        yield from _whole(*fields, f"Origin: {EVIL}")
    yield from _whole("X-API-Key: {all}", "Authorization: Bearer {page}")
    yield from _whole("X-API-Key: {all}", host="evil.example")
    yield from _whole("X-API-Key: {all}", "Content-Encoding: gzip")
    for path, body in BODIES.items():
        for turn in range(4):
            yield _one(f"a rate, {turn} {path}", request(path, body, "X-API-Key: {slow}"))
        small = request(path, b" " * 900 + body, "X-API-Key: {small}")
        yield _one(f"a profile {path}", small)
        head = request(path, b"", "X-API-Key: {small}", "Transfer-Encoding: chunked", length=False)
        yield _one(f"a profile, chunked {path}", head + chunked(b" " * 900 + body, 300))
        waiting = request(path, body, "Expect: 100-continue")
        yield Exchange(f"refused before its body {path}", [waiting[: -len(body)], body, HEALTH])
        yield _one(f"GET {path}", request(path, body, "X-API-Key: {all}", method="GET"))
        yield _one(f"no key, PUT {path}", request(path, body, method="PUT"))


def starting() -> Iterator[Exchange]:
    """Requests to a service that reads its log."""
    yield from _whole("X-Request-ID: r")
    yield from _whole("X-Request-ID: r", f"Origin: {SHOP}")
    yield from _whole("Content-Encoding: gzip")
    yield from _whole(host="evil.example")


def draining() -> Iterator[Exchange]:
    """Requests to a service that stops."""
    yield from _whole()
    for path, body in BODIES.items():
        yield Exchange(f"pipelined {path}", [request(path, body) * 2 + HEALTH])
        yield Exchange(f"in halves {path}", [request(path, body)[:-5], 0.1, body[-5:]])
        yield Exchange(f"refused {path}", [request(path, b"{") + HEALTH])


def overloaded() -> Iterator[Exchange]:
    """Requests to a service with too many under way."""
    yield from _whole(f"Origin: {SHOP}")
    yield from _whole(f"Origin: {EVIL}", "X-Request-ID: r")
    for path, body in BODIES.items():
        yield Exchange(f"behind {path}", [HEALTH + request(path, body) * 2])
        yield Exchange(f"half {path}", [request(path, body)[:-5], 0.1, body[-5:] + HEALTH])


def _keys(folder: Path) -> Keys:
    keys = Keys(folder / "keys.json")
    keys.add("all", "select", "reward", "admin", "metrics")
    keys.add("page", "select", "reward", experiments=["shop"], origins=[SHOP])
    keys.add("revoked", "select", "reward", revoked="2026-01-01T00:00:00Z")
    keys.add("elsewhere", "select", "reward", experiments=["elsewhere"])
    keys.add("slow", "select", "reward", rate="9/hour")
    keys.add("small", "select", "reward", profile={"body_bytes": 800})
    return keys


class Kind(NamedTuple):
    """A kind of service. prepare: what is done with it before it is asked."""

    exchanges: Callable[[], Iterator[Exchange]]
    settings: Json
    prepare: Callable[[Wire], None] = lambda wire: None


def _overload(wire: Wire) -> None:
    wire.services.overload.waiting = 1_000


def _start(wire: Wire) -> None:
    wire.services.lifecycle.starting = True


def _drain(wire: Wire) -> None:
    wire.services.lifecycle.draining = True


BOUNDS: Final[Json] = {"max_head_bytes": HEAD_BYTES, "max_body_bytes": BODY_BYTES}
ORIGINS: Final[Json] = {"cors_origins": f"{SHOP}, http://localhost:5173"}
KINDS: Final = {
    "plain": Kind(plain, BOUNDS),
    "listed": Kind(listed, {**BOUNDS, **ORIGINS}),
    "keyed": Kind(keyed, {**BOUNDS, **ORIGINS}),
    "starting": Kind(starting, ORIGINS, _start),
    "draining": Kind(draining, {}, _drain),
    "overloaded": Kind(overloaded, {"max_pending": 2, **ORIGINS}, _overload),
}


@contextmanager
def served(name: str, folder: Path) -> Iterator[tuple[Wire, list[Exchange]]]:
    """Serve a kind with a clock that stands still and seeded generators; yield its exchanges."""
    kind, clock = KINDS[name], StillClock()
    clock.rng = Random(name)
    settings, keys = {"token_keys": [SECRET], **kind.settings}, None
    if name == "keyed":
        folder.mkdir(exist_ok=True)
        keys = _keys(folder)
        settings |= {"keys": keys.path, "allowed_hosts": ["forage"]}
    ids = mock.patch.multiple(request_id, _process="", _numbers=count())
    with ids, serving(clock=clock, **settings) as wire:
        kind.prepare(wire)
        yield wire, [_with_keys(each, keys) for each in kind.exchanges()]
        if name == "starting":
            wire.services.lifecycle.starting = False


def _with_keys(exchange: Exchange, keys: Keys | None) -> Exchange:
    if keys is None:
        return exchange
    parts: list[bytes | float] = []
    for part in exchange.parts:
        for key in ("all", "page", "revoked", "elsewhere", "slow", "small"):
            if isinstance(part, bytes):
                part = part.replace(b"{%b}" % key.encode(), keys.text(key).encode())
        parts.append(part)
    return exchange._replace(parts=parts)


def over_a_connection(wire: Wire, exchange: Exchange) -> tuple[bytes, str]:
    """Return all that a client gets, and what becomes of its connection."""
    plug = Plug(wire)
    for part in exchange.parts:
        if isinstance(part, float):
            wire.sleep(part)
        else:
            plug.send(part)
    wire.sleep(SETTLED_S)
    client = plug.transport
    fate = "closed" if client.closed else "ended" if client.ended else "kept"
    if not client.closed:
        wire.run(_leave(plug))
    return client.sent, fate


def of_any_connection(answer: bytes) -> bytes:
    """Return an answer without what only a connection adds to it."""
    answer = answer.removeprefix(CONTINUE)
    for line in (b"server: uvicorn\r\n", b"connection: close\r\n"):
        answer = answer.replace(line, b"", 1)
    return answer


async def _leave(plug: Plug) -> None:
    plug.transport.closed = True
    plug.protocol.connection_lost(None)


class _Parsed:
    """One request as httptools reads it."""

    def __init__(self, data: bytes) -> None:
        self.url = self.body = b""
        self.headers: list[tuple[bytes, bytes]] = []
        parser = httptools.HttpRequestParser(self)
        try:
            parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self.body = data[upgrade.args[0] :]
        self.method, self.version = parser.get_method().decode(), parser.get_http_version()

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_body(self, body: bytes) -> None:
        self.body += body


def through_asgi(wire: Wire, exchange: Exchange) -> bytes:
    """Return what a client would get over a connection that is kept, by an ASGI server."""
    parsed = _Parsed(b"".join(part for part in exchange.parts if isinstance(part, bytes)))
    raw, _, query = parsed.url.partition(b"?")
    scope: Json = {
        "type": "http", "method": parsed.method, "http_version": parsed.version, "scheme": "http",
        "path": unquote(raw.decode()), "raw_path": raw, "query_string": query, "root_path": "",
        "headers": parsed.headers, "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2),
    }  # fmt: skip
    sent: list[Json] = []

    async def receive() -> Json:
        return {"type": "http.request", "body": parsed.body, "more_body": False}

    async def send(message: Json) -> None:
        sent.append(message)

    waited = sum(part for part in exchange.parts if isinstance(part, float))
    wire.sleep(waited)
    wire.run(wire.app(scope, receive, send))
    wire.sleep(SETTLED_S)
    lines = b"".join(b"%b: %b\r\n" % field for field in sent[0]["headers"])
    body = b"".join(part.get("body", b"") for part in sent[1:])
    body = b"" if parsed.method == "HEAD" else body
    return STATUS_LINE[sent[0]["status"]] + lines + b"\r\n" + body


def counted(wire: Wire) -> str:
    """Return what the service counted of requests."""
    exposed = wire.services.telemetry.expose(wire.services.log.replicas.policies)
    text = wire.run(exposed).decode()
    counts = re.compile("forage_(http_requests|refused|shed|stage_seconds)[a-z_]*_(total|count)")
    return "\n".join(line for line in text.splitlines() if counts.match(line))
