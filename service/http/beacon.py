"""POST /beacon: what a page still had to say when it was left.

`navigator.sendBeacon` is the one call that browsers carry out after a page is gone, whatever the
page. It can set no header: no key in `Authorization`, and across origins no `application/json`
either without a preflight, which nobody is there to wait for. So a beacon is plain text that holds
JSON, with the key inside (a browser key is public; in a query it would stand in every access log).
Here it is opened into the requests that it stands for, in order; each passes keys, limits and
counts as if it had been sent by itself. Without a preflight any page could send one: an origin that
is neither the service's own nor listed is refused.
"""

from typing import Annotated, Final

import msgspec
from msgspec import Meta
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.definition.experiment import NAME
from service.errors import ForeignOrigin, Misdirected
from service.http import request_id
from service.http.access import is_foreign
from service.http.codec import UNREADABLE
from service.http.problems import REFUSALS, cut_off, problem, refusal, respond
from service.http.scope import declared_length, headers_of, with_headers
from service.security.hosts import Hosts

PATH: Final = "/beacon"
Headers = list[tuple[bytes, bytes]]

BYTES: Final = 65_536
"""Browsers keep no more than that under way for a page that is gone."""
ITEMS: Final = 200


class _Activation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    id: Annotated[str, Meta(pattern=r"^[\w-]{1,64}$")]
    experiment: Annotated[str, Meta(pattern=NAME)] | None = None


class _Beacon(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """activate: decisions that were shown, before the rewards; rewards: as in /reward/batch."""

    key: str | None = None
    activate: list[_Activation] = []
    rewards: list[msgspec.Raw] = []


class Beacon:
    """ASGI middleware outside of whatever judges a request."""

    def __init__(self, app: ASGIApp, hosts: Hosts) -> None:
        self._app, self._hosts = app, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] == PATH and scope["method"] == "POST":
            name = request_id.of(scope)
            answer = await self._open(scope, receive, name)
            answer.headers[request_id.HEADER] = name
            await answer(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _open(self, scope: Scope, receive: Receive, id: str) -> Response:
        if not self._hosts.serves(headers_of(scope).get(b"host", ())):
            return refusal(Misdirected("list the host in FORAGE_ALLOWED_HOSTS"))
        if is_foreign(self._hosts, scope):
            return refusal(ForeignOrigin("list the origin in FORAGE_CORS_ORIGINS"))
        content = bytearray()
        too_large = _refuse(413, *REFUSALS[413], f"at most {BYTES} bytes")
        if declared_length(scope) > BYTES:
            return too_large
        try:
            async for chunk in Request(scope, receive).stream():
                content += chunk
                if len(content) > BYTES:
                    return too_large
        except ClientDisconnect:
            return cut_off()
        try:
            beacon = msgspec.json.decode(bytes(content), type=_Beacon)
        except UNREADABLE as fault:
            return _refuse(422, "invalid", "The request is not valid", str(fault))
        if len(beacon.activate) + len(beacon.rewards) > ITEMS:
            return _refuse(422, "invalid", "The request is not valid", f"at most {ITEMS} items")
        parts: list[tuple[str, str, bytes]] = [
            (
                f"/decisions/{each.id}/activate",
                f"experiment={each.experiment}" if each.experiment else "",
                b"",
            )
            for each in beacon.activate
        ]
        parts += [("/reward", "", bytes(reward)) for reward in beacon.rewards]
        headers = _shared_headers(scope, beacon.key, id)
        statuses = [await self._pass(scope, headers, *part) for part in parts]
        return JSONResponse({"statuses": statuses})

    async def _pass(
        self, scope: Scope, headers: Headers, path: str, query: str, content: bytes
    ) -> int:
        """Have one request of a beacon answered; its status."""
        length = b"content-length", b"%d" % len(content)
        inner: Scope = {
            **with_headers(scope, [*headers, length]),
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "state": dict(scope.get("state", {})),
        }
        status = 500

        async def receive() -> Message:
            return {"type": "http.request", "body": content, "more_body": False}

        async def send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]

        await self._app(inner, receive, send)
        return status


def _shared_headers(scope: Scope, key: str | None, id: str) -> Headers:
    """What the requests of a beacon have in common."""
    dropped = {b"content-type", b"content-length", b"transfer-encoding", request_id.NAME}
    if key is not None:
        dropped |= {b"authorization", b"x-api-key"}
    headers = [(name, value) for name, value in scope["headers"] if name not in dropped]
    headers += [(b"content-type", b"application/json"), (request_id.NAME, id.encode())]
    if key is not None:
        headers += [(b"authorization", b"Bearer " + key.encode("latin-1", "replace"))]
    return headers


def _refuse(status: int, slug: str, title: str, detail: str) -> Response:
    return respond(problem(status, slug, title, detail))
