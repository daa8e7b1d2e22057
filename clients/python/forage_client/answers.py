"""What an answer of the service says: its JSON, its problem, when to come again."""

from __future__ import annotations

import json
from typing import Any

import httpx

from forage_client.errors import Problem, Unreachable

Json = dict[str, Any]


def json_of(response: httpx.Response, url: str) -> Json:
    """The object that a good answer holds. Raises Unreachable where it holds none."""
    if response.status_code == 204:
        return {}
    try:
        body = json.loads(response.content)
    except ValueError as error:
        raise Unreachable(f"what answers at {url} is not Forage (no JSON)") from error
    if not isinstance(body, dict):
        raise Unreachable(f"what answers at {url} is not Forage (no JSON object)")
    return body


def problem_of(response: httpx.Response) -> Problem:
    """The service's problem, or what can be said of an answer that is none (a proxy's page)."""
    try:
        body = json.loads(response.content)
        if isinstance(body, dict) and "title" in body:
            faults = body.get("errors") or ()
            return Problem(response.status_code, body["title"], body.get("detail", ""), faults)
    except ValueError:
        pass
    return Problem(response.status_code, response.reason_phrase or "error")


def retry_after_s(response: httpx.Response) -> float:
    """Seconds of Retry-After; 0 where it is missing or a date (the backoff then decides)."""
    try:
        return max(0.0, float(response.headers.get("retry-after", 0.0)))
    except ValueError:
        return 0.0
