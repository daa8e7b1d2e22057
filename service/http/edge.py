"""The edge of decisions and rewards: a head and a body in, an answer out, whoever carries them."""

import asyncio
from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import Final, NamedTuple

from starlette.requests import ClientDisconnect
from starlette.types import Receive

from service.http import bodies
from service.http.decisions import DecisionRoutes, Route, request_of
from service.http.gate import Gate, Passage, expect_size
from service.http.problems import answer_to
from service.http.request_head import Fields, RequestHead
from service.http.services import Services

METHOD: Final = "POST"
"""The one method of all these routes."""

Read = Callable[[float], Awaitable[bytes]]
"""Receives a body of at most so many bytes. Raises HTTPException for a larger one, and
ClientDisconnect."""


class EdgeAnswer(NamedTuple):
    """A whole answer."""

    status: int
    fields: Fields
    body: bytes


class Edge:
    """Answers requests to these routes. FastAPI, which serves all others, would take five times as
    long.

    routes   by path
    """

    def __init__(self, services: Services) -> None:
        self.gate, self._overload = Gate(services), services.overload
        self.routes = DecisionRoutes(services).by_path
        self._stages = {
            route.stage: services.telemetry.stages.labels(route.stage)
            for route in self.routes.values()
            if route.stage is not None
        }

    async def answer(self, head: RequestHead, read: Read) -> EdgeAnswer:
        """Answer a request to one of these routes. It raises nothing: where the process stops
        within a request, that too is answered as an internal error."""
        route = self.routes[head.path]
        passage = self.gate.begin(head, METHOD)
        fault: BaseException | None = passage.refusal
        if fault is None:
            try:
                content = await self._content(route, head, passage, read)
            except (Exception, asyncio.CancelledError) as caught:
                fault = caught
        if fault is None:
            status = 200
            length = (b"content-length", b"%d" % len(content))
            fields = [length, (b"content-type", bodies.JSON)]
        else:
            problem = answer_to(fault)
            status, fields, content = problem.status_code, problem.raw_headers, bytes(problem.body)
        self.gate.count(head, passage, route.path, status)
        return EdgeAnswer(status, self.gate.dress(head, passage, fields), content)

    async def _content(
        self, route: Route, head: RequestHead, passage: Passage, read: Read
    ) -> bytes:
        came = asyncio.get_running_loop().time()
        try:
            body = await read(passage.limit)
            request = request_of(head, body, passage.caller, came)
            self._overload.waiting += 1  # not before: a slow body is no load
            try:
                return await route.handle(request)
            finally:
                self._overload.waiting -= 1
        finally:
            if route.stage is not None:
                self._stages[route.stage].observe(perf_counter() - passage.start)


async def read_body(receive: Receive, limit: float) -> bytes:
    """Receive a body, as `Read` says."""
    body, more = bytearray(), True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        body += message.get("body", b"")
        more = message.get("more_body", False)
        expect_size(len(body), limit)
    return bytes(body)
