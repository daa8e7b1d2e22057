"""`select` of the Python client raises nothing and takes no answer that is none, whatever a server,
a proxy or its caller gives."""

import gzip
import json
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from types import MappingProxyType
from typing import Any

import httpx
import pytest
from forage_client import AsyncForage, ClientError, Decision, Forage, Problem, Unreachable
from hypothesis import given
from hypothesis import strategies as st

from tests.client.test_forage_client import ANSWER, Script, Step, answer, refused
from tests.support.clock import run_virtual

ARMS = ["a", "b", "c"]
SLATE = ANSWER | {
    "ranking": [{"arm": "a", "propensity": 0.5}, {"arm": "b", "propensity": 0.25}],
    "slate_propensity": 0.125,
}
WITHIN_S = 60.0
MOST_READ = 2 * 1_048_576

Call = Callable[[AsyncForage], Awaitable[Any]]

numbers = st.floats(allow_nan=True) | st.integers() | st.just(10**400)
json_values = st.recursive(
    st.none() | st.booleans() | numbers | st.text(max_size=5) | st.sampled_from(ARMS),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=5) | st.sampled_from(sorted(ANSWER)), inner, max_size=4)
    ),
    max_leaves=10,
)
objects = st.builds(object) | st.just(float) | st.binary(max_size=3) | st.sets(st.integers())


def run(script: httpx.AsyncBaseTransport, call: Call, **more: Any) -> Any:
    """What `call` comes to, in virtual time: pauses between tries take none."""

    async def work() -> Any:
        async with AsyncForage("http://forage", transport=script, **more) as forage:
            return await call(forage)

    return run_virtual(work())


def body(content: bytes, status: int = 200, **headers: str) -> Step:
    return lambda request: httpx.Response(status, content=content, headers=headers)


def expect_usable(decision: Decision, top_k: int) -> None:
    """It is a decision of `top_k` of the ARMS, or the fallback."""
    if decision.fallback:
        assert isinstance(decision.error, ClientError)
        assert (decision.arm, decision.arms) == ("z", ("z", "y"))
        return
    assert decision.arm == decision.arms[0]
    assert decision.arms == tuple(ranked.arm for ranked in decision.ranking)
    assert len(set(decision.arms)) == len(decision.arms) <= top_k
    assert set(decision.arms) <= set(ARMS)
    assert decision.propensity is not None
    for chance in (decision.propensity, *(ranked.propensity for ranked in decision.ranking)):
        assert 0.0 < chance <= 1.0 + 1e-9
    assert decision.slate_propensity is None or 0.0 < decision.slate_propensity <= 1.0 + 1e-9
    assert decision.slate_log_propensity is not None
    assert math.isfinite(decision.slate_log_propensity)
    texts = (decision.decision, decision.id, decision.policy, decision.model_version)
    assert all(isinstance(text, str) and text for text in (*texts, decision.experiment))


def ask(step: Step, top_k: int = 2) -> Decision:
    """One `select` of ARMS from what answers `step` first and then refuses."""
    script = Script(step, answer(422, {"title": "refused"}))
    decision = run(
        script,
        lambda forage: forage.select(arms=ARMS, top_k=top_k),
        fallback=["z", "y"],
        budget_s=WITHIN_S,
    )
    assert isinstance(decision, Decision)
    expect_usable(decision, top_k)
    return decision


@given(json_values)
def test_select_raises_nothing_of_any_json(given_body: Any) -> None:
    assert ask(body(json.dumps(given_body).encode())).fallback


@given(
    st.dictionaries(st.sampled_from(sorted(SLATE)), json_values, max_size=3),
    st.lists(st.sampled_from(sorted(SLATE)), max_size=2),
)
def test_select_takes_no_answer_with_a_member_that_is_wrong(
    wrong: dict[str, Any], missing: list[str]
) -> None:
    told = {name: value for name, value in (SLATE | wrong).items() if name not in missing}
    ask(body(json.dumps(told).encode()))


@given(
    st.lists(st.fixed_dictionaries({}, optional={"arm": json_values, "propensity": json_values}))
)
def test_select_takes_no_ranking_that_is_wrong(ranking: list[Any]) -> None:
    first = ranking[0] if ranking else {}
    ask(body(json.dumps(SLATE | first | {"ranking": ranking}).encode()))


@given(st.binary(max_size=20), st.integers(200, 599))
def test_select_raises_nothing_of_any_bytes_and_status(content: bytes, status: int) -> None:
    assert ask(body(content, status)).fallback


@given(st.integers(400, 599), st.dictionaries(
    st.sampled_from(["title", "detail", "errors", "status"]), json_values
))  # fmt: skip
def test_select_raises_nothing_of_any_problem(status: int, problem: dict[str, Any]) -> None:
    assert ask(body(json.dumps(problem).encode(), status)).fallback


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        ({"propensity": math.nan, "ranking": [{"arm": "a", "propensity": math.nan}]}, "propensity"),
        ({"propensity": 0, "ranking": [{"arm": "a", "propensity": 0}]}, "propensity"),
        ({"propensity": -0.5, "ranking": [{"arm": "a", "propensity": -0.5}]}, "propensity"),
        ({"propensity": 1.5, "ranking": [{"arm": "a", "propensity": 1.5}]}, "propensity"),
        ({"propensity": True, "ranking": [{"arm": "a", "propensity": True}]}, "propensity"),
        ({"propensity": 0.25}, "arm is missing or wrong"),
        ({"arm": "b"}, "arm is missing or wrong"),
        ({"ranking": [{"arm": "a", "propensity": 0.5}] * 2}, "ranking"),
        ({"ranking": SLATE["ranking"] + [{"arm": "c", "propensity": 0.1}]}, "ranking"),
        ({"arm": "d", "ranking": [{"arm": "d", "propensity": 0.5}]}, "not asked for: d"),
        ({"decision_id": ""}, "decision_id"),
        ({"logged": "yes"}, "logged"),
        ({"slate_log_propensity": 0.7}, "slate_log_propensity"),
        ({"slate_propensity": 2}, "slate_propensity"),
        ({"rules": "in_stock"}, "rules is missing or wrong"),
        ({"relaxed": [5]}, "relaxed is missing or wrong"),
    ],
)
def test_what_is_wrong_in_an_answer_is_named(told: dict[str, Any], reason: str) -> None:
    script = Script(body(json.dumps(SLATE | told).encode()))
    decision = run(script, lambda forage: forage.select(arms=ARMS, top_k=2), budget_s=0.5)
    assert decision.fallback
    assert reason in str(decision.error)
    assert len(script.asked) > 1, "what a proxy says while the service restarts passes"


def test_a_probability_that_rounding_took_above_one_is_taken() -> None:
    told = ANSWER | {"propensity": 1 + 2e-16, "ranking": [{"arm": "a", "propensity": 1 + 2e-16}]}
    assert not ask(body(json.dumps(told).encode())).fallback


@pytest.mark.parametrize("wish", [{"exclude": ["a"]}, {"only": ["b", "c"]}, {"arms": ["b"]}])
def test_an_arm_that_the_request_does_not_want_is_shown_if_no_arm_is_eligible(
    wish: dict[str, Any],
) -> None:
    def ask_with(**more: Any) -> Decision:
        script = Script(answer(200, ANSWER | more))
        found = run(script, lambda forage: forage.select(**wish), budget_s=0.5)
        assert script.bodies()[0] == wish
        assert isinstance(found, Decision)
        return found

    assert "not asked for: a" in str(ask_with().error)
    decision = ask_with(rules=["if_empty"])
    assert (decision.arm, decision.rules, decision.relaxed) == ("a", ("if_empty",), ())


def test_a_decision_names_its_rules() -> None:
    told = ANSWER | {"rules": ["in_stock", "ad"], "relaxed": ["fresh"]}
    decision = ask(body(json.dumps(told).encode()))
    assert (decision.rules, decision.relaxed) == (("in_stock", "ad"), ("fresh",))


def test_arms_with_features_are_asked_for_by_their_ids() -> None:
    script = Script(answer())
    arms = [{"id": "a", "features": {"price": 3.5}}, "b"]
    assert not run(script, lambda forage: forage.select(arms=arms)).fallback


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[]", b"ok", b"[" * 100_000, b'{"status": 5}', b'{"status": "ok"}']
)
def test_a_reward_is_sent_again_after_an_answer_that_is_none(content: bytes) -> None:
    script = Script(body(content), body(content, 204), answer(200, {"status": "accepted"}))
    decision = Decision("a", ("a",), False, decision="token")
    assert run(script, lambda forage: forage.reward(decision, 1)) == "accepted"
    assert len(script.asked) == 3


def test_a_reward_that_no_answer_ever_takes_is_unreachable() -> None:
    decision = Decision("a", ("a",), False, decision="token")
    with pytest.raises(Unreachable, match="status"):
        run(Script(answer(200, {})), lambda forage: forage.reward(decision, 1))


@pytest.mark.parametrize("given_decision", [None, "token", 5, {"decision": "token"}])
def test_a_reward_of_what_is_no_decision_says_so(given_decision: Any) -> None:
    calls: list[Call] = [
        lambda forage: forage.reward(given_decision, 1),
        lambda forage: forage.cascade(given_decision),
        lambda forage: forage.activate(given_decision),
    ]
    for call in calls:
        with pytest.raises(ClientError, match=f"not of {type(given_decision).__name__}"):
            run(Script(answer()), call)


def test_a_reward_that_cannot_count_is_ignored_and_its_reason_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    script = Script(answer(200, {"status": "ignored", "reason": "the first reward counts"}))
    decision = Decision("a", ("a",), False, decision="token")

    async def twice(forage: AsyncForage) -> list[str | None]:
        return [await forage.reward(decision, 1, reward_id=own) for own in ("one", "two")]

    assert run(script, twice) == ["ignored", "ignored"]
    assert caplog.messages == ["a reward cannot count: the first reward counts"]


# -- large answers ---------------------------------------------------------------------------------


class Endless(httpx.AsyncByteStream):
    """A body that never ends; `read` bytes of it were taken."""

    read = 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            self.read += 65_536
            yield b" " * 65_536


def test_an_answer_without_end_is_read_no_further_than_its_bound() -> None:
    stream = Endless()
    script = Script(lambda request: httpx.Response(200, stream=stream), answer(422, {"title": "x"}))
    decision = run(script, lambda forage: forage.select(), fallback="z", budget_s=WITHIN_S)
    assert decision.arm == "z"
    assert stream.read <= MOST_READ


@pytest.mark.parametrize("status", [200, 422, 503])
def test_a_compressed_answer_is_not_unpacked(status: int) -> None:
    """One that packs 1,000 to 1 would cost gigabytes and seconds."""
    stream = Endless()
    headers = {"content-encoding": "gzip"}
    script = Script(
        lambda request: httpx.Response(status, headers=headers, stream=stream),
        body(gzip.compress(b"[]"), **headers),
        refused,
    )
    decision = run(script, lambda forage: forage.select(), fallback="z", budget_s=0.05)
    assert decision.arm == "z"
    assert "compressed: gzip" in str(decision.error)
    assert stream.read == 0
    assert {each.headers["accept-encoding"] for each in script.asked} == {"identity"}


# -- what a caller gives ---------------------------------------------------------------------------


@given(
    st.dictionaries(
        st.sampled_from([
            "context", "arms", "unit", "policy", "experiment", "top_k", "deferred", "fallback",
            "idempotency_key", "more",
        ]),
        json_values | objects,
        max_size=3,
    )
)  # fmt: skip
def test_select_raises_nothing_whatever_its_caller_gives(asked: dict[str, Any]) -> None:
    script = Script(answer(), answer(422, {"title": "refused"}))
    decision = run(script, lambda forage: forage.select(**asked), budget_s=WITHIN_S)
    assert isinstance(decision, Decision)


class Hostile(dict[str, Any]):
    def items(self) -> Any:
        raise LookupError("of the caller")


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({"budget_s": "soon"}, "budget_s must be a number of seconds"),
        ({"budget_s": None}, "budget_s must be a number of seconds"),
        ({"budget_s": math.nan}, "budget_s must be a number of seconds"),
        ({"fallback": 4}, "fallback must be the id of an arm or a list of them, not int"),
        ({"fallback": ["a", 4]}, "fallback must be the id of an arm or a list of them, not list"),
        ({"idempotency_key": "é"}, "idempotency_key must be printable ASCII"),
        ({"idempotency_key": "a\nb"}, "idempotency_key must be printable ASCII"),
        ({"idempotency_key": 7}, "idempotency_key must be printable ASCII"),
        ({"context": Hostile(x=1)}, "of the caller"),
        ({"context": {"x": {1, 2}}}, "set is no JSON value"),
    ],
)
def test_a_wrong_argument_falls_back_and_is_named(
    asked: dict[str, Any], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    script = Script(answer())
    decision = run(script, lambda forage: forage.select(**asked), budget_s=1.0)
    assert decision.fallback
    assert reason in str(decision.error)
    assert reason in caplog.text
    assert script.asked == []


def test_a_mapping_that_is_no_dict_is_sent_as_one() -> None:
    script = Script(answer())
    context = MappingProxyType({"persona": "cat"})
    assert not run(script, lambda forage: forage.select(context=context)).fallback
    assert script.bodies() == [{"context": {"persona": "cat"}}]


def test_a_budget_without_end_outlives_any_number_of_tries() -> None:
    script = Script(*[refused] * 1_100, answer())
    assert not run(script, lambda forage: forage.select(), budget_s=math.inf).fallback


def test_a_closed_client_falls_back_and_its_rewards_are_refused() -> None:
    forage = Forage("http://forage", transport=Script(answer()), fallback="z")
    decision = forage.select()
    forage.close()
    assert not decision.fallback
    late = forage.select()
    assert (late.arm, str(late.error)) == ("z", "this client is closed")
    with pytest.raises(ClientError, match="closed"):
        forage.reward(decision, 1)

    async def visit() -> Decision:
        async with AsyncForage("http://forage", transport=Script(answer()), fallback="z") as left:
            pass
        return await left.select()

    assert str(run_virtual(visit()).error) == "this client is closed"


def test_a_refusal_with_members_of_wrong_types_is_still_a_problem() -> None:
    told = {"title": "Wrong", "detail": ["x"], "errors": [None, {"path": "context.age"}]}
    decision = run(Script(answer(422, told)), lambda forage: forage.select())
    assert isinstance(decision.error, Problem)
    assert decision.error.errors == [{"path": "context.age"}]
