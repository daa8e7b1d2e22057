"""The routes that decide and learn, and those that say how the service is."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any, TypeVar

import msgspec
from fastapi import APIRouter, Depends, Header, Query, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST

from service import __version__
from service.access import Caller, granted
from service.errors import Invalid, Refused, StoreUnavailable
from service.experiment import Name
from service.explain import explain
from service.http.access import CALLER
from service.http.admission import (
    AT_THE_DOOR,
    admit_batch,
    admit_one_of_batch,
    admit_question,
)
from service.http.fast import write_answer, write_status
from service.http.problems import problem_of
from service.http.schemas import (
    ActivationAnswer,
    DecisionAnswer,
    Health,
    Readiness,
    RewardAnswer,
    RewardBatchAnswer,
    RewardBatchBody,
    RewardBody,
    SelectAnswer,
    SelectBatchAnswer,
    SelectBatchBody,
    SelectBody,
)
from service.http.writing import written
from service.question import Question
from service.services import Services


async def services(request: Request) -> Services:  # a plain def would cost a thread
    found: Services = request.app.state.services
    return found


async def caller(request: Request) -> Caller | None:
    """None: keys are off."""
    found: Caller | None = request.scope.get(CALLER)
    return found


Asked = TypeVar("Asked")
Core = Annotated[Services, Depends(services)]
Who = Annotated[Caller | None, Depends(caller)]

Key = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=256,
        description="The same key gives the same decision, as long as its row is in the log: a "
        "request can be repeated. With another request it is refused (409).",
    ),
]

MEANING = {
    400: "The body is not JSON.",
    404: "There is no such thing.",
    409: "The same identity was used with another value.",
    410: "The time for this has passed.",
    412: "Another revision than If-Match names.",
    413: "The body is too large.",
    422: "The request is not valid; `errors` says where.",
    503: "The log cannot be written: try again after `Retry-After` seconds.",
}


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """OpenAPI's account of the errors a route can answer."""
    content = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {
        status: {"description": MEANING[status], "content": content}
        for status in sorted({413, 422, *statuses})
    }


router = APIRouter()


def name_of(who: Caller | None) -> str:
    """Of the key that a request came with; '' where keys are off."""
    return "" if who is None else who.grant.name


@router.post("/select", tags=["decide"], responses=problems(400, 404, 409, 503))
async def select(body: SelectBody, core: Core, who: Who, key: Key = None) -> SelectAnswer:
    """Choose which arm to show. The answer's propensity is the chance with which it was chosen."""
    with core.telemetry.stage("select"):
        question = body.question(key, name_of(who))
        admit_question(core, who, question, AT_THE_DOOR)
        return SelectAnswer.of(await core.engine.select(question))


@router.post("/reward", tags=["decide"], responses=problems(400, 404, 409, 410, 503))
async def reward(body: RewardBody, core: Core) -> RewardAnswer:
    """Say what came of a decision. Answered once durable; the same call again changes nothing."""
    with core.telemetry.stage("reward"):
        return RewardAnswer(status=await core.settlements.reward(body.outcome()))


@router.post(
    "/select/batch", tags=["decide"], responses=problems(400), response_model=SelectBatchAnswer
)
async def select_batch(body: SelectBatchBody, core: Core, who: Who) -> Response:
    """Several decisions at once; each is answered or refused for itself."""
    _expect_batch(core, len(body.requests))
    questions = [request.question(caller=name_of(who)) for request in body.requests]
    admit_batch(core, who, questions)

    async def one(question: Question) -> bytes:
        admit_one_of_batch(core, who, question)
        return write_answer(await core.engine.select(question))

    return await _each(questions, one)


@router.post(
    "/reward/batch", tags=["decide"], responses=problems(400), response_model=RewardBatchAnswer
)
async def reward_batch(body: RewardBatchBody, core: Core, who: Who) -> Response:
    """Several rewards at once; each is accepted or refused for itself."""
    _expect_batch(core, len(body.requests))
    admit_batch(core, who, [None] * len(body.requests))

    async def one(request: RewardBody) -> bytes:
        return write_status(await core.settlements.reward(request.outcome()))

    return await _each(body.requests, one)


def _expect_batch(core: Services, length: int) -> None:
    if length > core.settings.max_batch:
        raise Invalid(f"at most {core.settings.max_batch} requests", path="requests")


async def _each(requests: Sequence[Asked], one: Callable[[Asked], Awaitable[bytes]]) -> Response:
    """All under way at once, so that they share commits of the log; but one begins in a turn of the
    loop, so that other requests have theirs between. Answered as `SelectBatchAnswer` and
    `RewardBatchAnswer` say."""

    async def guarded(request: Asked) -> dict[str, Any]:
        try:
            answer = msgspec.Raw(await one(request))
        except (Refused, StoreUnavailable) as fault:
            problem = problem_of(fault)
            return {"status": problem.status, "answer": None, "problem": problem.model_dump()}
        return {"status": 200, "answer": answer, "problem": None}

    begun = []
    for request in requests:
        begun.append(asyncio.ensure_future(guarded(request)))
        await asyncio.sleep(0)
    results = await asyncio.gather(*begun)
    content = await written({"results": results}, "results")
    return Response(content, media_type="application/json")


@router.get(
    "/decisions/{id}", tags=["decide"], responses=problems(404, 503), response_model=DecisionAnswer
)
async def decision(
    id: str, core: Core, experiment: Annotated[Name | None, Query()] = None
) -> Response:
    """What was decided, and why."""
    found = await explain(core.journal, id, experiment)
    return Response(await written(found, "candidates"), media_type="application/json")


@router.post("/decisions/{id}/activate", tags=["decide"], responses=problems(404, 409, 410, 503))
async def activate(
    id: str, core: Core, experiment: Annotated[Name | None, Query()] = None
) -> ActivationAnswer:
    """Say that a deferred decision was shown: from now on it is learned from, and its default
    reward holds at `reward_by`. The same call again changes nothing."""
    return ActivationAnswer(status=await core.settlements.activate(id, experiment))


@router.get("/healthz", tags=["operate"])
async def healthz(core: Core) -> Health:
    """The process is alive, and what its log promises."""
    return Health(
        status="degraded" if core.journal.degraded else "ok",
        version=__version__,
        store=core.settings.store.partition("://")[0],
        durability=core.journal.store.durability,
        quarantined=len(core.journal.quarantined),
    )


@router.get("/readyz", tags=["operate"], responses={503: {"model": Readiness}})
async def readyz(core: Core, response: Response) -> Readiness:
    """Ready: folded to the log's end, and the log can be written."""
    ready = not (core.journal.degraded or core.journal.behind)
    if not ready:
        response.status_code = 503
    states = core.journal.states.items()
    positions = {name: state.position for name, state in states if granted(name)}
    return Readiness(ready=ready, positions=positions)


@router.get(
    "/metrics",
    tags=["operate"],
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
)
async def metrics(core: Core) -> Response:
    """Prometheus text format."""
    return Response(core.telemetry.expose(), media_type=CONTENT_TYPE_LATEST)
