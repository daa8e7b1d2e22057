"""The Python client in the SDK's shape: budgets, fallbacks, and rewards that arrive once."""

import asyncio
import json
import math
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

import httpx
import numpy as np
import pytest
from forage_client import AsyncForage, Decision, Forage, Problem, Unreachable, Unsendable

from tests.support.service import Wire, serving

ANSWER = {
    "id": "d", "decision_id": "token", "arm": "a", "propensity": 0.5,
    "ranking": [{"arm": "a", "propensity": 0.5}], "slate_propensity": None,
    "slate_log_propensity": -0.7, "experiment": "shop", "policy": "lints",
    "model_version": "lints/0@1", "logged": True,
}  # fmt: skip
CAT = {"persona": "cat"}
BUDGET_S = 0.3
LATE_S = 0.15
"""What a busy machine may add."""

Step = Callable[[httpx.Request], httpx.Response]


def answer(status: int = 200, body: Any = ANSWER, **headers: str) -> Step:
    return lambda request: httpx.Response(status, json=body, headers=headers)


def refused(request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("refused", request=request)


class Script(httpx.AsyncBaseTransport):
    """Answers step by step, the last for ever; keeps what was asked."""

    def __init__(self, *steps: Step) -> None:
        self._steps = list(steps)
        self.asked: list[httpx.Request] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await request.aread()
        self.asked.append(request)
        step = self._steps.pop(0) if len(self._steps) > 1 else self._steps[0]
        return step(request)

    def bodies(self) -> list[Any]:
        return [json.loads(each.content) if each.content else None for each in self.asked]


def run(script: httpx.AsyncBaseTransport, call: Callable[[AsyncForage], Any], **more: Any) -> Any:
    async def work() -> Any:
        async with AsyncForage("http://forage", transport=script, **more) as forage:
            return await call(forage)

    return asyncio.run(work())


def test_a_decision_has_names_for_all_that_the_answer_says() -> None:
    script = Script(answer())
    decision = run(script, lambda f: f.select(context=CAT, top_k=1), key="k", experiment="shop")
    assert (decision.arm, decision.arms, decision.fallback) == ("a", ("a",), False)
    assert (decision.decision, decision.propensity) == ("token", 0.5)
    assert decision.model_version == "lints/0@1"
    assert script.bodies() == [{"context": CAT, "top_k": 1, "experiment": "shop"}]
    assert script.asked[0].headers["authorization"] == "Bearer k"


def test_tries_of_one_select_share_a_key_and_calls_do_not() -> None:
    script = Script(refused, answer(503, {}), answer())

    async def twice(forage: AsyncForage) -> list[Decision]:
        return [await forage.select(), await forage.select()]

    decisions = run(script, twice, budget_s=5.0)
    assert [each.fallback for each in decisions] == [False, False]
    keys = [each.headers["idempotency-key"] for each in script.asked]
    assert len(keys) == 4
    assert len(set(keys[:3])) == 1
    assert keys[3] != keys[0]


@pytest.mark.parametrize(
    ("step", "kind"),
    [
        (refused, Unreachable),
        (answer(503, {"title": "busy"}), Problem),
        (answer(422, {"title": "wrong"}), Problem),
        (answer(200, []), Unreachable),
        (answer(429, {"title": "slow down"}, **{"retry-after": "60"}), Problem),
    ],
)
def test_select_raises_nothing_and_falls_back(step: Step, kind: type[Exception]) -> None:
    decision = run(Script(step), lambda f: f.select(), fallback=["4", "9"], budget_s=BUDGET_S)
    assert (decision.arm, decision.arms, decision.fallback) == ("4", ("4", "9"), True)
    assert isinstance(decision.error, kind)
    assert run(Script(step), lambda f: f.reward(decision, 1)) is None
    assert run(Script(step), lambda f: f.activate(decision)) is None


def test_without_a_fallback_there_is_no_arm() -> None:
    decision = run(Script(refused), lambda f: f.select(), budget_s=0.01)
    assert (decision.arm, decision.arms, decision.fallback) == (None, (), True)


def test_a_reward_is_sent_until_it_was_answered() -> None:
    script = Script(refused, answer(503, {}), answer(200, {"status": "duplicate"}))
    decision = Decision("a", ("a",), False, decision="token")
    assert run(script, lambda f: f.reward(decision, 1)) == "duplicate"
    assert script.bodies() == [{"decision_id": "token", "reward_id": "", "reward": 1}] * 3


def test_a_reward_that_cannot_count_is_said() -> None:
    decision = Decision("a", ("a",), False, decision="token")
    with pytest.raises(Problem, match="wrong"):
        run(Script(answer(422, {"title": "wrong"})), lambda f: f.reward(decision, 9))
    with pytest.raises(Unreachable, match="refused"):
        run(Script(refused), lambda f: f.reward(decision, 1), reward_s=0.1)


def test_a_reward_of_a_deferred_decision_activates_it_first() -> None:
    script = Script(answer(200, {"status": "activated"}), answer(200, {"status": "accepted"}))
    decision = Decision("a", ("a",), False, decision="t", id="d", experiment="s", deferred=True)
    assert run(script, lambda f: f.cascade(decision, "a")) == "accepted"
    paths = [each.url.raw_path.decode() for each in script.asked]
    assert paths == ["/decisions/d/activate?experiment=s", "/reward"]


# -- against the service ---------------------------------------------------------------------------


@pytest.fixture
def wire() -> Iterator[Wire]:
    with serving() as wire:
        yield wire


def test_the_service_understands_every_call(wire: Wire) -> None:
    transport = httpx.ASGITransport(wire.app)

    async def visit() -> Iterable[Any]:
        async with AsyncForage("http://forage", transport=transport, budget_s=5.0) as forage:
            one = await forage.select(context=CAT, idempotency_key="once")
            same = await forage.select(context=CAT, idempotency_key="once")
            slate = await forage.select(context=CAT, top_k=2, deferred=True)
            return (
                one.id == same.id,
                [await forage.reward(one, 1), await forage.reward(one, 1)],
                [await forage.activate(slate), await forage.activate(slate)],
                await forage.reward(slate, {slate.arms[0]: 0}),
                await forage.cascade(slate, slate.arms[1]),
            )

    same, rewards, activations, first, rest = wire.run(visit())
    assert same
    assert rewards == ["accepted", "duplicate"]
    assert activations == ["activated", "duplicate"]
    assert (first, rest) == ("accepted", "accepted")


# -- without async ---------------------------------------------------------------------------------


@pytest.fixture
def silent() -> Iterator[str]:
    """A service that takes connections, sends a byte now and then, and never an answer."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ended = threading.Event()

        def drip() -> None:
            taken = []
            listener.settimeout(0.05)
            while not ended.is_set():
                with suppress(TimeoutError):
                    taken.append(listener.accept()[0])
                for each in taken:
                    with suppress(OSError):  # its caller has gone
                        each.send(b"H")
            for each in taken:
                each.close()

        thread = threading.Thread(target=drip)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        ended.set()
        thread.join()


@pytest.mark.process
def test_a_service_that_drips_costs_no_more_than_the_budget(silent: str) -> None:
    with Forage(silent, fallback="4", budget_s=BUDGET_S) as forage:
        took_s = []
        for _ in range(3):
            began = time.perf_counter()
            assert forage.select(context=CAT).arm == "4"
            took_s.append(time.perf_counter() - began)
    assert min(took_s) < BUDGET_S + LATE_S


def test_threads_share_one_client() -> None:
    script = Script(answer())
    with Forage("http://forage", transport=script, budget_s=5.0) as forage:
        shown: list[str | None] = []
        visitors = [
            threading.Thread(target=lambda: shown.append(forage.select().arm)) for _ in range(8)
        ]
        for each in visitors:
            each.start()
        for each in visitors:
            each.join()
    assert shown == ["a"] * 8
    assert len({each.headers["idempotency-key"] for each in script.asked}) == 8


def test_errors_of_rewards_come_through() -> None:
    decision = Decision("a", ("a",), False, decision="token")
    script = Script(answer(409, {"title": "another reward"}))
    with Forage("http://forage", transport=script) as forage, pytest.raises(Problem, match="409"):
        forage.reward(decision, 1)


# -- values and refusals ---------------------------------------------------------------------------


def test_numbers_of_numpy_are_sent_as_numbers() -> None:
    script = Script(answer())
    context = {"age": np.float64(3.5), "visits": np.int64(2), "embedding": np.array([0.5, 1.0])}
    assert not run(script, lambda f: f.select(context=context)).fallback
    assert script.bodies() == [{"context": {"age": 3.5, "visits": 2, "embedding": [0.5, 1.0]}}]


@pytest.mark.parametrize("value", [math.nan, math.inf, "\ud800", object(), {1, 2}])
def test_a_value_that_json_cannot_hold_falls_back_and_is_not_sent(value: Any) -> None:
    script = Script(answer())
    decision = run(script, lambda f: f.select(context={"x": value}), fallback="b")
    assert (decision.fallback, decision.arm) == (True, "b")
    assert isinstance(decision.error, Unsendable)
    assert script.asked == []


def test_a_reward_that_json_cannot_hold_is_refused() -> None:
    shown = Decision("a", ("a",), False, decision="token")
    with pytest.raises(Unsendable, match="cannot be sent as JSON"):
        run(Script(answer()), lambda f: f.reward(shown, math.nan))


def test_each_refusal_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """What the network does is not logged: it passes."""
    missing = {"title": "The request is not valid", "errors": [{"path": "context.persona"}]}
    script = Script(*[answer(422, missing)] * 3, answer(401, {"title": "Who is it?"}), refused)

    async def several(forage: AsyncForage) -> list[Decision]:
        found = [await forage.select(context=CAT, budget_s=60.0) for _ in range(4)]
        found.append(await forage.select(context=CAT, budget_s=0.0))
        return [*found, await forage.select(context={"x": math.nan})]

    found = run(script, several, fallback="b")
    assert all(decision.fallback for decision in found)
    told = [record.getMessage() for record in caplog.records if record.name == "forage_client"]
    assert [line.partition(": ")[2][:20] for line in told] == [
        "422 The request is n", "401 Who is it?", "the request cannot b",
    ]  # fmt: skip
