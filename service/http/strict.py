"""Routes whose JSON holds whole characters alone: half of a pair cannot be stored or answered."""

import json
import re
import sys
from collections.abc import Callable, Coroutine
from json import JSONDecodeError
from math import inf
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute

SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
"""An escape that may be half of a pair."""
HALF = "half of a surrogate pair is no character"
DIGITS = sys.int_info.default_max_str_digits
"""Of an integer that Python reads."""


def whole_characters(value: object) -> bool:
    """Whether no text in a value holds half of a surrogate pair."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def read_json(body: bytes) -> Any:
    """Read a body. A number too large for a float is infinite, for the field to refuse, also where
    it is an integer. Raises JSONDecodeError."""
    try:
        try:
            return json.loads(body)
        except (JSONDecodeError, UnicodeDecodeError):
            raise
        except ValueError:
            return json.loads(body, parse_int=_integer)
    except UnicodeDecodeError as fault:
        raise JSONDecodeError("the body is not UTF-8", "", 0) from fault
    except RecursionError as fault:
        raise JSONDecodeError("the body is nested too deep", "", 0) from fault


def _integer(digits: str) -> float:
    return int(digits) if len(digits) <= DIGITS else inf


class JsonRequest(Request):
    async def json(self) -> Any:
        return read_json(await self.body())


class StrictRequest(JsonRequest):
    async def json(self) -> Any:
        """Raises JSONDecodeError where a text holds half of a surrogate pair, too."""
        value, body = await super().json(), await self.body()
        if SURROGATE.search(body) and not whole_characters(value):
            raise JSONDecodeError(HALF, body.decode(), 0)
        return value


class JsonRoute(APIRoute):
    """A route whose items are refused one by one, also for half of a pair."""

    request_class: type[Request] = JsonRequest

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def with_json(request: Request) -> Response:
            return await handle(self.request_class(request.scope, request.receive))

        return with_json


class StrictRoute(JsonRoute):
    request_class = StrictRequest
