"""Below the routes: heads, lengths, bodies and connections that no library would send. No key."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Final

from tests.attack.hostile.shots import ENDLESS, TENANT, Arsenal, Attack, Shot

DRIP_S: Final = 0.5
"""Between two pieces of a slow request: less than any permitted time without a byte."""
LONG: Final = b"x" * 65_536


def endless_heads(arms: Arsenal, rng: Random) -> Attack:
    """Endless request lines, headers, chunk frames and trailers."""
    start = f"POST /select HTTP/1.1\r\nHost: {arms.host}\r\n".encode()
    chunked = start + b"Transfer-Encoding: chunked\r\n\r\n"
    whole = b"5;\r\nhello\r\n0\r\n"
    fields = b"".join(b"X-%d: %d\r\n" % (number, number) for number in range(4_000))
    folded = b"".join(b" %d\r\n" % number for number in range(4_000))
    kinds: list[tuple[bytes, bytes]] = [
        (b"GET /", b"a" * 65_536),
        (b"GET /healthz?", b"a=b&" * 16_384),
        (b"G", b"G" * 65_536),
        (start + b"X-Endless: ", LONG),
        (start, LONG),
        (start, fields),
        (start + b"X-Folded: a\r\n", folded),
        (start + b"Cookie: ", b"a=b; " * 13_000),
        (start + b"Authorization: Bearer ", LONG),
        (chunked + b"5;", LONG),
        (chunked, b"0" * 65_536),
        (chunked + whole, fields),
        (chunked + whole + b"X-Trailer: ", LONG),
    ]
    while True:
        first, rest = rng.choice(kinds)
        more = rng.choice([100_000, 1_000_000, ENDLESS])
        yield Shot([first, rest], again=more, whole=False)


def half_open(arms: Arsenal, rng: Random) -> Attack:
    """Connections that are opened, and then wait: before, within and after a request."""
    host = arms.host.encode()
    asked = b"GET /healthz HTTP/1.1\r\nHost: %b\r\n\r\n" % host
    body = b"POST /select HTTP/1.1\r\nHost: %b\r\nContent-Type: application/json\r\n" % host
    idle: Sequence[Sequence[bytes]] = [
        [],
        [b"P"],
        [b"\r\n"],
        [asked[:-2]],
        [asked[: len(asked) // 2]],
        [body + b"Content-Length: 100\r\n\r\n"],
        [body + b'Content-Length: 100\r\n\r\n{"context": {'],
        [body + b"Transfer-Encoding: chunked\r\n\r\n40\r\n{"],
        [body + b"Expect: 100-continue\r\nContent-Length: 100\r\n\r\n"],
    ]
    drips: Sequence[tuple[bytes, bytes]] = [
        (asked[:-2], b"X: y\r\n"),
        (body + b"Content-Length: 1000000\r\n\r\n", b" "),
        (b"", b"\r\n"),
        (b"GET /", b"a"),
    ]
    unread = b"GET /openapi.json HTTP/1.1\r\nHost: %b\r\n\r\n" % host
    while True:
        draw = rng.random()
        if draw < 0.7:
            yield Shot(rng.choice(idle), whole=False)
        elif draw < 0.9:
            first, rest = rng.choice(drips)
            yield Shot([first, rest], again=10_000, pause_s=DRIP_S, whole=False)
        else:
            yield Shot([unread], again=100 * len(unread), whole=False, reads=False)


def lengths(arms: Arsenal, rng: Random) -> Attack:
    """Wrong lengths and framings."""
    digits = [
        b"9" * 5_000,
        b"9" * 19,
        b"18446744073709551616",
        b"-1",
        b"+5",
        b"0x10",
        b"1e3",
        b"5, 5",
        b" ",
        b"\xd9\xa3",
        b"1048577",
        b"268435457",
    ]
    frames = [
        b"Transfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFF\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n-5\r\nhello\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n" + b"f" * 5_000 + b"\r\n",
        b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding: xchunked\r\nContent-Length: 2\r\n\r\n{}",
        b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}x",
        b"Content-Length: 0\r\n\r\n",
        b"\r\n",
    ]
    paths = [b"/select", b"/reward", b"/beacon", b"/select/batch", b"/nowhere"]
    while True:
        head = b"POST %b HTTP/1.1\r\nHost: %b\r\n" % (rng.choice(paths), arms.host.encode())
        if rng.random() < 0.8:
            key = f"Authorization: Bearer {arms.keys[TENANT]}\r\n".encode()
            head += key if rng.random() < 0.5 else b""
        head += b"Content-Type: application/json\r\n"
        if rng.random() < 0.5:
            tail = b"Content-Length: " + rng.choice(digits) + b"\r\n\r\n" + b"{}" * 8
        else:
            tail = rng.choice(frames)
        # The rest is a part of the next request, or malformed.
        yield Shot([head + tail], whole=False)


def malformed(arms: Arsenal, rng: Random) -> Attack:
    """Malformed and unusual requests, and many at once."""
    host = arms.host.encode()
    line = b"GET /healthz HTTP/1.1\r\nHost: %b\r\n" % host
    kinds = [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(100),
        b"GET /healthz\r\n\r\n",
        b"GET /healthz HTTP/9.9\r\n\r\n",
        b"GET http://evil.example/select HTTP/1.1\r\nHost: evil.example\r\n\r\n",
        b"CONNECT evil.example:443 HTTP/1.1\r\nHost: evil.example\r\n\r\n",
        b"TRACE / HTTP/1.1\r\nHost: %b\r\n\r\n" % host,
        b"OPTIONS * HTTP/1.1\r\nHost: %b\r\n\r\n" % host,
        b"GET /healthz HTTP/1.1\r\n\r\n",
        line + b"Host: other.example\r\n\r\n",
        line + b"X-Null: a\x00b\r\n\r\n",
        line + b"X\xff\xfe: \xff\r\n\r\n",
        line + b": empty\r\n\r\n",
        line + b"X: a\n\n",
        line + b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
        line + b"Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\n\r\n",
        line + b"Expect: 200-ok\r\n\r\n",
        line + b"Range: bytes=0-,0-,0-,0-\r\n\r\n",
        line + b"Accept-Encoding: " + b"gzip;q=1.0," * 400 + b"\r\n\r\n",
        line + b"X-Request-Id: " + b"\xc3\xa9" * 200 + b"\r\n\r\n",
        (line + b"\r\n") * 200,
        b"GET /%%ff%%fe%%00/../../etc/passwd HTTP/1.1\r\nHost: %b\r\n\r\n" % host,
        bytes(rng.randrange(256) for _ in range(2_000)),
    ]
    while True:
        # Some are answered, others closed.
        yield Shot([rng.choice(kinds)], whole=False)


def slow_bodies(arms: Arsenal, rng: Random) -> Attack:
    """Bodies sent a few bytes at a time by the holder of a key."""
    while True:
        path = rng.choice(["/select", "/reward/batch", "/experiments/attacker"])
        method = "PUT" if path.startswith("/experiments") else "POST"
        asked = arms.ask(method, path, b"x" * 1_000, key=TENANT)
        head = asked.pieces[0][:-1_000]
        step = rng.choice([1, 10, 40])
        yield replace(asked, pieces=[head, b" " * step], again=1_000, pause_s=DRIP_S, whole=False)


EDGE: Final[dict[str, Callable[[Arsenal, Random], Attack]]] = {
    "endless heads": endless_heads,
    "half-open connections": half_open,
    "lengths": lengths,
    "malformed": malformed,
    "slow bodies": slow_bodies,
}
