"""Requests are made from the experiment's features, and are what they say they are."""

import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.definition.experiment import Features
from service.definition.features import Schema
from simulator_client.load_plan import Plan, Requests, is_unlogged, token_of
from simulator_client.load_requests import head, rewards, selects

from .load_server import DEFINITION

URL = "http://shop:81/base%20path"
numbers = st.fixed_dictionaries(
    {
        "type": st.just("numeric"),
        "center": st.floats(-1e5, 1e5),
        "scale": st.floats(1e-4, 1e4),
    }
)
features = st.one_of(
    numbers,
    st.just({"type": "boolean"}),
    st.just({"type": "categorical", "values": ["a", "100%", 'quote " %08d']}),
    st.just({"type": "hashed", "buckets": 8}),
    st.just({"type": "vector", "size": 3, "center": 1.0, "scale": 2.0}),
)
contexts = st.dictionaries(st.sampled_from("abcdef"), features, max_size=5)


def plan(context: Any, *, fresh: bool = True, processes: int = 1, **asked: Any) -> Plan:
    definition = {"features": {"context": context}, "arms": {}, "reward": {"range": [-1, 3]}}
    requests, numbered = selects(
        URL, definition, {"experiment": "shop"}, asked.get("arms"), random.Random(1), fresh=fresh
    )
    return Plan(
        addresses=[], selects=requests, numbered=numbered, reward_head=head(URL, "/reward"),
        rewards=rewards(definition), connections=1, processes=processes, warmup_s=0.0, seconds=1.0,
        rate=None, spacing="even", rewards_per_select=0.0, rewards_alone=False, timeout_s=1.0,
        seed=1,
    )  # fmt: skip


def parsed(request: bytes) -> Any:
    """The body; its length is the one that the head says."""
    start, _, body = request.partition(b"\r\n\r\n")
    assert int(start.rpartition(b"Content-Length: ")[2]) == len(body)
    return json.loads(body)


@settings(deadline=None)
@given(contexts)
def test_a_request_is_of_the_schema_and_has_its_length(context: Any) -> None:
    requests = Requests(plan(context), 0)
    schema = Schema(Features.model_validate({"context": context}))
    for _ in range(5):
        asked = parsed(requests.select())
        assert asked["experiment"] == "shop"
        schema.encode_context(asked["context"])  # raises Invalid where it is not


@settings(deadline=None, max_examples=30)
@given(numbers)
def test_no_number_comes_twice(number: Any) -> None:
    requests = Requests(plan({"basket": number}), 0)
    found = [parsed(requests.select())["context"]["basket"] for _ in range(1_100)]
    assert len(set(found)) == len(found)


def test_numbers_lie_around_their_centre() -> None:
    requests = Requests(plan({"basket": {"type": "numeric", "center": 40.0, "scale": 25.0}}), 0)
    found = [parsed(requests.select())["context"]["basket"] for _ in range(600)]
    assert 2.25 <= min(found) < 10 < 70 < max(found) <= 77.75


def test_processes_do_not_send_the_same_numbers() -> None:
    asked = plan({"basket": {"type": "numeric"}}, processes=2)
    found = [
        parsed(requests.select())["context"]["basket"]
        for requests in (Requests(asked, 0), Requests(asked, 1))
        for _ in range(600)
    ]
    assert len(set(found)) == 1_200


def test_repeated_contexts_come_again() -> None:
    requests = Requests(plan({"basket": {"type": "numeric"}}, fresh=False), 0)
    found = [parsed(requests.select())["context"]["basket"] for _ in range(1_024)]
    assert found[:512] == found[512:]


def test_categories_are_all_drawn_and_signs_of_percent_survive() -> None:
    requests = Requests(plan(DEFINITION["features"]["context"], arms=["100%", "%08d"]), 0)
    sent = [requests.select() for _ in range(64)]
    asked = [parsed(each) for each in sent]
    assert {each["context"]["persona"] for each in asked} == {"cat", "100% dog"}
    assert asked[0]["arms"] == ["100%", "%08d"]
    assert sent[0].startswith(b"POST /base%20path/select HTTP/1.1\r\nHost: shop:81\r\n")


def test_rewards_lie_at_the_ends_of_their_range() -> None:
    requests = Requests(plan({}), 0)
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


def test_an_answer_ahead_of_its_log_is_told_apart() -> None:
    assert is_unlogged(json.dumps({"logged": False}).encode())
    assert is_unlogged(b'{"logged":false,"arm":"a"}')
    assert not is_unlogged(b'{"logged":true,"arm":"false"}')


def test_of_long_requests_there_are_fewer() -> None:
    arms = [f"arm-{number:05d}" for number in range(10_000)]
    asked = plan({"basket": {"type": "numeric"}}, arms=arms)
    assert 30 <= len(asked.selects) <= 80
    assert sum(map(len, asked.selects)) < 9_000_000
    assert len(plan({}).selects) == 1, "without features all are alike"
