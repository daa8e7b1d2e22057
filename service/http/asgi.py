"""The ASGI application: the edge for its routes, and the gate in front of all others."""

from functools import partial

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.http.edge import Edge, read_body
from service.http.gate import expect_size
from service.http.overload import PENDING_FACTORS
from service.http.problems import answer_to
from service.http.request_head import CALLER, RequestHead


class GatedApplication:
    """An ASGI application with the edge beside it, and its other routes behind the gate."""

    def __init__(self, app: ASGIApp, edge: Edge) -> None:
        self._app, self._gate, self._edge = app, edge.gate, edge

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        path: str = scope["path"]
        if path.endswith("/") and path[:-1] in PENDING_FACTORS:
            path = scope["path"] = path[:-1]
        fields, client = scope["headers"], scope.get("client")
        head = RequestHead(scope["method"], path, fields, scope["scheme"], client)
        if (answer := self._gate.cors.preflight(head)) is not None:
            await answer(scope, receive, send)
        elif path in self._edge.routes:
            status, fields, content = await self._edge.answer(head, partial(read_body, receive))
            await send({"type": "http.response.start", "status": status, "headers": fields})
            await send({"type": "http.response.body", "body": content})
        else:
            await self._pass(head, scope, receive, send)

    async def _pass(self, head: RequestHead, scope: Scope, receive: Receive, send: Send) -> None:
        passage = self._gate.begin(head)
        status, size = 500, 0

        async def receive_bounded() -> Message:
            """Receive a part of a body: a chunked one declares no length."""
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            expect_size(size, passage.limit)
            return message

        async def send_dressed(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = self._gate.dress(head, passage, message["headers"])
            await send(message)

        app = self._app if passage.refusal is None else answer_to(passage.refusal)
        if passage.caller is not None:
            scope[CALLER] = passage.caller
        if head.method == "HEAD":
            scope = {**scope, "method": "GET"}  # uvicorn sends no body
        try:
            await app(scope, receive_bounded, send_dressed)
        finally:
            route: str = getattr(scope.get("route"), "path", "unmatched").replace(":id}", "}")
            self._gate.count(head, passage, route, status)
