"""Requests fit the schema of the experiment."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.features.declaration import Features
from service.features.schema import Schema
from simulator_client.load_requests import NUMBER, Requests, is_unlogged, token_of

from .load_server import DEFINITION

URL = "http://shop:81/base%20path"
numbers = st.fixed_dictionaries(
    {
        "type": st.just("numeric"),
        "center": st.floats(-1e5, 1e5),
        "scale": st.floats(1e-4, 1e4),
    }
)
bounds = st.fixed_dictionaries(
    {
        "type": st.just("numeric"),
        "center": st.none(),
        "scale": st.sampled_from([None, 10.0]),
        "min": st.sampled_from([None, -50.0, 18.0]),
        "max": st.sampled_from([None, 18.5, 99.0]),
        "clip": st.none(),
    }
)
"""As a service returns a definition."""
features = st.one_of(
    numbers,
    bounds,
    st.just({"type": "boolean"}),
    st.just({"type": "categorical", "values": ["a", "100%", 'quote " %08d']}),
    st.just({"type": "hashed", "buckets": 8}),
    st.just({"type": "vector", "size": 3, "center": 1.0, "scale": 2.0}),
)
contexts = st.dictionaries(st.sampled_from("abcdef"), features, max_size=5)


def made(context: Any, *, arms: tuple[str, ...] = (), fresh: bool = True) -> Requests:
    definition = {
        "features": {"context": context}, "arms": {arm: {} for arm in arms},
        "reward": {"range": [-1, 3]},
    }  # fmt: skip
    return Requests(URL, definition, {"experiment": "shop"}, arms=bool(arms), fresh=fresh)


def parsed(request: bytes) -> Any:
    """Return the body, whose length is that of the head."""
    start, _, body = request.partition(b"\r\n\r\n")
    assert int(start.rpartition(b"Content-Length: ")[2]) == len(body)
    return json.loads(body)


@settings(deadline=None)
@given(contexts)
def test_a_request_fits_the_schema_and_has_its_length(context: Any) -> None:
    requests = made(context)
    schema = Schema(Features.model_validate({"context": context}))
    for _ in range(5):
        asked = parsed(requests.select())
        assert asked["experiment"] == "shop"
        schema.encode_context(asked["context"])  # raises Invalid if it does not fit


@settings(deadline=None, max_examples=30)
@given(numbers)
def test_no_number_repeats(number: Any) -> None:
    requests = made({"basket": number})
    found = [parsed(requests.select())["context"]["basket"] for _ in range(1_100)]
    assert len(set(found)) == len(found)


def test_categories_are_all_drawn_and_signs_of_percent_survive() -> None:
    requests = made(DEFINITION["features"]["context"], arms=("100%", "%08d"))
    sent = [requests.select() for _ in range(64)]
    asked = [parsed(each) for each in sent]
    assert {each["context"]["persona"] for each in asked} == {"cat", "100% dog"}
    assert asked[0]["arms"] == ["100%", "%08d"]
    assert sent[0].startswith(b"POST /base%20path/select HTTP/1.1\r\nHost: shop:81\r\n")


def test_rewards_lie_at_the_ends_of_their_range() -> None:
    requests = made({})
    told = [parsed(requests.reward(b"token-%d" % number)) for number in range(10)]
    assert [each["decision_id"] for each in told] == [f"token-{number}" for number in range(10)]
    assert sorted(each["reward"] for each in told) == [-1] * 7 + [3] * 3


@pytest.mark.parametrize(
    ("body", "token"),
    [
        (b'{"id":"x","decision_id":"ab-_12","arm":"5"}', b"ab-_12"),
        (b'{"decision_id": "ab", "arm": "5"}', b"ab"),
        (b'{"arm":"5"}', b""),
        (b'{"decision_id', b""),
        (b"", b""),
    ],
)
def test_a_token_is_found_without_parsing(body: bytes, token: bytes) -> None:
    assert token_of(body) == token


def test_an_answer_ahead_of_its_log_is_recognised() -> None:
    assert is_unlogged(json.dumps({"logged": False}).encode())
    assert is_unlogged(b'{"logged":false,"arm":"a"}')
    assert not is_unlogged(b'{"logged":true,"arm":"false"}')


@pytest.mark.parametrize("features", [{}, {"age": {"type": "numeric", "scale": 10.0}}])
def test_headers_take_the_number_of_a_request(features: Any) -> None:
    definition = {"features": {"context": features}, "arms": {}}
    requests = Requests(URL, definition, {}, headers=f"X-Id: {NUMBER}\r\nX-Key: 7%\r\n")
    assert requests.numbered == bool(features)
    for number, sent in enumerate((requests.select(), requests.select()), 1):
        assert b"\r\nX-Id: %08d\r\nX-Key: 7%%\r\n" % number in sent
        parsed(sent)
    assert b"\r\nX-Id: 00000001\r\n" in requests.reward(b"token")
