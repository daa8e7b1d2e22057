"""The ASGI application: the edge for its routes, and the gate in front of all others."""

from functools import partial

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.http.edge import Edge
from service.http.gate import Gate, Passage, expect_size
from service.http.overload import PENDING_FACTORS
from service.http.problems import answer_to
from service.http.request_head import CALLER, RequestHead, head_of


class _Exchange:
    """One request and its answer.

    status   of the answer; 500 until it begins
    """

    __slots__ = ("_gate", "_head", "_passage", "_read", "_receive", "_send", "status")

    def __init__(
        self, gate: Gate, head: RequestHead, passage: Passage, receive: Receive, send: Send
    ) -> None:
        self._gate, self._head, self._passage = gate, head, passage
        self._receive, self._send = receive, send
        self.status = 500
        self._read = 0

    async def receive(self) -> Message:
        """Receive a message. Raises HTTPException where the body grows too large: a chunked one
        declares no length."""
        message = await self._receive()
        self._read += len(message.get("body", b""))
        expect_size(self._read, self._passage.limit)
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = self._gate.dress(self._head, self._passage, message["headers"])
        await self._send(message)


class GatedApplication:
    """An ASGI application with the edge beside it, and its other routes behind the gate."""

    def __init__(self, app: ASGIApp, gate: Gate, edge: Edge) -> None:
        self._app, self._gate, self._edge = app, gate, edge

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        path: str = scope["path"]
        if path.endswith("/") and path[:-1] in PENDING_FACTORS:
            scope["path"] = path[:-1]
        head = head_of(scope)
        if (answer := self._gate.preflight(head)) is not None:
            await answer(scope, receive, send)
        elif head.path in self._edge.paths:
            status, fields, content = await self._edge.answer(head, partial(_read, receive))
            await send({"type": "http.response.start", "status": status, "headers": fields})
            await send({"type": "http.response.body", "body": content})
        else:
            await self._pass(head, scope, receive, send)

    async def _pass(self, head: RequestHead, scope: Scope, receive: Receive, send: Send) -> None:
        passage = self._gate.begin(head)
        exchange = _Exchange(self._gate, head, passage, receive, send)
        try:
            await self._serve(scope, passage, exchange)
        finally:
            route: str = getattr(scope.get("route"), "path", "unmatched").replace(":id}", "}")
            self._gate.count(head, passage, route, exchange.status)

    async def _serve(self, scope: Scope, passage: Passage, exchange: _Exchange) -> None:
        if passage.refusal is not None:
            await answer_to(passage.refusal)(scope, exchange.receive, exchange.send)
            return
        if passage.caller is not None:
            scope[CALLER] = passage.caller
        if scope["method"] != "HEAD":
            await self._app(scope, exchange.receive, exchange.send)
        else:
            as_get = {**scope, "method": "GET"}  # uvicorn sends no body
            await self._app(as_get, exchange.receive, exchange.send)
            scope["route"] = as_get.get("route")


async def _read(receive: Receive, limit: float) -> bytes:
    """Receive a body, as `edge.Read` says."""
    body, more = bytearray(), True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        body += message.get("body", b"")
        more = message.get("more_body", False)
        expect_size(len(body), limit)
    return bytes(body)
