"""POST /select and /reward, and their batches: one way for every caller, whatever its headers."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from math import inf
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
from msgspec import structs

from service.definition.reward_request import RewardRequest
from service.definition.select_request import Envelope, InlineArm, SelectRequest
from service.errors import Invalid, Overdue, Refused, StoreUnavailable
from service.http import bodies
from service.http.access import BASE_COST
from service.http.problems import problem_of
from service.http.request_head import RequestHead
from service.http.services import Services
from service.security.access import Caller, Grant
from service.security.profile import cost

KEY_CHARACTERS: Final = 256
TIMEOUT_HEADER: Final = b"x-envoy-expected-rq-timeout-ms"
"""Header in which proxies say how many milliseconds the caller waits from here on."""
MOST_DIGITS: Final = 9

READ_SELECT: Final = bodies.reader(SelectRequest)
READ_REWARD: Final = bodies.reader(RewardRequest)
READ_SELECT_BATCH: Final = bodies.batch_reader(SelectRequest)
READ_REWARD_BATCH: Final = bodies.batch_reader(RewardRequest)

Asked = TypeVar("Asked")


class Request(NamedTuple):
    """What a handler needs of one. caller: None where keys are off."""

    head: RequestHead
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
    """The routes by their paths."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self.by_path = {
            route.path: route
            for route in (
                Route("/select", self._select, "select"),
                Route("/reward", self._reward, "reward"),
                Route("/select/batch", self._select_batch),
                Route("/reward/batch", self._reward_batch),
            )
        }

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


def request_of(head: RequestHead, body: bytes, caller: Caller | None, came: float) -> Request:
    """Return a request that came at this time of the event loop. Raises Invalid, and Overdue."""
    if not bodies.is_json(head.last(b"content-type")):
        raise Invalid("send it as JSON, with the header Content-Type: application/json")
    waits = head.last(TIMEOUT_HEADER)  # a value that is no number says nothing
    known = waits.isdigit() and len(waits) <= MOST_DIGITS
    deadline = came + int(waits) / 1_000 if known else inf
    if asyncio.get_running_loop().time() >= deadline:
        raise Overdue
    return Request(head, body, caller, deadline)


def _idempotency_key(request: Request) -> str | None:
    given = request.head.values.get(b"idempotency-key")
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
