"""The direct transport over a real socket: keep-alive, both body forms, every way to fail."""

import asyncio
from collections.abc import Awaitable, Callable

import httpx
import pytest

from simulator_client.transport import DirectTransport

OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def served(talk: Talk, calls: int = 1, read_s: float = 5.0) -> list[httpx.Response]:
    """Post `calls` times to a server that talks so."""

    conversations: list[asyncio.Task[None]] = []

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        conversations.append(asyncio.current_task())
        await talk(reader, writer)
        writer.close()
        await asyncio.gather(writer.wait_closed(), return_exceptions=True)

    async def run() -> list[httpx.Response]:
        server = await asyncio.start_server(converse, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        transport = DirectTransport()
        try:
            return [await post(transport, port, read_s) for _ in range(calls)]
        finally:
            await transport.aclose()
            server.close()
            await asyncio.gather(*conversations)

    return asyncio.run(run())


async def post(transport: DirectTransport, port: int, read_s: float) -> httpx.Response:
    timeout = {"connect": 5.0, "read": read_s}
    url = f"http://127.0.0.1:{port}/select?a=1"
    request = httpx.Request("POST", url, content=b'{"x": 1}', extensions={"timeout": timeout})
    return await transport.handle_async_request(request)


def repeating(answer: bytes, seen: list[bytes], *, close: bool = False) -> Talk:
    """Answers every request on a connection with the same bytes."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(b"connected")
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                seen.append(head + await reader.readexactly(8))
                writer.write(answer)
                if close:
                    break
        except asyncio.IncompleteReadError:
            pass

    return talk


def test_requests_share_a_connection() -> None:
    seen: list[bytes] = []
    answers = served(repeating(OK, seen), calls=3)
    assert [(answer.status_code, answer.json()) for answer in answers] == [(200, {})] * 3
    assert len(seen) == 4
    head, _, body = seen[1].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /select?a=1 HTTP/1.1\r\n")
    assert b"content-length: 8" in head.lower()
    assert b"host: 127.0.0.1:" in head.lower()
    assert body == b'{"x": 1}'


def test_a_connection_that_the_service_closes_is_opened_again() -> None:
    seen: list[bytes] = []
    closing = b"HTTP/1.1 503 Later\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
    answers = served(repeating(closing, seen, close=True), calls=2)
    assert [answer.status_code for answer in answers] == [503, 503]
    assert seen.count(b"connected") == 2


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nshort"])
def test_a_broken_answer_may_have_arrived(answer: bytes) -> None:
    with pytest.raises(httpx.RemoteProtocolError):
        served(repeating(answer, [], close=True))


def test_no_answer_in_time() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    with pytest.raises(httpx.ReadTimeout):
        served(silent, read_s=0.05)


def test_nobody_listens() -> None:
    async def run() -> None:
        server = await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        server.close()
        await server.wait_closed()
        await post(DirectTransport(), port, 5.0)

    with pytest.raises(httpx.ConnectError):
        asyncio.run(run())
