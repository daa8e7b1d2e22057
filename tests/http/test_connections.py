"""Connections are bounded in number, heads in bytes, requests in time; overload refuses some."""

import asyncio
from collections.abc import Iterator

import pytest

from service.decide.select import Selector
from service.errors import ConfigurationError
from service.http.protocol import (
    DEFAULT_CONNECTIONS,
    IDLE_SECONDS,
    LINGER_SECONDS,
    TIMEOUT_SECONDS,
    UNREAD_SECONDS,
    connection_limit,
)
from service.settings import Settings
from tests.support.plug import Plug, head
from tests.support.service import Wire, expect_problem, serving

JSON = {"Content-Type": "application/json"}
BODY = b'{"context": {"persona": "cat"}, "policy": "linucb"}'
SELECT = head("/select", len(BODY), JSON) + BODY
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: forage\r\n\r\n"
HALF_HEAD = b"GET /healthz HTTP/1.1\r\nHost: for"
HALF_BODY = head("/arms", 100, JSON) + b'{"arms"'
CHUNKED = head("/select", 100, JSON).replace(b"Content-Length: 100", b"Transfer-Encoding: chunked")
HEAD_BYTES = 16_384
KEEP_ALIVE_SECONDS = 75


@pytest.fixture(scope="module")
def wire() -> Iterator[Wire]:
    with serving() as wire:
        yield wire


@pytest.fixture
def plug(wire: Wire) -> Plug:
    return Plug(wire)


def expect_end(plug: Plug, status: int, slug: str) -> None:
    """The client reads why, sends nothing more, and loses its connection."""
    answer = plug.receive()
    assert expect_problem(answer, status)["type"].endswith(f"/{slug}")
    assert answer.headers["connection"] == "close"
    assert plug.transport.ended
    assert plug.transport.paused
    plug.send(SELECT)
    assert not plug.transport.sent


def test_an_answer_to_head_has_no_body(plug: Plug) -> None:
    plug.send(HEALTH.replace(b"GET", b"HEAD"))
    plug.wait()
    assert plug.transport.sent.startswith(b"HTTP/1.1 200")
    assert plug.transport.sent.endswith(b"\r\n\r\n")


# -- heads -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("parts", [1, 7])
@pytest.mark.parametrize("bound", [HEAD_BYTES, 1_000])
def test_a_head_may_have_its_bound_and_no_byte_more(bound: int, parts: int) -> None:
    with serving(max_head_bytes=bound) as wire:
        for more in (0, 1):
            plug = Plug(wire)
            filler = b"a" * (bound + more - len(HEALTH) - len("X-A: \r\n"))
            request = HEALTH[:-2] + b"X-A: %b\r\n\r\n" % filler
            step = -(-len(request) // parts)
            for start in range(0, len(request), step):
                plug.send(request[start : start + step])
            if more == 0:
                assert plug.receive().status_code == 200
        expect_end(plug, 431, "head-too-large")
        wire.sleep(LINGER_SECONDS + 0.1)
        assert plug.transport.closed


@pytest.mark.parametrize("endless", [b"5;extension=", b"5\r\nhello\r\n0\r\nX-Trailer: "])
def test_chunk_extensions_and_trailers_are_bounded_too(plug: Plug, endless: bytes) -> None:
    plug.send(CHUNKED + endless)
    for _ in range(20):
        plug.send(b"a" * 1_024)
    expect_end(plug, 431, "head-too-large")


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS
        HEALTH.replace(b"/healthz", b"http://["),
        CHUNKED + b"no size\r\n",
    ],
    ids=["TLS", "no target", "no size of a chunk"],
)
def test_garbage_is_refused_in_the_shape_of_all_errors(plug: Plug, garbage: bytes) -> None:
    plug.send(garbage)
    expect_end(plug, 400, "malformed-http")


@pytest.mark.parametrize(
    "request_",
    [
        HEALTH.replace(b"Host: forage\r\n", b""),
        HEALTH.replace(b"Host: forage\r\n", b"Host: forage\r\nHost: forage\r\n"),
        CHUNKED.replace(b"HTTP/1.1", b"HTTP/1.0") + b"2\r\n{}\r\n0\r\n\r\n",
        HEALTH.replace(b"/healthz", b"/experiments/%ff"),
        HEALTH.replace(b"/healthz", b"/healthz?a=%c3"),
        HEALTH.replace(b"/healthz", b"http://forage/%ff"),
    ],
    ids=["no host", "two hosts", "1.0 in chunks", "path", "query", "absolute"],
)
def test_a_head_without_a_single_meaning_is_refused(plug: Plug, request_: bytes) -> None:
    plug.send(request_)
    expect_end(plug, 400, "malformed-http")


def test_an_old_request_without_a_host_is_served(plug: Plug) -> None:
    plug.send(b"GET /healthz HTTP/1.0\r\n\r\n")
    assert plug.receive().status_code == 200


@pytest.mark.parametrize(
    ("target", "status"),
    [
        (b"http://forage/experiments", 200),
        (b"http://FORAGE:8000/experiments?a=%20", 200),
        (b"http://[::1]:8000/experiments", 200),
        (b"http://evil.example/experiments", 421),
        (b"https://evil.example", 421),
    ],
)
def test_a_target_that_names_a_host_counts_before_the_header(
    plug: Plug, target: bytes, status: int
) -> None:
    for host in (b"forage", b"evil.example"):
        line = b"GET %b HTTP/1.1\r\nHost: %b\r\n\r\n" % (target, host)
        plug.send(line)
        assert plug.receive().status_code == status


# -- requests in unusual pieces --------------------------------------------------------------------


@pytest.mark.parametrize("cut", [1, 20, len(SELECT) - len(BODY), len(SELECT) - 3])
def test_a_request_in_two_parts_or_in_chunks_is_answered(wire: Wire, plug: Plug, cut: int) -> None:
    plug.send(SELECT[:cut])
    plug.send(SELECT[cut:])
    assert plug.receive().status_code == 200
    wire.sleep(KEEP_ALIVE_SECONDS - 1)
    assert not plug.transport.closed
    plug.send(CHUNKED + b"%x\r\n%b\r\n0\r\nX-Trailer: a\r\n\r\n" % (len(BODY), BODY))
    assert plug.receive().status_code == 200
    plug.send(head("/select", len(BODY), {**JSON, "Expect": "100-continue"}))
    plug.wait()
    assert plug.transport.sent == b"HTTP/1.1 100 Continue\r\n\r\n"
    plug.transport.sent = b""
    plug.send(BODY)
    assert plug.receive().status_code == 200


def test_pipelined_requests_are_answered_in_order(plug: Plug) -> None:
    bodies = [b'{"context": {"persona": "%s"}}' % who for who in (b"cat", b"ant", b"cat")]
    requests = [head("/select", len(body), JSON) + body for body in bodies]
    for sent in ([b"".join(requests)], requests):
        for piece in sent:
            plug.send(piece)
        assert [plug.receive().status_code for _ in requests] == [200, 422, 200]
    many = 3 * HEAD_BYTES // len(HEALTH)
    plug.send(HEALTH * many + HEALTH[:30])
    assert {plug.receive().status_code for _ in range(many)} == {200}
    plug.send(HEALTH[30:])
    assert plug.receive().status_code == 200


def test_a_client_that_floods_is_not_read_until_it_is_answered(wire: Wire, plug: Plug) -> None:
    async def flood() -> None:
        for _ in range(100):
            plug.protocol.data_received(SELECT)
        assert plug.transport.paused

    wire.run(flood())
    assert {plug.receive().status_code for _ in range(100)} == {200}
    assert not plug.transport.paused


@pytest.mark.parametrize("protocol", ["websocket", "h2c"])
def test_an_upgrade_is_answered_as_an_ordinary_request(plug: Plug, protocol: str) -> None:
    headers = {**JSON, "Connection": "Upgrade", "Upgrade": protocol}
    plug.send(head("/select", len(BODY), headers) + BODY + HEALTH)
    assert "decision_id" in plug.receive().json()
    assert "durability" in plug.receive().json()


def test_a_stopping_service_answers_requests_under_way(wire: Wire, plug: Plug) -> None:
    async def stop() -> None:
        plug.protocol.data_received(SELECT)
        plug.protocol.shutdown()

    wire.run(stop())
    answer = plug.receive()
    assert (answer.status_code, answer.headers["connection"]) == (200, "close")
    assert plug.transport.ended
    assert not plug.transport.paused
    plug.send(SELECT)
    assert not plug.transport.sent
    wire.sleep(LINGER_SECONDS + 0.1)
    assert plug.transport.closed


def stop(wire: Wire, *plugs: Plug) -> None:
    async def shut_down() -> None:
        wire.services.lifecycle.draining = True
        for plug in plugs:
            plug.protocol.shutdown()

    wire.run(shut_down())


@pytest.mark.parametrize("cut_off", [b"", HALF_HEAD, HALF_BODY], ids=["", "head", "body"])
def test_a_client_that_closes_its_side_gets_its_answers(
    wire: Wire, plug: Plug, cut_off: bytes
) -> None:
    async def send() -> bool:
        plug.protocol.data_received(SELECT + SELECT + cut_off)
        return plug.protocol.eof_received()

    assert wire.run(send()) is True
    answers = [plug.receive() for _ in range(2)]
    assert [each.status_code for each in answers] == [200, 200]
    assert [each.headers.get("connection") for each in answers] == [None, "close"]
    assert plug.transport.closed
    assert not plug.transport.sent


@pytest.mark.parametrize("part", [b"", HALF_HEAD, HALF_BODY], ids=["", "head", "body"])
def test_a_client_that_closes_within_a_request_is_let_go(
    wire: Wire, plug: Plug, part: bytes
) -> None:
    async def send() -> bool:
        plug.protocol.data_received(part)
        return plug.protocol.eof_received()

    assert wire.run(send()) is False


def test_a_request_that_the_end_of_the_process_cuts_off_is_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def forever(*_: object) -> None:
        await asyncio.Event().wait()

    async def cut_off(plug: Plug) -> None:
        plug.protocol.data_received(SELECT)
        await asyncio.sleep(0)
        [task] = plug.protocol.tasks
        task.cancel()

    monkeypatch.setattr(Selector, "select", forever)
    with serving() as wire:
        plug = Plug(wire)
        wire.run(cut_off(plug))
        assert expect_problem(plug.receive(), 500)["type"].endswith("/internal")
        assert wire.services.overload.waiting == 0


def test_an_answer_waits_for_a_client_that_does_not_read(wire: Wire, plug: Plug) -> None:
    async def pause() -> None:
        plug.protocol.pause_writing()

    async def resume() -> None:
        plug.protocol.resume_writing()

    wire.run(pause())
    plug.send(SELECT)
    wire.sleep(1)
    assert not plug.transport.sent
    wire.run(resume())
    assert plug.receive().status_code == 200


def test_a_body_whose_client_leaves_is_no_fault_of_the_service() -> None:
    with serving() as wire:
        plug = Plug(wire)
        plug.send(SELECT[:-3])

        async def leave() -> None:
            plug.transport.closed = True
            plug.protocol.connection_lost(ConnectionResetError())

        wire.run(leave())
        wire.sleep(0.1)
        assert not plug.transport.sent
        counted = 'forage_http_requests_total{method="POST",route="/select",status="400"}'
        assert wire.metrics()[counted] == 1


def test_a_draining_service_says_that_each_answer_is_the_last() -> None:
    with serving(max_pending=BOUND) as wire:
        kept, refused = Plug(wire), Plug(wire)
        assert "connection" not in kept.post("/select", BODY, JSON).headers
        wire.services.lifecycle.draining = True
        wire.services.overload.waiting = BOUND
        kept.send(HEALTH)
        refused.send(SELECT + SELECT)  # the second comes too late
        for plug, status in ((kept, 200), (refused, 503)):
            answer = plug.receive()
            assert (answer.status_code, answer.headers["connection"]) == (status, "close")
            assert plug.transport.ended
            assert not plug.transport.sent
        wire.sleep(LINGER_SECONDS + 0.1)
        assert kept.transport.closed
        assert refused.transport.closed


def test_of_pipelined_requests_the_last_answer_ends_the_connection() -> None:
    with serving() as wire:
        plug = Plug(wire)
        wire.services.lifecycle.draining = True
        plug.send(SELECT + SELECT + HEALTH)
        answers = [plug.receive() for _ in range(3)]
        assert [each.status_code for each in answers] == [200, 200, 200]
        assert [each.headers.get("connection") for each in answers] == [None, None, "close"]


def test_a_stopping_service_ends_idle_connections_but_answers_one_that_asks() -> None:
    with serving() as wire:
        busy, idle, unused = Plug(wire), Plug(wire), Plug(wire)
        for plug in (busy, idle):
            plug.send(SELECT)
            plug.receive()
        stop(wire, busy, idle, unused)
        wire.sleep(IDLE_SECONDS - 0.1)
        assert not any(plug.transport.ended for plug in (busy, idle, unused))
        busy.send(SELECT)
        answer = busy.receive()
        assert (answer.status_code, answer.headers["connection"]) == (200, "close")
        wire.sleep(0.2)
        assert all(plug.transport.ended for plug in (busy, idle, unused))
        wire.sleep(LINGER_SECONDS)
        assert all(plug.transport.closed for plug in (busy, idle, unused))


def test_a_connection_that_was_idle_for_long_ends_soon() -> None:
    with serving() as wire:
        plug = Plug(wire)
        plug.send(SELECT)
        plug.receive()
        wire.sleep(IDLE_SECONDS + 1)
        stop(wire, plug)
        assert not plug.transport.ended
        wire.sleep(2 * UNREAD_SECONDS)
        assert plug.transport.ended


def test_a_service_that_is_stopped_is_not_ready() -> None:
    with serving() as wire:
        assert wire.get("/readyz").json()["ready"] is True
        wire.services.lifecycle.draining = True
        answer = wire.get("/readyz")
        assert (answer.status_code, answer.json()["ready"]) == (503, False)


# -- time ------------------------------------------------------------------------------------------


def test_an_idle_connection_is_closed_and_a_busy_one_is_not(wire: Wire, plug: Plug) -> None:
    for _ in range(5):
        plug.send(SELECT)
        assert plug.receive().status_code == 200
        wire.sleep(KEEP_ALIVE_SECONDS - 1)
    assert not plug.transport.closed
    wire.sleep(2)
    assert plug.transport.closed
    with serving(keep_alive_seconds=5) as impatient:
        plug = Plug(impatient)
        plug.send(SELECT)
        plug.receive()
        impatient.sleep(4)
        assert not plug.transport.closed
        impatient.sleep(2)
        assert plug.transport.closed
    unused = Plug(wire)
    wire.sleep(TIMEOUT_SECONDS["head"] - 1)
    assert not unused.transport.closed
    wire.sleep(2)
    assert unused.transport.closed
    assert not unused.transport.sent


def test_a_slow_head_is_refused(wire: Wire, plug: Plug) -> None:
    plug.send(SELECT)
    plug.receive()
    plug.send(HALF_HEAD)
    for _ in range(9):
        wire.sleep(1)
        plug.send(b"a")
    assert not plug.transport.sent
    wire.sleep(2)
    expect_end(plug, 408, "too-slow")


def test_a_slow_body_is_refused_and_is_no_fault_of_the_service(wire: Wire, plug: Plug) -> None:
    behind = Plug(wire)
    behind.send(HALF_BODY)
    behind.protocol.cycle.response_started = True
    plug.send(HALF_BODY)
    for _ in range(29):
        wire.sleep(1)
        plug.send(b" ")
    assert not plug.transport.sent
    wire.sleep(2)
    expect_end(plug, 408, "too-slow")
    assert behind.transport.closed
    assert not behind.transport.sent  # a refusal would be taken for a part of the answer under way
    counted = [name for name in wire.metrics() if name.startswith("forage_http_requests_total")]
    assert not [name for name in counted if 'status="5' in name]


def test_a_large_body_has_the_time_of_a_body_for_each_megabyte(wire: Wire, plug: Plug) -> None:
    path = "/experiments/shop/policies/linucb/versions"
    plug.send(head(path, 10_000_000, {}))
    for _ in range(100):
        plug.send(b"a" * 100_000)
        wire.sleep(2)
    assert plug.receive().status_code == 422


def test_pipelined_requests_end_with_their_connection(
    wire: Wire, plug: Plug, caplog: pytest.LogCaptureFixture
) -> None:
    async def cut_off() -> None:
        plug.protocol.data_received(HEALTH.replace(b"/healthz", b"/openapi.json") * 3)
        plug.transport.closed = True
        plug.protocol.connection_lost(ConnectionResetError())

    wire.run(cut_off())
    wire.sleep(0.05)
    assert plug.transport.sent == b""
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


# -- number ----------------------------------------------------------------------------------------


def test_a_connection_beyond_the_limit_is_refused() -> None:
    with serving(max_connections=2) as wire:
        held = [Plug(wire), Plug(wire)]
        late = Plug(wire)
        assert expect_problem(late.receive(), 503)["type"].endswith("/too-many-connections")
        assert late.transport.closed
        metrics = wire.metrics()
        assert metrics["forage_refused_connections_total"] == 1
        assert metrics["forage_connections_bound"] == 2

        async def leave() -> None:
            for plug in (late, held[0]):
                plug.protocol.connection_lost(None)

        wire.run(leave())
        assert wire.metrics()["forage_connections"] == 1
        again = Plug(wire)
        again.send(SELECT)
        assert again.receive().status_code == 200


def test_open_files_leave_room_for_connections() -> None:
    default = DEFAULT_CONNECTIONS
    for files, limit in ((128, 64), (1_024, 896), (1_048_576, default), (-1, default), (20, 1)):
        assert connection_limit(Settings(), files) == limit
    assert connection_limit(Settings(max_connections=900), 1_024) == 900
    assert connection_limit(Settings(max_connections=9_000), -1) == 9_000
    with pytest.raises(ConfigurationError, match=r"FORAGE_MAX_CONNECTIONS: 1000 .*ulimit"):
        connection_limit(Settings(max_connections=1_000), 1_024)


# -- overload --------------------------------------------------------------------------------------

BOUND = 3


@pytest.fixture
def busy() -> Iterator[Wire]:
    """A service with as many requests under way as permitted."""
    with serving(max_pending=BOUND, cors_origins="https://shop.example") as wire:
        wire.services.overload.waiting = BOUND
        yield wire


@pytest.mark.parametrize(
    "path",
    [
        *("/select", "/select/batch", "/select/", "/select?a=b", "/%73elect", "/select%2F#a"),
        *("http://forage/select", "http://forage:8000/select%2fbatch?a=%20"),
    ],
)
def test_an_overloaded_service_refuses_decisions_and_says_when_to_return(
    busy: Wire, path: str
) -> None:
    headers = {**JSON, "X-Request-ID": "mine", "Origin": "https://shop.example"}
    answer = Plug(busy).post(path, BODY, headers)
    problem = expect_problem(answer, 503)
    assert problem["type"].endswith("/overloaded")
    assert answer.headers["x-request-id"] == problem["request_id"] == "mine"
    assert answer.headers["retry-after"] == "1"
    assert answer.headers["access-control-allow-origin"] == "https://shop.example"
    assert "Retry-After" in answer.headers["access-control-expose-headers"]
    route = "/select/batch" if "batch" in path else "/select"
    metrics = busy.metrics()
    assert metrics[f'forage_shed_requests_total{{route="{route}"}}'] == 1
    assert metrics[f'forage_http_requests_total{{method="POST",route="{route}",status="503"}}'] == 1


def test_a_refusal_names_the_request_and_lets_no_other_origin_read_it(busy: Wire) -> None:
    headers = {**JSON, "X-Request-ID": "not one!", "Origin": "https://other.example"}
    answer = Plug(busy).post("/select", BODY, headers)
    assert answer.headers["x-request-id"] == expect_problem(answer, 503)["request_id"]
    assert answer.headers["x-request-id"] != "not one!"
    assert "access-control-allow-origin" not in answer.headers


def test_a_refused_connection_is_kept_unless_its_client_closes_it(busy: Wire) -> None:
    plug = Plug(busy)
    expect_problem(plug.post("/select", BODY, JSON), 503)
    busy.services.overload.waiting = 0
    assert plug.post("/select", BODY, JSON).status_code == 200
    busy.services.overload.waiting = BOUND
    plug.send(SELECT)
    expect_problem(plug.receive(), 503)
    assert not plug.transport.closed
    busy.sleep(KEEP_ALIVE_SECONDS + 1)
    assert plug.transport.closed
    for closing in (
        SELECT.replace(b"HTTP/1.1", b"HTTP/1.0"),
        SELECT.replace(b"Host:", b"Connection: close\r\nHost:"),
    ):
        plug = Plug(busy)
        plug.send(closing)
        assert expect_problem(plug.receive(), 503)
        assert plug.transport.ended


def test_the_body_of_a_refused_request_is_passed_over(busy: Wire) -> None:
    plug = Plug(busy)
    half = len(SELECT) - len(BODY) // 2
    plug.send(SELECT[:half])
    expect_problem(plug.receive(), 503)
    plug.send(SELECT[half:] + HEALTH)
    assert plug.receive().status_code == 200
    plug.send(CHUNKED + b"5\r\nhello\r\n")
    expect_problem(plug.receive(), 503)
    busy.sleep(TIMEOUT_SECONDS["body"] + 1)
    assert plug.transport.closed
    assert not plug.transport.sent


def test_a_request_behind_another_of_its_connection_is_answered_after_it(busy: Wire) -> None:
    plug = Plug(busy)
    plug.send(HEALTH + SELECT + SELECT)
    assert [plug.receive().status_code for _ in range(3)] == [200, 200, 200]
    plug.send(SELECT + SELECT + HEALTH)
    assert [plug.receive().status_code for _ in range(3)] == [503, 503, 200]


def test_requests_that_arrive_at_once_are_counted_at_once(busy: Wire) -> None:
    busy.services.overload.waiting = 0
    plugs = [Plug(busy) for _ in range(2 * BOUND)]

    async def send() -> None:
        for plug in plugs:
            plug.protocol.data_received(SELECT)

    for _ in range(2):
        busy.run(send())
        statuses = [plug.receive().status_code for plug in plugs]
        assert statuses == [200] * BOUND + [503] * BOUND


def test_refusals_of_an_overloaded_service_are_logged_once_a_minute(
    busy: Wire, caplog: pytest.LogCaptureFixture
) -> None:
    plug = Plug(busy)

    def refused(times: int) -> list[str]:
        caplog.clear()
        for _ in range(times):
            expect_problem(plug.post("/select", BODY, JSON), 503)
        return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]

    [first] = refused(5)
    assert first.startswith("overloaded: requests refused since the last such line: 1,")
    busy.clock.skip(59)
    assert refused(4) == []
    busy.clock.skip(1)
    [second] = refused(1)
    assert second.startswith("overloaded: requests refused since the last such line: 9,")
    assert "POST /select beyond 3 under way (FORAGE_MAX_PENDING)" in second


def test_rewards_have_twice_the_room_of_decisions(busy: Wire) -> None:
    """Probes, metrics and administration are always served."""
    plug = Plug(busy)
    busy.services.overload.waiting = BOUND - 1
    token = plug.post("/select", BODY, JSON).json()["decision_id"]
    reward = b'{"decision_id": "%b", "reward": 1}' % token.encode()
    busy.services.overload.waiting = 2 * BOUND
    expect_problem(plug.post("/reward", reward, JSON), 503)
    busy.services.overload.waiting = 2 * BOUND - 1
    expect_problem(plug.post("/select", BODY, JSON), 503)
    assert plug.post("/reward", reward, JSON).json() == {"status": "accepted"}
    busy.services.overload.waiting = 100 * BOUND
    for path in ("/healthz", "/readyz", "/metrics", "/policies"):
        plug.send(head(path, 0, {}, "GET"))
        assert plug.receive().status_code == 200
