"""The hot path: /select and /reward without a framework between the wire and the engine.

A body that is wholly in order is decoded once, into typed values, and answered here. Whatever is
unusual in any way (a header with a meaning, a chunked body, a field that is not as it should be)
goes on to the ordinary route, which judges it: what is said of faults is said there alone. What is
accepted here the ordinary route accepts with equal values, and both answer alike.
"""

from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, datetime
from time import perf_counter
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from fastapi import FastAPI
from msgspec import Meta
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.engine import InlineArm, Question
from service.errors import Refused, StoreUnavailable
from service.experiment import NAME
from service.http.problems import bug, problem_of, respond
from service.services import Services
from service.settlement import Outcome, Status

Asked = TypeVar("Asked")

Name = Annotated[str, Meta(pattern=NAME)]
Id = Annotated[str, Meta(min_length=1, max_length=128)]
Text = Annotated[str, Meta(max_length=256)]
Value = bool | float | Text | list[float]
Values = Annotated[dict[str, Value], Meta(max_length=256)]


class _Arm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    id: Id
    features: Values = {}


class _Select(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """As `schemas.SelectBody`."""

    experiment: Name | None = None
    policy: Name | None = None
    unit: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    context: Values = {}
    arms: Annotated[list[Id | _Arm], Meta(min_length=1)] | None = None
    top_k: Annotated[int, Meta(ge=1)] = 1
    deferred: bool = False

    def question(self) -> Question:
        arms: list[str | InlineArm] | None = self.arms  # type: ignore[assignment]
        if arms is not None and _Arm in set(map(type, arms)):
            arms = [
                arm if isinstance(arm, str) else InlineArm(arm.id, arm.features) for arm in arms
            ]
        return Question(
            self.context, self.experiment, self.policy, self.unit, arms, self.top_k, None,
            self.deferred,
        )  # fmt: skip


class _Reward(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """As `schemas.RewardBody`."""

    decision_id: Annotated[str, Meta(min_length=1, max_length=1_024)]
    reward: float | None = None
    rewards: Annotated[dict[Id, float], Meta(min_length=1, max_length=100)] | None = None
    feedback: Literal["cascade"] | None = None
    clicked: Id | None = None
    reward_id: Text = ""

    def __post_init__(self) -> None:
        given = (self.reward is not None) + (self.rewards is not None) + (self.feedback is not None)
        if given != 1 or (self.clicked is not None and self.feedback is None):
            raise ValueError("not one form")

    def outcome(self) -> Outcome:
        return Outcome(
            self.decision_id,
            self.reward,
            self.rewards,
            self.feedback is not None,
            self.clicked,
            self.reward_id,
        )


class _Ranked(msgspec.Struct):
    arm: str
    propensity: float


class _SelectAnswer(msgspec.Struct):
    """As `schemas.SelectAnswer`."""

    id: str
    decision_id: str
    arm: str
    propensity: float
    ranking: list[_Ranked]
    slate_propensity: float | None
    experiment: str
    policy: str
    model_version: str
    logged: bool
    reward_by: datetime
    accept_until: datetime


_decode_select = msgspec.json.Decoder(_Select).decode
_decode_reward = msgspec.json.Decoder(_Reward).decode
_encode = msgspec.json.Encoder().encode
_REWARDED: dict[Status, bytes] = {
    status: _encode({"status": status}) for status in ("accepted", "duplicate", "corrected")
}

JSON = b"application/json"
JSON_HEADER = (b"content-type", JSON)
UNUSUAL = {b"idempotency-key", b"transfer-encoding", b"content-encoding"}


def read_select(body: bytes) -> Question | None:
    """None: not for here."""
    try:
        return _decode_select(body).question()
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def read_reward(body: bytes) -> Outcome | None:
    """None: not for here."""
    try:
        return _decode_reward(body).outcome()
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


async def select(services: Services, question: Question) -> bytes:
    answer = await services.engine.select(question)
    decision = answer.decision
    shown = decision.shown
    first = shown[0]
    return _encode(
        _SelectAnswer(
            decision.id,
            answer.token,
            first.arm,
            first.propensity,
            [_Ranked(arm.arm, arm.propensity) for arm in shown],
            decision.slate if len(shown) > 1 else None,
            answer.experiment,
            decision.policy,
            decision.model_version,
            answer.logged,
            datetime.fromtimestamp(decision.reward_by, UTC),
            datetime.fromtimestamp(decision.accept_until, UTC),
        )
    )


async def reward(services: Services, outcome: Outcome) -> bytes:
    return _REWARDED[await services.settlements.reward(outcome)]


class Fast(FastAPI):
    """The application, with a way past its middleware and routing for the two hot routes.

    ordinary   what answers all else; whoever serves may put something before it that the hot
               routes have no need of
    """

    services: Services

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.ordinary: ASGIApp = super().__call__

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "POST":
            path = scope["path"]
            if path == "/select":
                await self._hot(scope, receive, send, "select", read_select, select)
                return
            if path == "/reward":
                await self._hot(scope, receive, send, "reward", read_reward, reward)
                return
        await self.ordinary(scope, receive, send)

    async def _hot(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        name: str,
        read: Callable[[bytes], Asked | None],
        answer: Callable[[Services, Asked], Awaitable[bytes]],
    ) -> None:
        limit = self.services.settings.max_body_bytes
        if not _usual(scope["headers"], limit):
            await self.ordinary(scope, receive, send)
            return
        message = await receive()
        asked = None if message.get("more_body") else read(message.get("body", b""))
        if asked is None:
            await self.ordinary(scope, _again(message, receive), send)
            return
        await self._answer(scope, receive, send, name, answer(self.services, asked))

    async def _answer(
        self, scope: Scope, receive: Receive, send: Send, name: str, work: Awaitable[bytes]
    ) -> None:
        """As the ordinary route does: its errors, stage and count of requests."""
        telemetry, status = self.services.telemetry, 500
        start = perf_counter()
        try:
            try:
                content = await work
            finally:
                telemetry.stages.labels(name).observe(perf_counter() - start)
            status = 200
            length = b"%d" % len(content)
            headers = [(b"content-length", length), JSON_HEADER]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": content})
        except (Refused, StoreUnavailable) as fault:
            refusal = respond(problem_of(fault))
            status = refusal.status_code
            await refusal(scope, receive, send)
        except Exception as fault:
            await bug(fault)(scope, receive, send)
            raise
        finally:
            telemetry.requests.labels(f"/{name}", "POST", str(status)).inc()


def _usual(headers: Iterable[tuple[bytes, bytes]], limit: int) -> bool:
    """One whole body of JSON within the limit, and no header that the hot path does not know."""
    kinds = 0
    for name, value in headers:
        if name == b"content-type":
            if value != JSON:
                return False
            kinds += 1
        elif name == b"content-length":
            if not value.isdigit() or int(value) > limit:
                return False
        elif name in UNUSUAL:
            return False
    return kinds == 1


def _again(message: Message, receive: Receive) -> Receive:
    """Give a message that was read to whoever reads next."""
    first = [message]

    async def replay() -> Message:
        return first.pop() if first else await receive()

    return replay
