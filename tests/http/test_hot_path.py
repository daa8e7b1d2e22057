"""The hot path and the ordinary route: what the one accepts the other accepts, with equal values,
and both give the same answers."""

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from benchmarks.support.plug import Connection, Plug, head
from service.hosts import Hosts
from service.http.fast import read_reward, read_select
from service.http.schemas import RewardBody, SelectBody
from service.http.wire import LATER_BYTES, Head, judge, protocol
from service.writer import SOME
from tests.support.properties import examples
from tests.support.service import Wire

HOSTS = Hosts("forage")
FAST = {"Content-Type": "application/json"}
ORDINARY = {"Content-Type": "application/json; charset=utf-8"}

NUMBERS = [
    "0", "-0", "-0.0", "1", "1.0", "1e0", "1E400", "-1e-400", "0.1", "5e-324", "1e308", "2" * 400,
    "9007199254740993", "18446744073709551616", "-9223372036854775809", "123456789012345678.9",
    "NaN", "Infinity", "-Infinity", "01", "+1", ".5", "1.",
]  # fmt: skip
TEXTS = [
    '""', '"a"', '"zoo.plus-1"', '"a\\n"', '"a b"', '"\\ud800"', '"\\ud83d\\ude00"', '"\\u0000"',
    '"é"', json.dumps("x" * 64), json.dumps("x" * 65), json.dumps("y" * 128),
    json.dumps("y" * 129), json.dumps("z" * 256), json.dumps("😀" * 256), json.dumps("z" * 257),
    json.dumps("t" * 1024), json.dumps("t" * 1025), '"cascade"', "\"a\tb\"", '"1"', '"true"',
]  # fmt: skip
scalars = st.one_of(
    st.sampled_from([*NUMBERS, *TEXTS, "true", "false", "null", "{}", "[]", "[1,2.5]", "[true]"]),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.integers().map(str),
    st.text(max_size=8).map(json.dumps),
)


def objects(names: list[str], values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """JSON texts of objects, some with a name twice."""
    pairs = st.lists(st.tuples(st.sampled_from(names), values), max_size=5)
    return pairs.map(lambda found: "{" + ",".join(f'"{n}":{v}' for n, v in found) + "}")


contexts = objects(["persona", "hour", "", "hour"], scalars)
arms = st.lists(
    scalars | objects(["id", "features", "more"], scalars | contexts), max_size=4
).map(lambda found: "[" + ",".join(found) + "]")  # fmt: skip
SELECT = ["experiment", "policy", "unit", "context", "arms", "top_k", "deferred"]
selects = objects([*SELECT, "key", "more"], scalars | contexts | arms)
valid_selects = st.fixed_dictionaries(
    {},
    optional={
        "experiment": st.just("shop"),
        "policy": st.sampled_from(["linucb", None]),
        "unit": st.text(min_size=1, max_size=3),
        "context": st.dictionaries(
            st.text(max_size=3),
            st.one_of(
                st.booleans(),
                st.floats(allow_nan=False, allow_infinity=False),
                st.integers(-(2**70), 2**70),
                st.text(max_size=3),
                st.lists(st.floats(-10, 10) | st.integers(-9, 9), max_size=3),
            ),
            max_size=3,
        ),
        "arms": st.lists(
            st.text(min_size=1, max_size=3)
            | st.fixed_dictionaries(
                {"id": st.text(min_size=1, max_size=3)}, optional={"features": st.just({"a": 1})}
            ),
            min_size=1,
            max_size=3,
        ),
        "top_k": st.integers(1, 3),
        "deferred": st.booleans(),
    },
).map(lambda body: json.dumps(body, ensure_ascii=False))
REWARD = ["decision_id", "reward", "rewards", "feedback", "clicked", "reward_id"]
rewards = objects([*REWARD, "more"], scalars | objects(["a", "b", ""], scalars))


def as_ordinary(read: Callable[[Any], Any], body: bytes) -> object:
    """What the ordinary route makes of a body; None where it refuses it."""
    try:
        return read(json.loads(body))
    except (ValueError, ValidationError, RecursionError):
        return None


def expect_no_more(fast: object, ordinary: object) -> None:
    """`repr` tells 0.0 from -0.0 and 1 from 1.0."""
    assert fast is None or repr(fast) == repr(ordinary)


def encoded(body: str) -> bytes:
    return body.encode(errors="surrogatepass")


@settings(max_examples=examples(1_500), deadline=None)
@given(selects | valid_selects)
@example('{"context":{"hour":-0}}')
@example('{"context":{"hour":1},"top_k":1.0}')
@example('{"context":{},"top_k":18446744073709551616}')
@example('{"top_k":2,"top_k":"x"}')
@example('{"arms":["a",{"id":"b","features":{"x":[1,-0]}}]}')
@example('\ufeff{"context":{}}')
def test_what_the_hot_path_takes_for_a_question_the_model_does(body: str) -> None:
    text = encoded(body)
    ordinary = as_ordinary(lambda read: SelectBody.model_validate(read).question(), text)
    expect_no_more(read_select(text), ordinary)


@settings(max_examples=examples(500), deadline=None)
@given(valid_selects)
def test_a_valid_question_mostly_takes_the_hot_path(body: str) -> None:
    """All but -0, written as an integer, and numbers beyond 64 bits."""
    text = encoded(body)
    ordinary = as_ordinary(lambda read: SelectBody.model_validate(read).question(), text)
    assert ordinary is not None
    fast = read_select(text)
    assert fast is not None or any(len(word) > 18 for word in body.split())


@settings(max_examples=examples(1_500), deadline=None)
@given(rewards)
@example('{"decision_id":"a","reward":-0}')
@example('{"decision_id":"a","reward":1,"reward":0}')
@example('{"decision_id":"a","feedback":"cascade","clicked":null}')
@example('{"decision_id":"a","reward":1,"clicked":null}')
@example('{"decision_id":"a","rewards":{"a":1,"a":0.5}}')
def test_what_the_hot_path_takes_for_a_reward_the_model_does(body: str) -> None:
    text = encoded(body)
    ordinary = as_ordinary(lambda read: RewardBody.model_validate(read).outcome(), text)
    expect_no_more(read_reward(text), ordinary)


@pytest.fixture
def plug(wire: Wire) -> Plug:
    return Plug(wire)


def plain(answer: httpx.Response) -> dict[str, str]:
    """Headers but for the id that the ordinary way gives each request."""
    return {name: value for name, value in answer.headers.items() if name != "x-request-id"}


def ask(plug: Plug, path: str, body: str, headers: dict[str, str]) -> httpx.Response:
    return plug.post(path, body.encode(), headers)


def test_what_is_plain_takes_the_hot_path_and_nothing_else_does(plug: Plug) -> None:
    def judged(**headers: str) -> Head | None:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return judge(head("/select", 10, named), 100, HOSTS)

    assert judged(Content_Type="application/json") == Head("/select", 10)
    assert judged(Content_Type="application/json", Accept="*/*", Connection="keep-alive")
    assert not judged()
    assert not judged(Content_Type="text/plain")
    assert not judged(Content_Type="application/json", Connection="close")
    assert not judged(Content_Type="application/json", Expect="100-continue")
    assert not judged(Content_Type="application/json", Idempotency_Key="a")
    assert not judged(Content_Type="application/json", Transfer_Encoding="chunked")
    assert not judged(Content_Type="application/json", X_Whatever="1")
    assert not judge(head("/select", 101, FAST), 100, HOSTS)
    assert not judge(head("/select?a=1", 10, FAST), 100, HOSTS)
    assert not judge(head("/rewards", 10, FAST), 100, HOSTS)
    assert not judge(head("/select", 10, FAST, "PUT"), 100, HOSTS)
    assert not judge(head("/select", 10, FAST).replace(b"1.1", b"1.0"), 100, HOSTS)
    assert not judge(head("/select", 10, {**FAST, "content-length": "10"}), 100, HOSTS)


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
def test_errors_are_the_same_to_the_byte(plug: Plug, path: str, body: str) -> None:
    fast, ordinary = (ask(plug, path, body, headers) for headers in (FAST, ORDINARY))
    assert fast.status_code == ordinary.status_code >= 400
    assert fast.content == ordinary.content
    assert plain(fast) == plain(ordinary)


def test_answers_are_the_same_but_for_chance_and_time(wire: Wire, plug: Plug) -> None:
    body = '{"context": {"persona": "cat"}, "policy": "linucb", "unit": "u", "arms": ["%s", "%s"]}'
    body %= tuple(wire.services.journal.states["shop"].candidates.ids[:2])
    for more in ("", ', "top_k": 2', ', "deferred": true'):
        asked = body[:-1] + more + "}"
        fast, ordinary = (ask(plug, "/select", asked, headers) for headers in (FAST, ORDINARY))
        one, other = fast.json(), ordinary.json()
        assert list(one) == list(other)
        assert len(one["reward_by"]) == len(other["reward_by"])
        same = {"slate_propensity", "experiment", "policy", "model_version", "logged"}
        assert {name: one[name] for name in same} == {name: other[name] for name in same}
        assert {row["propensity"] for row in one["ranking"]} == {
            row["propensity"] for row in other["ranking"]
        }
        assert [type(value) for value in one.values()] == [type(v) for v in other.values()]
        assert {**plain(fast), "content-length": ""} == {**plain(ordinary), "content-length": ""}


def test_rewards_are_answered_the_same(wire: Wire, plug: Plug) -> None:
    answers = []
    for first, second in ((FAST, ORDINARY), (ORDINARY, FAST)):
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


def test_both_count_and_time_alike(wire: Wire, plug: Plug) -> None:
    def counted(headers: dict[str, str]) -> dict[str, float]:
        before = wire.metrics()
        ask(plug, "/select", '{"context": {"persona": "cat"}, "policy": "linucb"}', headers)
        ask(plug, "/select", '{"context": {"persona": "cat"}, "policy": "none"}', headers)
        ask(plug, "/reward", '{"decision_id": "x", "reward": 1}', headers)
        after = wire.metrics()
        moved = {name: after[name] - before.get(name, 0.0) for name in after}
        counts = ("_total", "_count")
        return {n: d for n, d in moved.items() if d and n.partition("{")[0].endswith(counts)}

    first = counted(ORDINARY)
    assert first['forage_stage_seconds_count{stage="select"}'] == 2
    assert first['forage_http_requests_total{method="POST",route="/select",status="404"}'] == 1
    assert counted(FAST) == first


def test_a_request_that_comes_in_parts_is_answered_whole(wire: Wire, plug: Plug) -> None:
    body = b'{"context": {"persona": "cat"}}'
    whole = head("/select", len(body), FAST) + body
    for cut in (1, 20, len(whole) - len(body), len(whole) - 3):
        plug.send(whole[:cut])
        plug.send(whole[cut:])
        assert plug.receive().status_code == 200


def test_requests_sent_ahead_are_answered_in_order(wire: Wire, plug: Plug) -> None:
    """Whichever way each takes."""
    texts = [b'{"context": {"persona": "%s"}}' % who for who in (b"cat", b"ant", b"cat")]
    for kinds in ((FAST, FAST, FAST), (FAST, ORDINARY, FAST), (ORDINARY, FAST, ORDINARY)):
        sent = [head("/select", len(t), k) + t for t, k in zip(texts, kinds, strict=True)]
        plug.send(b"".join(sent))
        assert [plug.receive().status_code for _ in sent] == [200, 422, 200]
        for one in sent:
            plug.send(one)
        assert [plug.receive().status_code for _ in sent] == [200, 422, 200]
    assert not plug.transport.sent


def test_a_client_that_floods_is_not_read_until_it_is_answered(wire: Wire, plug: Plug) -> None:
    body = b'{"context": {"persona": "cat"}}'
    one = head("/select", len(body), FAST) + body
    count = 2 * LATER_BYTES // len(one)

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
    monkeypatch.setattr("service.writer.APART_SECONDS", 60.0)
    http = protocol(wire.services)
    connections = [Connection(wire.app, http, wire.run) for _ in range(SOME)]
    gone = Connection(wire.app, http, wire.run)
    body = b'{"context": {"persona": "cat"}, "policy": "linucb"}'

    async def ask_all() -> None:
        for connection in connections:
            connection.protocol.data_received(head("/select", len(body), FAST) + body)

    async def leave() -> None:
        gone.protocol.connection_lost(None)

    wire.run(leave())
    for _ in range(3):
        wire.run(ask_all())
        answers = [one.receive().json() for one in connections]
        assert all(answer["logged"] for answer in answers)  # it was waited for


def test_a_body_that_is_too_large_goes_the_ordinary_way(plug: Plug) -> None:
    large = '{"context": {"persona": "' + "x" * 1_048_576 + '"}}'
    fast, ordinary = (ask(plug, "/select", large, headers) for headers in (FAST, ORDINARY))
    assert fast.status_code == ordinary.status_code == 413
    assert fast.content == ordinary.content


def test_a_stopping_service_answers_what_it_was_asked(wire: Wire, plug: Plug) -> None:
    body = b'{"context": {"persona": "cat"}}'

    async def stop() -> None:
        plug.protocol.data_received(head("/select", len(body), FAST) + body)
        plug.protocol.shutdown()

    wire.run(stop())
    answer = plug.receive()
    assert (answer.status_code, answer.headers["connection"]) == (200, "close")
    assert plug.transport.closed


def test_a_client_that_goes_away_harms_nobody(wire: Wire, plug: Plug) -> None:
    body = b'{"context": {"persona": "cat"}}'

    async def leave() -> None:
        plug.protocol.data_received(head("/select", len(body), FAST) + body)
        plug.transport.close()
        plug.protocol.connection_lost(None)

    before = wire.metrics().get(
        'forage_http_requests_total{method="POST",route="/select",status="200"}', 0
    )
    wire.run(leave())
    wire.sleep(0.05)
    assert not plug.transport.sent
    assert ask(Plug(wire), "/select", body.decode(), FAST).status_code == 200
    name = 'forage_http_requests_total{method="POST",route="/select",status="200"}'
    assert wire.metrics()[name] == before + 2


def test_a_bug_is_told_alike(wire: Wire, plug: Plug, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ArithmeticError("nobody thought of this")

    monkeypatch.setattr("service.engine.Engine.look_up", fail)
    body = '{"context": {"persona": "cat"}, "policy": "linucb"}'
    fast = ask(plug, "/select", body, FAST)
    ordinary = ask(plug, "/select", body, ORDINARY)
    assert fast.status_code == ordinary.status_code == 500
    assert {**fast.json(), "request_id": ""} == {**ordinary.json(), "request_id": ""}
    name = 'forage_http_requests_total{method="POST",route="/select",status="500"}'
    assert wire.metrics()[name] == 2
