"""Every error as application/problem+json in one shape (RFC 9457). Of the input it repeats names
alone, never a value."""

import logging
from collections.abc import Sequence

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic_core import ErrorDetails
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Match

from service.definition.faults import FAULTS, faults_of
from service.errors import (
    Fault,
    NoFiniteScores,
    Quarantined,
    Refused,
    StoreUnavailable,
    TooManyRequests,
)
from service.http import request_id
from service.http.schemas import Problem, ProblemFault
from service.telemetry.logs import REQUEST_ID

logger = logging.getLogger(__name__)

RETRY_AFTER_SECONDS = 1
MEDIA_TYPE = "application/problem+json"
CHARACTERS = 200
"""Most characters of a path or a message that a problem repeats: the names in them are the
caller's."""

REFUSALS = {
    400: ("malformed-json", "The body is not JSON"),
    404: ("not-found", "Not found"),
    405: ("method-not-allowed", "Method not allowed"),
    413: ("too-large", "The body is too large"),
    415: ("encoded", "The body is compressed"),
}
"""Slugs and titles of refusals before a request reaches a route, by status."""
DETAILS = {
    "Not Found": "no route has this path: /docs lists those there are",
    "Method Not Allowed": "no route of this path has this method: Allow lists those it has",
}
"""Our words for those of Starlette."""


def problem(
    status: int, slug: str, title: str, detail: str, faults: Sequence[Fault] = ()
) -> Problem:
    return Problem(
        type=f"https://forage.dev/problems/{slug}",
        title=title,
        status=status,
        detail=_bounded(detail),
        errors=[
            ProblemFault(path=_bounded(fault.path), message=_bounded(fault.message))
            for fault in faults[:FAULTS]
        ],
    )


def _bounded(text: str) -> str:
    """Short and encodable: a key of the caller's may hold half a surrogate pair."""
    if len(text) > CHARACTERS:  # between two words, where there are any
        short = text[: CHARACTERS - 4]
        text = f"{short.rpartition(' ')[0].rstrip(',;') or short} ..."
    return text.encode(errors="replace").decode()


def problem_of(fault: Refused | StoreUnavailable) -> Problem:
    if isinstance(fault, Quarantined):
        return problem(503, "quarantined", "The experiment is quarantined", str(fault))
    if isinstance(fault, NoFiniteScores):
        return problem(503, "no-finite-scores", "The policy cannot decide", str(fault))
    if isinstance(fault, StoreUnavailable):
        return problem(
            503, "log-unavailable", "The log cannot be written", "nothing was changed: try again"
        )
    return problem(fault.status, fault.slug, fault.title, fault.detail, fault.faults)


def respond(content: Problem) -> Response:
    headers = {"Retry-After": str(RETRY_AFTER_SECONDS)} if content.status == 503 else {}
    if content.status == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="forage"'
    if content.status >= 500:  # by this it is found in the log
        content.request_id = headers[request_id.HEADER] = request_id.current()
    return JSONResponse(
        content.model_dump(), content.status, headers=headers, media_type=MEDIA_TYPE
    )


def validation_problem(error: RequestValidationError, body: object) -> Problem:
    """Describe what is wrong. body: the model of the route's body; None where it has none."""
    errors: Sequence[ErrorDetails] = error.errors()
    if errors[0]["type"] == "json_invalid":
        return problem(400, *REFUSALS[400], str(errors[0]["ctx"]["error"]))
    if isinstance(error.body, bytes):  # not read as JSON: curl, for one, calls it a form
        say = "send it as JSON, with the header Content-Type: application/json"
        return problem(422, "invalid", "The request is not valid", say, [Fault("", say)])
    faults = []
    for source in ("body", "path", "query", "header"):
        own: list[ErrorDetails] = [
            {**error, "loc": error["loc"][1:]} for error in errors if error["loc"][0] == source
        ]
        named = {part: None for e in own for part in e["loc"]}  # outside the body: flat
        faults += faults_of(own, *((error.body, body) if source == "body" else (named,)))
    return problem(422, "invalid", "The request is not valid", faults[0].message, faults)


def bug(fault: BaseException) -> Response:
    """Return the answer to an unexpected exception."""
    REQUEST_ID.set(request_id.current())
    logger.error("a request failed", exc_info=fault)
    return respond(problem(500, "internal", "Internal error", "it was logged, and is a bug"))


def answer_to(fault: BaseException) -> Response:
    """Return the answer to what a route raised, with the headers that its status asks for."""
    if isinstance(fault, Refused | StoreUnavailable):
        answer = respond(problem_of(fault))
        if isinstance(fault, TooManyRequests):
            answer.headers["Retry-After"] = str(fault.retry_after_s)
        return answer
    if isinstance(fault, HTTPException):
        named = REFUSALS.get(fault.status_code, ("refused", "The request was refused"))
        detail = DETAILS.get(str(fault.detail), str(fault.detail))
        answer = respond(problem(fault.status_code, *named, detail))
        answer.headers.update(fault.headers or {})
        return answer
    if isinstance(fault, ClientDisconnect):
        # nobody reads it, but it counts as no fault of ours
        whole = problem(400, "cut-off", "The body is incomplete", "the connection ended within it")
        return respond(whole)
    return bug(fault)


def _methods(request: Request) -> set[str]:
    """Return the methods of all routes of the path: Starlette names only those of the first."""
    found = {
        method
        for method in ("GET", "POST", "PUT", "PATCH", "DELETE")
        for route in request.app.routes
        if route.matches({**request.scope, "method": method})[0] is Match.FULL
    }
    return found | {"HEAD"} if "GET" in found else found


def install(app: FastAPI) -> None:
    """Make every error that leaves the app a problem."""

    async def answer(request: Request, fault: Exception) -> Response:
        if isinstance(fault, RequestValidationError):
            field = getattr(request.scope.get("route"), "body_field", None)
            body = None if field is None else field.field_info.annotation
            return respond(validation_problem(fault, body))
        response = answer_to(fault)
        if isinstance(fault, HTTPException) and fault.status_code == 405:
            response.headers["Allow"] = ", ".join(sorted(_methods(request)))
        return response

    refusals = Refused, StoreUnavailable, RequestValidationError, HTTPException, ClientDisconnect
    for kind in (*refusals, Exception):
        app.add_exception_handler(kind, answer)
