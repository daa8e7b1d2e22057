"""Pages and scripts for a browser: the SDK, the demo shop, the console, Swagger UI.

Every file of a folder is a route of its own, read and compressed once: no path of a request ever
reaches the disk, and a missing file is a 404 like any other.
"""

import asyncio
import gzip
import hashlib
import json
import mimetypes
from collections.abc import Awaitable, Callable
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from fastapi import FastAPI, Request, Response
from fastapi.responses import RedirectResponse
from starlette.routing import Route

WEB: Final = Path(__file__).parent / "static"

FOLDERS: Final[dict[str, str]] = {
    "/sdk": "sdk",
    "/demo": "demo",
    "/docs": "docs",
    "/": "console",
}
"""Where a folder under service/http/static is served. Its index.html answers at the path itself."""

OPENAPI: Final = "/openapi.json"

KINDS: Final = {".js": "text/javascript", ".ts": "text/plain", ".md": "text/markdown"}
"""Types that the system's table may have otherwise."""

COMPRESSED_BYTES: Final = 512
"""Below, a compressed copy saves no packet."""

HEADERS: Final = {
    # Asked for again each time, and answered with 304 where nothing changed: after an upgrade no
    # page runs an old script.
    "Cache-Control": "no-cache",
    "Vary": "Accept-Encoding",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
}
PAGE_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; font-src 'self'; connect-src 'self'; manifest-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Frame-Options": "DENY",
}
# The SDK is for the pages of others too.
SCRIPT_HEADERS: Final = {
    "Access-Control-Allow-Origin": "*",
    "Cross-Origin-Resource-Policy": "cross-origin",
}


class File(NamedTuple):
    """A file as it is sent."""

    path: str
    content: bytes
    packed: bytes | None  # by gzip, where that is smaller
    headers: dict[str, str]

    async def respond(self, request: Request) -> Response:
        tag = self.headers["ETag"]
        known = request.headers.get("if-none-match", "")
        if tag in (each.strip().removeprefix("W/") for each in known.split(",")):
            return Response(status_code=304, headers=self.headers)
        if self.packed is not None and "gzip" in request.headers.get("accept-encoding", ""):
            headers = self.headers | {"Content-Encoding": "gzip", "ETag": f"W/{tag}"}
            return Response(self.packed, headers=headers)
        return Response(self.content, headers=self.headers)


@cache
def static_routes() -> tuple[Route, ...]:
    """Of every file; they go after all other routes."""
    found = []
    for prefix, folder in FOLDERS.items():
        for file in files_of(prefix, WEB / folder):
            found.append(_route(file.path, file.respond))
            if file.path == f"{prefix}/" != "/":
                found.append(_route(prefix, _add_slash))
    return tuple(found)


def _route(path: str, respond: Callable[[Request], Awaitable[Response]]) -> Route:
    return Route(path, respond, methods=["GET"], include_in_schema=False)


async def _add_slash(request: Request) -> Response:
    """Relative, so that it holds behind a proxy that serves Forage under a path."""
    return RedirectResponse(f"{request.scope['path'].rpartition('/')[2]}/", 308)


def install_openapi(app: FastAPI) -> None:
    """Serve the OpenAPI document. A thread builds it once, in half a second."""

    def build() -> File:
        content = json.dumps(app.openapi(), ensure_ascii=False, separators=(",", ":")).encode()
        return _file(OPENAPI, content, "application/json", {})

    building: asyncio.Task[File] | None = None

    async def respond(request: Request) -> Response:
        nonlocal building
        if building is None:
            building = asyncio.create_task(asyncio.to_thread(build))
        return await (await asyncio.shield(building)).respond(request)

    app.router.routes.append(_route(OPENAPI, respond))


def files_of(prefix: str, folder: Path) -> tuple[File, ...]:
    """Every file below a folder, index.html under the folder's own path with a slash."""
    found = sorted(each for each in folder.rglob("*") if each.is_file())
    return tuple(_read(prefix.rstrip("/"), each, folder) for each in found)


def _read(prefix: str, path: Path, folder: Path) -> File:
    content = path.read_bytes()
    name = path.relative_to(folder).as_posix()
    kind = KINDS.get(path.suffix) or mimetypes.guess_type(name)[0] or "application/octet-stream"
    headers = {
        **(PAGE_HEADERS if kind == "text/html" else {}),
        **(SCRIPT_HEADERS if prefix == "/sdk" else {}),
    }
    where = name.removesuffix("index.html") if path.name == "index.html" else name
    return _file(f"{prefix}/{where}", content, kind, headers)


def _file(path: str, content: bytes, kind: str, headers: dict[str, str]) -> File:
    text = kind.startswith(("text/", "application/json", "image/svg"))
    packed = gzip.compress(content, 9, mtime=0) if text else content
    smaller = COMPRESSED_BYTES <= len(packed) < len(content)
    headers = {
        **HEADERS,
        **headers,
        "Content-Type": f"{kind}; charset=utf-8" if text else kind,
        "ETag": f'"{hashlib.sha256(content).hexdigest()[:20]}"',
    }
    return File(path, content, packed if smaller else None, headers)
