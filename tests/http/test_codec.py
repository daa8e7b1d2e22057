"""What msgspec reads of a body is what the model of the body would, to the value."""

import json
from collections.abc import Callable
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from service.http import codec
from service.http.schemas import RewardBody, SelectBody
from tests.support.properties import examples

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


def by_model(read: Callable[[Any], Any], body: bytes) -> object:
    """What the model makes of a body; None where it refuses it."""
    try:
        return read(json.loads(body))
    except (ValueError, ValidationError, RecursionError):
        return None


def decoded(read: Callable[[bytes], Any], body: bytes) -> Any:
    """What msgspec makes of a body; None where it refuses it."""
    try:
        return read(body)
    except codec.UNREADABLE:
        return None


def question_of(body: bytes) -> object:
    found = decoded(codec.SELECT.decode, body)
    return None if found is None else found.question()


def outcome_of(body: bytes) -> object:
    found = decoded(codec.REWARD.decode, body)
    return None if found is None else found.outcome()


def expect_no_more(found: object, model: object) -> None:
    """`repr` tells 0.0 from -0.0 and 1 from 1.0."""
    assert found is None or repr(found) == repr(model)


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
def test_a_question_is_read_as_by_the_model(body: str) -> None:
    text = encoded(body)
    model = by_model(lambda read: SelectBody.model_validate(read).question(), text)
    expect_no_more(question_of(text), model)


@settings(max_examples=examples(500), deadline=None)
@given(valid_selects)
def test_msgspec_reads_nearly_every_valid_question(body: str) -> None:
    """All but -0, written as an integer, and numbers beyond 64 bits."""
    text = encoded(body)
    model = by_model(lambda read: SelectBody.model_validate(read).question(), text)
    assert model is not None
    found = question_of(text)
    assert found is not None or any(len(word) > 18 for word in body.split())


@settings(max_examples=examples(1_500), deadline=None)
@given(rewards)
@example('{"decision_id":"a","reward":-0}')
@example('{"decision_id":"a","reward":1,"reward":0}')
@example('{"decision_id":"a","feedback":"cascade","clicked":null}')
@example('{"decision_id":"a","reward":1,"clicked":null}')
@example('{"decision_id":"a","rewards":{"a":1,"a":0.5}}')
def test_a_reward_is_read_as_by_the_model(body: str) -> None:
    text = encoded(body)
    model = by_model(lambda read: RewardBody.model_validate(read).outcome(), text)
    expect_no_more(outcome_of(text), model)
