"""POST /select and /reward, and their batches: one way for every caller, whatever its headers.

A plain ASGI application behind the same middleware as all other routes. FastAPI, which serves all
others, would take five times as long for such a request.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from math import inf
from time import perf_counter
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
from msgspec import structs
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from service.definition.reward_request import RewardRequest
from service.definition.select_request import Envelope, InlineArm, SelectRequest
from service.errors import Invalid, Overdue, Refused, StoreUnavailable
from service.http import bodies
from service.http.access import BASE_COST
from service.http.problems import answer_to, problem_of
from service.http.request_head import CALLER, head_of
from service.http.services import Services
from service.security.access import Caller, Grant
from service.security.profile import cost

KEY_CHARACTERS: Final = 256
TIMEOUT_HEADER: Final = b"x-envoy-expected-rq-timeout-ms"
"""Header in which proxies say how many milliseconds the caller waits from here on."""
MOST_DIGITS: Final = 9
NOT_SENT: Final = [b""]
"""The values of a header that was not sent."""

READ_SELECT: Final = bodies.reader(SelectRequest)
READ_REWARD: Final = bodies.reader(RewardRequest)
READ_SELECT_BATCH: Final = bodies.batch_reader(SelectRequest)
READ_REWARD_BATCH: Final = bodies.batch_reader(RewardRequest)

Asked = TypeVar("Asked")


class Request(NamedTuple):
    """What a handler needs of one. caller: None where keys are off."""

    headers: Mapping[bytes, list[bytes]]
    body: bytes
    caller: Caller | None
    deadline: float

    @property
    def grant(self) -> Grant | None:
        return None if self.caller is None else self.caller.grant

    @property
    def caller_name(self) -> str:
        return "" if self.caller is None else self.caller.grant.name


class Route(NamedTuple):
    """Route of decisions and rewards. stage: under which the duration is observed; None: it is
    not."""

    path: str
    handle: Callable[[Request], Awaitable[bytes]]
    stage: str | None = None


class DecisionRoutes:
    """ASGI application for these routes, in front of the one for the others."""

    def __init__(self, app: ASGIApp, services: Services) -> None:
        self._app, self._services = app, services
        self._routes = {
            route.path: route
            for route in (
                Route("/select", self._select, "select"),
                Route("/reward", self._reward, "reward"),
                Route("/select/batch", self._select_batch),
                Route("/reward/batch", self._reward_batch),
            )
        }
        self._stages = {
            route.stage: services.telemetry.stages.labels(route.stage)
            for route in self._routes.values()
            if route.stage is not None
        }
        self._overload = services.overload

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = self._routes.get(scope["path"]) if scope["type"] == "http" else None
        if route is None:
            await self._app(scope, receive, send)
            return
        scope["route"] = route
        if scope["method"] != "POST":
            refused = HTTPException(405, "the path takes POST", {"Allow": "POST"})
            await answer_to(refused)(scope, receive, send)
            return
        start, came = perf_counter(), asyncio.get_running_loop().time()
        try:
            request = await self._request(scope, receive, came)
            self._overload.waiting += 1  # not before: a slow body is no load
            try:
                content = await route.handle(request)
            finally:
                self._overload.waiting -= 1
        except Exception as fault:
            await answer_to(fault)(scope, receive, send)
        else:
            await send(
                {
                    "type": "http.response.start",
                    "status": 200,
                    "headers": [
                        (b"content-length", b"%d" % len(content)),
                        (b"content-type", bodies.JSON),
                    ],
                }
            )
            await send({"type": "http.response.body", "body": content})
        finally:
            if route.stage is not None:
                self._stages[route.stage].observe(perf_counter() - start)

    async def _request(self, scope: Scope, receive: Receive, came: float) -> Request:
        """Receive a request that came at this time of the event loop. Raises Overdue."""
        body = await _body(receive)
        caller: Caller | None = scope.get(CALLER)
        headers = head_of(scope).values
        if not bodies.is_json(headers.get(b"content-type", NOT_SENT)[-1]):
            raise Invalid("send it as JSON, with the header Content-Type: application/json")
        deadline = came + _timeout_seconds(headers)
        if asyncio.get_running_loop().time() >= deadline:
            raise Overdue
        return Request(headers, body, caller, deadline)

    async def _select(self, request: Request) -> bytes:
        question = READ_SELECT(request.body)
        envelope = Envelope(_idempotency_key(request), request.caller_name, request.deadline)
        question = self._admit(request.caller, question)
        return bodies.write_answer(await self._services.selector.select(question, envelope))

    async def _reward(self, request: Request) -> bytes:
        reward = READ_REWARD(request.body)
        return bodies.write_outcome(await self._services.settlements.reward(reward, request.grant))

    async def _select_batch(self, request: Request) -> bytes:
        questions = READ_SELECT_BATCH(request.body)
        self._expect_batch(len(questions))
        envelope = Envelope(caller=request.caller_name)
        self._admit_batch(
            request.caller, [None if isinstance(each, Refused) else each for each in questions]
        )

        async def one(question: SelectRequest) -> bytes:
            question = self._admit(request.caller, question, in_batch=True)
            return bodies.write_answer(await self._services.selector.select(question, envelope))

        return await _each(questions, one)

    async def _reward_batch(self, request: Request) -> bytes:
        requests = READ_REWARD_BATCH(request.body)
        self._expect_batch(len(requests))
        self._admit_batch(request.caller, [None] * len(requests))

        async def one(reward: RewardRequest) -> bytes:
            return bodies.write_outcome(
                await self._services.settlements.reward(reward, request.grant)
            )

        return await _each(requests, one)

    def _admit(
        self, caller: Caller | None, question: SelectRequest, *, in_batch: bool = False
    ) -> SelectRequest:
        """Hold one question against the key and its rates; with a key, the result names the
        experiment. Raises Forbidden, TooManyRequests, and Invalid where the name is needed.

        caller     None where keys are off
        in_batch   address and key were charged with the batch
        """
        if caller is None:
            return question
        access = self._services.access
        access.expect_allowed(caller, question)
        whole = self._cost(question)
        access.charge(caller, whole, whole if in_batch else BASE_COST, question.unit)
        name = self._services.experiments.resolve(question.experiment)
        caller.grant.expect(name)
        return question if question.experiment else structs.replace(question, experiment=name)

    def _admit_batch(
        self, caller: Caller | None, questions: Sequence[SelectRequest | None]
    ) -> None:
        """Charge a batch of questions, or of rewards (None). Raises Forbidden, TooManyRequests."""
        if caller is not None:
            self._services.access.expect_batch(caller, len(questions))
            whole = sum(BASE_COST if each is None else self._cost(each) for each in questions)
            self._services.access.charge(caller, whole, BASE_COST)

    def _cost(self, question: SelectRequest) -> int:
        """Return the cost by the named arms, or else by those of the catalogue."""
        arms = question.arms
        if arms is None:
            return cost(
                self._services.experiments.most_candidates(question.experiment), question.top_k
            )
        inline = sum(isinstance(arm, InlineArm) for arm in arms)
        return cost(len(arms), question.top_k, inline)

    def _expect_batch(self, length: int) -> None:
        most = self._services.settings.max_batch
        if length > most:
            raise Invalid(f"at most {most} requests", path="requests")


async def _body(receive: Receive) -> bytes:
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientDisconnect
    first: bytes = message.get("body", b"")
    if not message.get("more_body", False):
        return first
    parts = [first]
    while message.get("more_body", False):
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        parts.append(message.get("body", b""))
    return b"".join(parts)


def _timeout_seconds(headers: Mapping[bytes, list[bytes]]) -> float:
    """So long its caller waits. A value that is no number says nothing."""
    given = headers.get(TIMEOUT_HEADER, NOT_SENT)[-1]
    return int(given) / 1_000 if given.isdigit() and len(given) <= MOST_DIGITS else inf


def _idempotency_key(request: Request) -> str | None:
    given = request.headers.get(b"idempotency-key")
    if given is None:
        return None
    key = given[-1].decode("latin-1")
    if 1 <= len(key) <= KEY_CHARACTERS:
        return key
    raise Invalid(f"must have 1 to {KEY_CHARACTERS} characters", path="Idempotency-Key")


async def _each(
    requests: Sequence[Asked | Refused], one: Callable[[Asked], Awaitable[bytes]]
) -> bytes:
    """Answer all requests of a batch, as `SelectBatchAnswer` and `RewardBatchAnswer` say.

    requests   those that could be read, and the faults of the others

    All are under way at once, so that they share commits of the log. One starts in each turn of the
    loop, so that other requests go on in between.
    """

    async def guarded(request: Asked | Refused) -> dict[str, Any]:
        try:
            if isinstance(request, Refused):
                raise request
            answer = msgspec.Raw(await one(request))
        except (Refused, StoreUnavailable) as fault:
            problem = problem_of(fault)
            return {"status": problem.status, "answer": None, "problem": problem.model_dump()}
        return {"status": 200, "answer": answer, "problem": None}

    started = []
    for request in requests:
        started.append(asyncio.ensure_future(guarded(request)))
        await asyncio.sleep(0)
    results = await asyncio.gather(*started)
    return msgspec.json.encode({"results": results})
