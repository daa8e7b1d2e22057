"""Pages and scripts for a browser: the SDK, the demo shop, the console, Swagger UI."""

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import quote

import msgspec
from fastapi import FastAPI, Request, Response
from fastapi.responses import RedirectResponse
from starlette.middleware.gzip import GZipMiddleware
from starlette.routing import BaseRoute, Match, Mount, Route, Router
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

WEB: Final = Path(__file__).parent / "static"
MEDIA_TYPES: Final = {
    ".js": "text/javascript; charset=utf-8",
    ".ts": "text/plain; charset=utf-8",
    ".md": "text/markdown; charset=utf-8",
}
"""Media types that the system's table may have otherwise."""

HEADERS: Final = {
    # A browser asks each time and gets 304 for an unchanged file: after an upgrade no page runs an
    # old script.
    "Cache-Control": "no-cache",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
}
PAGE_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; font-src 'self'; connect-src 'self'; manifest-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Frame-Options": "DENY",
}
SDK_HEADERS: Final = {  # pages of other origins load it
    "Access-Control-Allow-Origin": "*",
    "Cross-Origin-Resource-Policy": "cross-origin",
}
COMPRESSED_BYTES: Final = 512
"""Least bytes of a file that is compressed: below, compression saves no packet."""


class SecuredFiles(StaticFiles):
    """A folder, with the security headers of its files."""

    def __init__(self, folder: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(directory=WEB / folder, html=True)
        self._headers = {**HEADERS, **(headers or {})}

    def file_response(
        self,
        full_path: str | os.PathLike[str],
        stat_result: os.stat_result,
        scope: Scope,
        status_code: int = 200,
    ) -> Response:
        answer = super().file_response(full_path, stat_result, scope, status_code)
        kind = Path(full_path).suffix
        if kind in MEDIA_TYPES and answer.status_code != 304:
            answer.headers["Content-Type"] = MEDIA_TYPES[kind]
        answer.headers.update(self._headers)
        if kind == ".html":
            answer.headers.update(PAGE_HEADERS)
        return answer


def static_routes() -> list[BaseRoute]:
    """Make the routes of all folders and of the console's page."""
    console = SecuredFiles("console")

    async def page(request: Request) -> Response:
        return await console.get_response("index.html", request.scope)

    folders = {
        "/console": SecuredFiles("console/console"),
        "/demo": SecuredFiles("demo"),
        "/sdk": SecuredFiles("sdk", SDK_HEADERS),
    }
    return [
        Route("/", page, include_in_schema=False),
        *(Mount(path, GZipMiddleware(each, COMPRESSED_BYTES)) for path, each in folders.items()),
        Mount("/docs", SecuredFiles("docs")),  # to compress its two megabytes would delay decisions
    ]


def redirect_slashes(router: Router) -> None:
    """Have a router redirect a path with a slash too many, or too few, to a relative path.

    It holds behind a proxy that ends TLS, or that serves Forage under a path; Starlette's own
    redirect names the scheme and the host by which the proxy asked.
    """
    unmatched = router.default

    async def redirect(scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        more = path.endswith("/")
        other = {**scope, "path": path[:-1] if more else f"{path}/"}
        if all(each.matches(other)[0] is Match.NONE for each in router.routes):
            await unmatched(scope, receive, send)
            return
        name = quote(path.rstrip("/").rpartition("/")[2], safe="")
        query = scope["query_string"].decode("latin-1")
        target = (f"../{name}" if more else f"{name}/") + f"?{query}" * bool(query)
        await RedirectResponse(target, 308)(scope, receive, send)

    router.redirect_slashes, router.default = False, redirect


def openapi_route(app: FastAPI) -> Route:
    """Make the route of the OpenAPI document. A thread builds it at the first request, in half a
    second; requests that come meanwhile wait for it."""
    content: bytes | None = None
    building = asyncio.Lock()

    async def respond(request: Request) -> Response:
        nonlocal content
        async with building:
            if content is None:
                content = await asyncio.to_thread(lambda: msgspec.json.encode(app.openapi()))
        return Response(content, media_type="application/json")

    return Route("/openapi.json", respond, include_in_schema=False)
