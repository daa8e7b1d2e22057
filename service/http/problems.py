"""Every error as application/problem+json in one shape (RFC 9457), never an echo of the input."""

import logging
from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from service.errors import Fault, Refused, StoreUnavailable
from service.http.schemas import Problem, ProblemFault

logger = logging.getLogger(__name__)

RETRY_AFTER_SECONDS = 1
MEDIA_TYPE = "application/problem+json"
FAULTS = 20
"""Told of one request: a body of a megabyte can hold a hundred thousand."""
ALTERNATIVES = 5
"""Types that a value may have, at most: each that was tried and failed is a fault to pydantic."""
CHARACTERS = 200
"""Of a path or a message, since the names in them are the caller's."""

REFUSALS = {
    400: ("malformed-json", "The body is not JSON"),
    404: ("not-found", "There is no such thing"),
    405: ("method-not-allowed", "The path has no such method"),
    413: ("too-large", "The body is too large"),
}
"""What is refused before it comes to a route: slug and title by status."""


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
    """Short, and fit to be sent: a key of the caller's may hold half a surrogate pair."""
    return text[:CHARACTERS].encode(errors="replace").decode()


def problem_of(fault: Refused | StoreUnavailable) -> Problem:
    if isinstance(fault, StoreUnavailable):
        return problem(
            503, "log-unavailable", "The log cannot be written", "nothing was changed: try again"
        )
    return problem(fault.status, fault.slug, fault.title, fault.detail, fault.faults)


def respond(content: Problem) -> Response:
    headers = {"Retry-After": str(RETRY_AFTER_SECONDS)} if content.status == 503 else None
    return JSONResponse(
        content.model_dump(), content.status, headers=headers, media_type=MEDIA_TYPE
    )


def validation_problem(error: RequestValidationError) -> Problem:
    by_path: dict[str, list[Any]] = {}
    for fault in error.errors()[: ALTERNATIVES * FAULTS]:
        if fault["type"] == "json_invalid":
            return problem(400, *REFUSALS[400], str(fault["ctx"]["error"]))
        by_path.setdefault(_path(fault, error.body), []).append(fault)
    faults = [
        Fault(path, _message(group))
        for path, group in by_path.items()
        if not (
            all(map(_is_of_type, group)) and any(other.startswith(f"{path}.") for other in by_path)
        )
    ]
    return problem(422, "invalid", "The request is not valid", faults[0].message, faults)


def _path(fault: Any, body: Any) -> str:
    """Where a fault is in what was sent: pydantic also names each type that it tried."""
    source, *parts = fault["loc"]
    where, value = [], body
    for index, part in enumerate(parts):
        if source == "body":
            if isinstance(value, list):
                inside = isinstance(part, int) and part < len(value)
            else:
                inside = isinstance(value, dict) and part in value
            missing = fault["type"] == "missing" and index == len(parts) - 1
            if not (inside or missing):
                continue
            value = value[part] if inside else None
        where.append(str(part))
    return ".".join(where)


def _is_of_type(fault: Any) -> bool:
    return str(fault["type"]).endswith(("_type", "_parsing"))


def _message(group: Sequence[Any]) -> str:
    """Of the types that a value may have, those that took it and found it wrong have a say."""
    if len(group) > 1:
        group = [fault for fault in group if not _is_of_type(fault)]
    texts = [
        f"{fault['ctx']['discriminator']} must be one of {fault['ctx']['expected_tags']}"
        if fault["type"] == "union_tag_invalid"  # its own message says the tag that was given
        else str(fault["msg"]).removeprefix("Value error, ")
        for fault in group
    ]
    return "; ".join(dict.fromkeys(texts)) or "is of a type that is not taken here"


def install(app: FastAPI) -> None:
    """Make every error that leaves the app a problem."""

    @app.exception_handler(Refused)
    @app.exception_handler(StoreUnavailable)
    async def _refused(request: Request, fault: Any) -> Response:
        return respond(problem_of(fault))

    @app.exception_handler(RequestValidationError)
    async def _invalid(request: Request, fault: RequestValidationError) -> Response:
        return respond(validation_problem(fault))

    @app.exception_handler(HTTPException)
    async def _http(request: Request, fault: HTTPException) -> Response:
        named = REFUSALS.get(fault.status_code, ("refused", "The request was refused"))
        answer = respond(problem(fault.status_code, *named, str(fault.detail)))
        answer.headers.update(fault.headers or {})
        return answer

    @app.exception_handler(Exception)
    async def _bug(request: Request, fault: Exception) -> Response:
        logger.error("a request failed", exc_info=fault)
        return respond(
            problem(500, "internal", "Something failed inside", "it was logged, and is a bug")
        )
