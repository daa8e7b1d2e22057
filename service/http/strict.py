"""Routes whose JSON holds whole characters alone, since half of a pair cannot be stored or
answered, and names each member once."""

import json
import re
import sys
from collections.abc import Callable, Coroutine
from json import JSONDecodeError
from math import inf
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from service.definition.members import parse_json, repeated
from service.errors import Refused

SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
"""Pattern of an escape that may be half of a pair."""
HALF = "half of a surrogate pair is no character"
INTEGER_DIGITS = sys.int_info.default_max_str_digits
"""Most digits of an integer that Python reads."""


def whole_characters(value: object) -> bool:
    """Say whether no text in a value holds half of a surrogate pair."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def read_json(body: bytes) -> tuple[Any, bool]:
    """Read a body, and say whether an object in it gives a member more than once. A number too
    large for a float is infinite, for the field to refuse, also where it is an integer. Raises
    JSONDecodeError."""
    try:
        try:
            return parse_json(body)
        except (JSONDecodeError, UnicodeDecodeError):
            raise
        except ValueError:
            return parse_json(body, _integer)
    except UnicodeDecodeError as fault:
        raise JSONDecodeError("the body is not UTF-8", "", 0) from fault
    except RecursionError as fault:
        raise JSONDecodeError("the body is nested too deep", "", 0) from fault


def _integer(digits: str) -> float:
    return int(digits) if len(digits) <= INTEGER_DIGITS else inf


class StrictRequest(Request):
    async def json(self) -> Any:
        """Parse the body. Raises JSONDecodeError, also where a text holds half of a surrogate pair,
        and Invalid where a member is given more than once."""
        body = await self.body()
        value, repeating = read_json(body)
        if SURROGATE.search(body) and not whole_characters(value):
            raise JSONDecodeError(HALF, body.decode(), 0)
        if repeating and (refusal := repeated(value)):
            raise refusal
        return value


class StrictRoute(APIRoute):
    request_class: type[Request] = StrictRequest

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def with_json(request: Request) -> Response:
            try:
                return await handle(self.request_class(request.scope, request.receive))
            except HTTPException as fault:
                if isinstance(fault.__cause__, Refused):  # FastAPI wraps what `json` raises
                    raise fault.__cause__ from None
                raise

        return with_json
