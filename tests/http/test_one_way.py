"""Every request takes the same way, whatever its headers: the same answers, counts, refusals."""

import json

import httpx
import pytest

from service.http.bounded import protocol
from service.log.commit_gate import SOME
from tests.support.plug import Connection, Plug, head
from tests.support.service import Wire

PLAIN = {"Content-Type": "application/json"}
CALLERS = {
    "a charset": {"Content-Type": "application/json; charset=utf-8"},
    "a proxy": {
        **PLAIN,
        "X-Forwarded-For": "203.0.113.7",
        "X-Forwarded-Proto": "https",
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "X-Request-ID": "a-1",
        "Cookie": "a=b",
    },
    "a JSON of its own": {"Content-Type": "application/vnd.shop+json"},
}


@pytest.fixture
def plug(wire: Wire) -> Plug:
    return Plug(wire)


@pytest.fixture(params=CALLERS)
def other(request: pytest.FixtureRequest) -> dict[str, str]:
    return CALLERS[request.param]


def plain(answer: httpx.Response) -> dict[str, str]:
    """Headers but for the id of the request."""
    return {name: value for name, value in answer.headers.items() if name != "x-request-id"}


def ask(plug: Plug, path: str, body: str, headers: dict[str, str]) -> httpx.Response:
    return plug.post(path, body.encode(), headers)


REFUSED = [
    ("/select", "{"),
    ("/select", ""),
    ("/select", "[]"),
    ("/select", '{"context": {"persona": "cat"}, "more": 1}'),
    ("/select", '{"context": {"persona": "cat"}, "top_k": 1.5}'),
    ("/select", '{"context": {"persona": NaN}}'),
    ("/select", '{"context": {"persona": "dragon"}}'),
    ("/select", '{"context": {"colour": "red"}}'),
    ("/select", '{"context": {}}'),
    ("/select", '{"context": {"persona": "cat"}, "arms": []}'),
    ("/select", '{"context": {"persona": "cat"}, "arms": ["nothing", "kibble", "kibble"]}'),
    ("/select", '{"context": {"persona": "cat"}, "top_k": 99}'),
    ("/select", '{"context": {"persona": "cat"}, "experiment": "none"}'),
    ("/select", '{"context": {"persona": "cat"}, "experiment": "no/name"}'),
    ("/select", '{"context": {"persona": "cat"}, "policy": "none"}'),
    ("/reward", '{"decision_id": "x", "reward": 1}'),
    ("/reward", '{"decision_id": "é", "reward": 1}'),
    ("/reward", '{"decision_id": "x"}'),
    ("/reward", '{"decision_id": "x", "reward": 1, "feedback": "cascade"}'),
    ("/reward", '{"decision_id": "x", "reward": true}'),
]


@pytest.mark.parametrize(("path", "body"), REFUSED)
def test_errors_are_the_same_to_the_byte(
    plug: Plug, path: str, body: str, other: dict[str, str]
) -> None:
    first, second = (ask(plug, path, body, headers) for headers in (PLAIN, other))
    assert first.status_code == second.status_code >= 400
    assert first.content == second.content
    assert plain(first) == plain(second)


def test_answers_are_the_same_but_for_chance_and_time(
    wire: Wire, plug: Plug, other: dict[str, str]
) -> None:
    body = '{"context": {"persona": "cat"}, "policy": "linucb", "unit": "u", "arms": ["%s", "%s"]}'
    body %= tuple(wire.services.journal.states["shop"].candidates.ids[:2])
    for more in ("", ', "top_k": 2', ', "deferred": true'):
        asked = body[:-1] + more + "}"
        answers = [ask(plug, "/select", asked, headers) for headers in (PLAIN, other)]
        one, two = (answer.json() for answer in answers)
        assert list(one) == list(two)
        assert len(one["reward_by"]) == len(two["reward_by"])
        same = {"slate_propensity", "experiment", "policy", "model_version", "logged"}
        assert {name: one[name] for name in same} == {name: two[name] for name in same}
        assert {row["propensity"] for row in one["ranking"]} == {
            row["propensity"] for row in two["ranking"]
        }
        assert [type(value) for value in one.values()] == [type(v) for v in two.values()]
        headers = [{**plain(answer), "content-length": ""} for answer in answers]
        assert headers[0] == headers[1]


def test_rewards_are_answered_the_same(wire: Wire, plug: Plug, other: dict[str, str]) -> None:
    answers = []
    for first, second in ((PLAIN, other), (other, PLAIN)):
        token = wire.select(policy="linucb", arms=["kibble"])["decision_id"]
        for value, headers in ((1, first), (1, second), (0, first), (0, second)):
            body = json.dumps({"decision_id": token, "reward": value})
            answer = ask(plug, "/reward", body, headers)
            answers.append((answer.status_code, answer.content))
    said = [b'{"status":"accepted"}', b'{"status":"duplicate"}']
    assert [content for _, content in answers[:2]] == said
    assert answers[2][0] == answers[3][0] == 409
    assert answers[2] == answers[3]
    assert answers[:4] == answers[4:]


def test_all_are_counted_and_timed_alike(wire: Wire, plug: Plug, other: dict[str, str]) -> None:
    def counted(headers: dict[str, str]) -> dict[str, float]:
        before = wire.metrics()
        ask(plug, "/select", '{"context": {"persona": "cat"}, "policy": "linucb"}', headers)
        ask(plug, "/select", '{"context": {"persona": "cat"}, "policy": "none"}', headers)
        ask(plug, "/reward", '{"decision_id": "x", "reward": 1}', headers)
        after = wire.metrics()
        moved = {name: after[name] - before.get(name, 0.0) for name in after}
        counts = ("_total", "_count")
        return {n: d for n, d in moved.items() if d and n.partition("{")[0].endswith(counts)}

    first = counted(other)
    assert first['forage_stage_seconds_count{stage="select"}'] == 2
    assert first['forage_http_requests_total{method="POST",route="/select",status="404"}'] == 1
    assert counted(PLAIN) == first


def test_a_request_that_comes_in_parts_is_answered_whole(wire: Wire, plug: Plug) -> None:
    body = b'{"context": {"persona": "cat"}}'
    whole = head("/select", len(body), PLAIN) + body
    for cut in (1, 20, len(whole) - len(body), len(whole) - 3):
        plug.send(whole[:cut])
        plug.send(whole[cut:])
        assert plug.receive().status_code == 200


def test_requests_sent_ahead_are_answered_in_order(wire: Wire, plug: Plug) -> None:
    texts = [b'{"context": {"persona": "%s"}}' % who for who in (b"cat", b"ant", b"cat")]
    sent = [head("/select", len(text), PLAIN) + text for text in texts]
    plug.send(b"".join(sent))
    assert [plug.receive().status_code for _ in sent] == [200, 422, 200]
    for one in sent:
        plug.send(one)
    assert [plug.receive().status_code for _ in sent] == [200, 422, 200]
    assert not plug.transport.sent


def test_a_client_that_floods_is_not_read_until_it_is_answered(wire: Wire, plug: Plug) -> None:
    body = b'{"context": {"persona": "cat"}}'
    one = head("/select", len(body), PLAIN) + body
    count = 100

    async def flood() -> None:
        for _ in range(count):
            plug.protocol.data_received(one)
        assert plug.transport.paused

    wire.run(flood())
    assert {plug.receive().status_code for _ in range(count)} == {200}
    assert not plug.transport.paused


def test_nobody_waits_for_others_where_every_connection_waits(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the first answers the log pauses, for what else may come. Nothing else can."""
    monkeypatch.setattr("service.log.writer.APART_SECONDS", 60.0)
    http = protocol(wire.services.connections, wire.services.shedding)
    connections = [Connection(wire.app, http, wire.run) for _ in range(SOME)]
    gone = Connection(wire.app, http, wire.run)
    body = b'{"context": {"persona": "cat"}, "policy": "linucb"}'

    async def ask_all() -> None:
        for connection in connections:
            connection.protocol.data_received(head("/select", len(body), PLAIN) + body)

    async def leave() -> None:
        gone.protocol.connection_lost(None)

    wire.run(leave())
    for _ in range(3):
        wire.run(ask_all())
        answers = [one.receive().json() for one in connections]
        assert all(answer["logged"] for answer in answers)  # it was waited for


def test_a_body_that_is_too_large_is_refused(plug: Plug) -> None:
    large = '{"context": {"persona": "' + "x" * 1_048_576 + '"}}'
    assert ask(plug, "/select", large, PLAIN).status_code == 413


def test_a_stopping_service_answers_what_it_was_asked(wire: Wire, plug: Plug) -> None:
    body = b'{"context": {"persona": "cat"}}'

    async def stop() -> None:
        plug.protocol.data_received(head("/select", len(body), PLAIN) + body)
        plug.protocol.shutdown()

    wire.run(stop())
    answer = plug.receive()
    assert (answer.status_code, answer.headers["connection"]) == (200, "close")
    assert plug.transport.closed


def test_a_client_that_goes_away_harms_nobody(wire: Wire, plug: Plug) -> None:
    body = b'{"context": {"persona": "cat"}}'

    async def leave() -> None:
        plug.protocol.data_received(head("/select", len(body), PLAIN) + body)
        plug.transport.close()
        plug.protocol.connection_lost(None)

    wire.run(leave())
    wire.sleep(0.05)
    assert not plug.transport.sent
    assert ask(Plug(wire), "/select", body.decode(), PLAIN).status_code == 200


def test_a_bug_is_told_alike(
    wire: Wire, plug: Plug, other: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ArithmeticError("nobody thought of this")

    monkeypatch.setattr("service.serving.engine.Engine.look_up", fail)
    body = '{"context": {"persona": "cat"}, "policy": "linucb"}'
    answers = [ask(plug, "/select", body, headers) for headers in (PLAIN, other)]
    assert [answer.status_code for answer in answers] == [500, 500]
    first, second = ({**answer.json(), "request_id": ""} for answer in answers)
    assert first == second
    name = 'forage_http_requests_total{method="POST",route="/select",status="500"}'
    assert wire.metrics()[name] == 2
