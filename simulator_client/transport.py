"""httpx over the keep-alive connections of `wire`."""

import httpx

from simulator_client.wire import Lost, Origin, Pool

ERRORS: dict[str, type[httpx.TransportError]] = {
    "refused": httpx.ConnectError,
    "unreached": httpx.ConnectTimeout,
    "timeout": httpx.ReadTimeout,
    "closed": httpx.RemoteProtocolError,
    "broken": httpx.RemoteProtocolError,
}


class DirectTransport(httpx.AsyncBaseTransport):
    """Sends a request whole and reads the answer whole.

    Raises httpx.ConnectError or ConnectTimeout if the request cannot have arrived, ReadTimeout or
    RemoteProtocolError if it may have.
    """

    def __init__(self) -> None:
        self._pool = Pool()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Answer `request`; `extensions["timeout"]` has httpx's `connect` and `read` seconds."""
        limits = request.extensions.get("timeout", {})
        url = request.url
        origin = Origin(url.scheme, url.host, url.port or (443 if url.scheme == "https" else 80))
        try:
            answer = await self._pool.ask(
                origin,
                _encoded(request),
                connect_s=limits.get("connect"),
                answer_s=limits.get("read"),
            )
        except Lost as lost:
            told = f"{origin.host}:{origin.port}: {lost}"
            raise ERRORS[str(lost)](told, request=request) from lost
        return httpx.Response(answer.status, headers=answer.headers(), content=answer.body)

    async def aclose(self) -> None:
        self._pool.close()


def _encoded(request: httpx.Request) -> bytes:
    """Return the request's bytes; its headers come from the client and hold no line breaks."""
    lines = [b"%s %s HTTP/1.1" % (request.method.encode(), request.url.raw_path)]
    lines += [b"%s: %s" % (name, value) for name, value in request.headers.raw]
    return b"\r\n".join(lines) + b"\r\n\r\n" + request.content
