"""Connections are bounded in bytes and in time, and all of them in number. Tests set the clock."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from service.errors import ConfigurationError
from service.http.bounded import UNHEARD_BYTES, protocol
from service.http.connection import MOST, REASONS, Limits, Reason, limits_of
from service.http.connections import Connections
from service.observability.telemetry import Telemetry
from service.settings import Settings
from tests.support.plug import Connection, head
from tests.support.service import Wire, expect_problem, serving

LIMITS = Limits(connections=8, per_address=100)
JSON = {"Content-Type": "application/json"}
BODY = b'{"context": {"persona": "cat"}, "policy": "linucb"}'
SELECT = head("/select", len(BODY), JSON) + BODY
"""For the hot path."""
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: forage\r\n\r\n"
HALF_HEAD = b"GET /healthz HTTP/1.1\r\nHost: for"
ARMS = head("/arms", 100, JSON)
"""A head whose body is to come."""
CHUNKED = ARMS.replace(b"Content-Length: 100", b"Transfer-Encoding: chunked")


class Service:
    """The protocol of a service on a clock of its own. Once a second it looks at connections."""

    def __init__(self, wire: Wire, limits: Limits, trusted: Any, now: float = 0.0) -> None:
        self.wire, self.now, self.telemetry = wire, now, Telemetry()
        self.connections = Connections(limits, trusted, self.telemetry, lambda: self.now)
        self._protocol = protocol(self.connections, wire.services.shedding)

    def connect(self, peer: str = "127.0.0.1") -> Connection:
        return Connection(self.wire.app, self._protocol, self.wire.run, peer)

    def seconds(self, count: float, each: Callable[[], object] = lambda: None) -> None:
        """each: called before each second."""
        for _ in range(int(count)):
            each()
            self.now += 1.0

            async def look() -> None:
                self.connections.look()

            self.wire.run(look())

    def ended(self) -> dict[Reason, int]:
        counts = {reason: self.telemetry.closed.labels(reason).count for reason in REASONS}
        return {reason: count for reason, count in counts.items() if count}

    def states(self) -> dict[str, float]:
        lines = self.telemetry.expose().decode().splitlines()
        found = [line for line in lines if line.startswith("forage_connections{")]
        return {line.split('"')[1]: float(line.split()[-1]) for line in found}


@pytest.fixture(scope="module")
def wire() -> Iterator[Wire]:
    with serving() as wire:
        yield wire


@pytest.fixture(params=[0.0, 1e9], ids=["up-0-s", "up-for-long"])
def service(request: pytest.FixtureRequest, wire: Wire) -> Service:
    """On a host that was booted just now, and on another one."""
    return Service(wire, LIMITS, (), request.param)


def ask(connection: Connection, request: bytes = SELECT) -> httpx.Response:
    connection.send(request)
    return connection.receive()


def expect_end(connection: Connection, status: int) -> None:
    """The client was told, and nothing more is read of it."""
    answer = connection.receive()
    expect_problem(answer, status)
    assert answer.headers["connection"] == "close"
    assert connection.transport.ended
    connection.send(SELECT)
    assert not connection.transport.sent


def of_arms(body: bytes) -> bytes:
    return head("/arms", len(body), JSON) + body


# -- bytes of a head -----------------------------------------------------------------------------


def test_a_header_that_never_ends_is_refused_at_the_bound(service: Service) -> None:
    client = service.connect()
    client.send(HALF_HEAD)
    for _ in range(LIMITS.head_bytes // 1_024 - 1):
        client.send(b"a" * 1_024)
    assert not client.transport.sent
    client.send(b"a" * 1_024)
    expect_end(client, 431)
    assert service.ended() == {"head_size": 1}


def test_what_is_sent_after_a_refusal_is_read_only_so_far(service: Service) -> None:
    client = service.connect()
    client.send(HALF_HEAD + b"a" * 20_000)
    expect_end(client, 431)
    assert not client.transport.paused
    client.send(b"a" * UNHEARD_BYTES)
    assert client.transport.paused
    service.seconds(LIMITS.linger_seconds + 1)
    assert client.transport.closed


@pytest.mark.parametrize("parts", [1, 7])
def test_a_head_may_have_its_bound_and_not_a_byte_more(service: Service, parts: int) -> None:
    def status(size: int) -> int:
        more = b"X-A: %b\r\n\r\n"
        request = HEALTH[:-2] + more % (b"a" * (size - len(HEALTH) - len(more) + len("%b\r\n")))
        assert len(request) == size
        client = service.connect()
        step = -(-len(request) // parts)
        for start in range(0, len(request), step):
            client.send(request[start : start + step])
        return client.receive().status_code

    assert status(LIMITS.head_bytes) == 200
    assert status(LIMITS.head_bytes + 1) == 431


@pytest.mark.parametrize(("fields", "status"), [(100, 200), (101, 431)])
def test_a_head_may_have_a_hundred_fields(service: Service, fields: int, status: int) -> None:
    more = b"a: b\r\n" * (fields - 1)
    assert ask(service.connect(), HEALTH[:-2] + more + b"\r\n").status_code == status


def test_a_target_that_comes_byte_by_byte_is_no_hundred_fields(service: Service) -> None:
    client = service.connect()
    for byte in HEALTH.replace(b"/healthz", b"/healthz?" + b"a" * 200):
        client.send(bytes([byte]))
    assert client.receive().status_code == 200


@pytest.mark.parametrize(
    "endless",
    [b"5;extension=", b"5\r\nhello\r\n0\r\nX-Trailer: ", b"0" * 100],
    ids=["extension of a chunk", "trailer", "size of a chunk"],
)
def test_what_lies_around_a_body_is_bounded_too(service: Service, endless: bytes) -> None:
    client = service.connect()
    client.send(CHUNKED + endless)
    for _ in range(20):
        client.send((b"0" if endless.startswith(b"00") else b"a") * 1_024)
    assert client.receive().status_code in (400, 431)
    assert client.transport.ended or client.transport.closed


def test_trailers_are_counted_with_the_headers(service: Service) -> None:
    client = service.connect()
    client.send(CHUNKED + b"0\r\n" + b"a: b\r\n" * 101)
    expect_end(client, 431)


def test_requests_sent_ahead_are_no_large_head(service: Service) -> None:
    client = service.connect()
    many = LIMITS.head_bytes // len(HEALTH) * 3
    client.send(HEALTH * many + HEALTH[:30])
    for _ in range(many):
        assert client.receive().status_code == 200
    client.send(HEALTH[30:])
    assert client.receive().status_code == 200


def test_what_is_not_http_is_told_so_in_one_shape(service: Service) -> None:
    client = service.connect()
    client.send(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")  # TLS
    expect_end(client, 400)
    assert service.ended() == {"malformed": 1}


def test_an_upgrade_is_answered_as_what_it_asks_for(service: Service) -> None:
    upgrade = b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    assert ask(service.connect(), HEALTH[:-2] + upgrade).status_code == 200


# -- time ----------------------------------------------------------------------------------------


def test_a_connection_that_says_nothing_is_closed(service: Service) -> None:
    client = service.connect()
    service.seconds(LIMITS.unused_seconds)
    assert not client.transport.closed
    service.seconds(1)
    assert client.transport.closed
    assert service.ended() == {"unused": 1}


@pytest.mark.parametrize("request_", [SELECT, HEALTH], ids=["hot path", "ordinary"])
def test_a_silent_connection_is_closed_and_a_busy_one_is_not(
    service: Service, request_: bytes
) -> None:
    client = service.connect()
    for _ in range(5):
        assert ask(client, request_).status_code == 200
        service.seconds(LIMITS.idle_seconds - 1)
    assert not client.transport.closed
    service.seconds(2)
    assert client.transport.closed
    assert service.ended() == {"idle": 1}


def test_an_answer_may_take_any_time(service: Service) -> None:
    client = service.connect()
    client.protocol.bounds.asked()
    service.seconds(600)
    assert not client.transport.closed
    client.protocol.bounds.answered()
    service.seconds(LIMITS.idle_seconds + 1)
    assert client.transport.closed


def test_a_head_that_drips_is_refused_in_time(service: Service) -> None:
    client = service.connect()
    client.send(HALF_HEAD)
    service.seconds(LIMITS.head_seconds, lambda: client.send(b"a"))
    assert not client.transport.sent
    service.seconds(1)
    expect_end(client, 408)
    assert service.ended() == {"head_time": 1}


@pytest.mark.parametrize("path", ["/arms", "/experiments/shop/policies/linucb/versions"])
def test_half_a_body_is_refused_in_time_and_is_no_fault_of_the_service(
    wire: Wire, service: Service, path: str
) -> None:
    client = service.connect()
    client.send(head(path, 100, JSON) + b'{"arms"')
    service.seconds(LIMITS.body_seconds)
    assert not client.transport.sent
    service.seconds(1, lambda: client.send(b":"))
    expect_end(client, 408)
    assert service.ended() == {"body_time": 1}
    wire.sleep(0)  # its route has ended, too
    counted = [name for name in wire.metrics() if name.startswith("forage_http_requests_total")]
    assert not [name for name in counted if 'status="5' in name]


def test_a_body_has_longer_the_more_of_it_came(service: Service) -> None:
    client = service.connect()
    size = 300 * LIMITS.bytes_per_second
    client.send(head("/experiments/shop/policies/linucb/versions", size, {}))
    service.seconds(300, lambda: client.send(b"a" * LIMITS.bytes_per_second))
    assert expect_problem(client.receive(), 422)


def test_a_body_that_the_service_does_not_read_is_not_late(service: Service) -> None:
    client = service.connect()
    client.send(ARMS)
    client.protocol.flow.pause_reading()
    service.seconds(100)
    client.protocol.flow.resume_reading()
    service.seconds(LIMITS.body_seconds - 1)
    assert not client.transport.sent
    service.seconds(2)
    expect_end(client, 408)


def test_an_answer_that_nobody_reads_is_given_up(service: Service) -> None:
    slow, steady = service.connect(), service.connect()
    for client in (slow, steady):
        ask(client)
        client.transport.unread = 10_000_000

    def take() -> None:
        slow.transport.unread -= 1
        steady.transport.unread -= LIMITS.bytes_per_second

    service.seconds(LIMITS.answer_seconds, take)
    assert not slow.transport.closed
    service.seconds(2, take)
    assert slow.transport.closed
    assert service.ended() == {"unread": 1}
    service.seconds(300, take)
    assert not steady.transport.closed


def test_a_refusal_never_lands_within_an_answer(service: Service) -> None:
    """A client that sends half a head while its request waits is closed without a word."""
    client = service.connect()
    client.send(ARMS + b'{"arms"')
    client.protocol.cycle.response_started = True
    service.seconds(LIMITS.body_seconds + 1)
    assert client.transport.closed
    assert not client.transport.sent


def test_time_in_which_the_process_stood_still_is_nobodys(service: Service) -> None:
    client = service.connect()
    client.send(HALF_HEAD)
    service.now += 600
    service.seconds(LIMITS.head_seconds - 2)
    assert not client.transport.sent
    service.seconds(5)
    expect_end(client, 408)


# -- number --------------------------------------------------------------------------------------


def closed(clients: list[Connection]) -> list[bool]:
    return [client.transport.closed for client in clients]


def test_a_new_connection_takes_the_place_of_the_one_that_waits_longest(service: Service) -> None:
    clients = []
    for begin in (b"", HALF_HEAD, HEALTH, b"", HALF_HEAD, HEALTH, SELECT, SELECT):
        client = service.connect()
        client.send(begin)
        service.now += 0.01
        clients.append(client)
    ask(clients[2], HEALTH)  # it is younger now than all others
    for count in range(1, 4):
        assert ask(service.connect()).status_code == 200
        assert sum(closed(clients)) == count
    assert closed(clients) == [True, True, False, True] + [False] * 4
    assert service.ended() == {"room": 3}
    assert len(service.connections) == LIMITS.connections


def test_one_that_is_at_work_is_never_closed_for_another(service: Service) -> None:
    clients = [service.connect() for _ in range(LIMITS.connections)]
    for client in clients:
        client.protocol.bounds.asked()
    late = service.connect()
    expect_problem(late.receive(), 503)
    assert late.transport.closed
    assert service.ended() == {"bound": 1}
    assert not any(closed(clients))
    service.now += 1.0
    clients[3].protocol.bounds.answered()
    assert ask(service.connect()).status_code == 200
    assert clients[3].transport.closed


def test_a_body_that_drips_makes_room_and_one_that_flows_does_not(service: Service) -> None:
    clients = [service.connect() for _ in range(LIMITS.connections)]
    for client in clients:
        client.send(head("/arms", 10_000_000, JSON))
    expect_problem(service.connect().receive(), 503)

    def send() -> None:
        for client in clients[:-1]:
            client.send(b" " * LIMITS.bytes_per_second)
        clients[-1].send(b" ")

    service.seconds(4, send)
    assert ask(service.connect()).status_code == 200
    assert closed(clients) == [False] * 7 + [True]


def test_an_address_has_its_share_and_is_its_own_rival(wire: Wire) -> None:
    service = Service(wire, Limits(connections=8, per_address=4), ())
    mine = [service.connect("10.0.0.1") for _ in range(4)]
    yours = service.connect("10.0.0.2")
    service.now += 1.0
    for _ in range(6):
        service.connect("10.0.0.1")
        service.now += 1.0
    assert closed(mine) == [True] * 4
    assert not yours.transport.closed
    for _ in range(4):
        service.connect("10.0.0.3").protocol.bounds.asked()
    expect_problem(service.connect("10.0.0.3").receive(), 503)
    assert service.ended() == {"room": 7, "address": 1}


@pytest.mark.parametrize(
    ("peers", "held"),
    [
        (["10.0.0.1", "::ffff:10.0.0.1"], 2),
        (["fd00::1", "fd00::2:3"], 2),
        (["fd00::1", "fd00:0:0:1::1"], 4),
        (["192.168.0.1", "192.168.9.9"], 4),
        (["192.168.0.1"], 4),
    ],
)
def test_an_address_is_one_of_ipv4_or_a_network_of_ipv6_or_a_trusted_proxy(
    wire: Wire, peers: list[str], held: int
) -> None:
    trusted = Settings(trusted_proxies="192.168.0.0/16, 10.9.9.9").trusted_proxies
    service = Service(wire, Limits(connections=100, per_address=2), trusted)
    clients = [service.connect(peer) for peer in peers for _ in range(4 // len(peers))]
    assert closed(clients).count(False) == held


def test_a_connection_that_is_gone_is_counted_no_more(service: Service) -> None:
    clients = [service.connect() for _ in range(3)]
    for client in clients:
        for _ in range(2):
            client.protocol.connection_lost(None)
            client.protocol.transport = client.transport
    assert len(service.connections) == 0


def test_connections_are_told_by_what_they_do(service: Service) -> None:
    clients = [service.connect() for _ in range(6)]
    clients[1].send(HALF_HEAD)
    clients[2].send(ARMS)
    ask(clients[3])
    clients[4].protocol.bounds.asked()
    clients[5].send(b"\x16\x03")
    once = dict.fromkeys(("new", "head", "body", "idle", "answer", "closing"), 1.0)
    assert service.states() == once
    assert b"forage_connections_bound 8.0" in service.telemetry.expose()


# -- settings ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "connections"),
    [(128, 64), (256, 192), (1_024, 896), (4_096, 3_584), (1_048_576, MOST), (-1, MOST), (20, 1)],
)
def test_as_many_connections_as_open_files_leave_room_for(files: int, connections: int) -> None:
    limits = limits_of(Settings(), files)
    assert (limits.connections, limits.per_address) == (connections, max(1, connections // 2))


def test_more_connections_than_files_stop_the_start() -> None:
    assert limits_of(Settings(max_connections=900), 1_024).connections == 900
    assert limits_of(Settings(max_connections=9_000), -1).connections == 9_000
    with pytest.raises(ConfigurationError, match=r"FORAGE_MAX_CONNECTIONS: 1000 .*ulimit"):
        limits_of(Settings(max_connections=1_000), 1_024)


def test_a_head_has_the_size_that_is_set(wire: Wire) -> None:
    service = Service(wire, limits_of(Settings(max_head_bytes=1_000)), ())
    client = service.connect()
    client.send(HALF_HEAD + b"a" * 1_000)
    expect_end(client, 431)


def test_refusals_have_one_shape(service: Service) -> None:
    client = service.connect()
    client.send(HALF_HEAD + b"a" * 20_000)
    assert json.loads(client.receive().content)["type"].endswith("/head-too-large")


@pytest.mark.parametrize("target", [b"http://[", b"http://", b"http://:x"])
def test_a_target_that_is_none_is_refused_as_what_is_no_http(
    service: Service, target: bytes
) -> None:
    connection = service.connect()
    connection.send(HEALTH.replace(b"/healthz", target))
    expect_problem(connection.receive(), 400)
    assert service.ended() == {"malformed": 1}


def test_requests_sent_ahead_end_with_their_connection(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is written to a connection that is gone, for the first of them no more than for the
    last."""
    connection = service.connect()
    asked = HEALTH.replace(b"/healthz", b"/openapi.json") * 3

    async def cut_off() -> None:
        connection.protocol.data_received(asked)
        connection.transport.closed = True
        connection.protocol.connection_lost(ConnectionResetError())
        connection.transport.sent = b""

    service.wire.run(cut_off())
    service.wire.sleep(0.05)
    assert connection.transport.sent == b""
    assert not connection.protocol.pipeline
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
