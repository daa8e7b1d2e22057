"""Routes whose JSON holds whole characters alone: half of a pair cannot be stored or answered."""

import json
import re
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute

SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
"""An escape that may be half of a pair."""


class StrictRequest(Request):
    async def json(self) -> Any:
        """Raises JSONDecodeError where a text holds half of a surrogate pair, too."""
        value, body = await super().json(), await self.body()
        if SURROGATE.search(body):
            try:
                json.dumps(value, ensure_ascii=False).encode()
            except UnicodeEncodeError as fault:
                raise json.JSONDecodeError(
                    "half of a surrogate pair is no character", body.decode(), 0
                ) from fault
        return value


class StrictRoute(APIRoute):
    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def strict(request: Request) -> Response:
            return await handle(StrictRequest(request.scope, request.receive))

        return strict
