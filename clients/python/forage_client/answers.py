"""What an answer of the service says: its body, within bounds, its JSON, its problem, when to come
again."""

from __future__ import annotations

import json
from typing import Any

import httpx

from forage_client.errors import Problem, Unreachable

Json = dict[str, Any]

MOST_BYTES = 1_048_576
"""Bytes of an answer that are read: a ranking of 3,000 arms with names of 256 characters."""


async def read(response: httpx.Response) -> httpx.Response:
    """Return a streamed answer with its body. Raises Unreachable where the body is compressed,
    which nobody asked for and which may unpack to any size, or longer than MOST_BYTES."""
    coding = response.headers.get("content-encoding", "identity").strip().lower()
    if coding != "identity":
        raise _not_forage(str(response.url), f"its answer is compressed: {coding}")
    content = bytearray()
    async for part in response.aiter_bytes():
        content += part
        if len(content) > MOST_BYTES:
            raise _not_forage(str(response.url), f"its answer is longer than {MOST_BYTES:,} bytes")
    return httpx.Response(
        response.status_code,
        headers=response.headers,
        content=bytes(content),
        request=response.request,
        extensions=response.extensions,
    )


def json_of(response: httpx.Response, url: str) -> Json:
    """Return the object that a good answer holds. Raises Unreachable where it holds none."""
    if (body := _object(response)) is None:
        raise _not_forage(url, "its answer is no JSON object")
    return body


def problem_of(response: httpx.Response) -> Problem:
    """Return the service's problem, or what can be said of an answer that is none (a proxy's
    page)."""
    body = _object(response) or {}
    if not isinstance(title := body.get("title"), str):
        return Problem(response.status_code, response.reason_phrase or "error")
    detail, faults = body.get("detail"), body.get("errors")
    return Problem(
        response.status_code,
        title,
        detail if isinstance(detail, str) else "",
        [each for each in faults if isinstance(each, dict)] if isinstance(faults, list) else (),
    )


def retry_after_s(response: httpx.Response) -> float:
    """Return the seconds of Retry-After; 0 where it is missing or a date (the backoff then
    decides)."""
    try:
        return max(0.0, float(response.headers.get("retry-after", 0.0)))
    except ValueError:
        return 0.0


def _object(response: httpx.Response) -> Json | None:
    """Return the JSON object of a body; None where it is anything else, or nested without end."""
    try:
        body = json.loads(response.content)
    except (ValueError, RecursionError):
        return None
    return body if isinstance(body, dict) else None


def _not_forage(url: str, reason: str) -> Unreachable:
    return Unreachable(f"what answers at {url} is not Forage: {reason}")
