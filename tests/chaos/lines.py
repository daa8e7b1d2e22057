"""A lean HTTP client: its cost is a tenth of httpx's, whose pool looks at every connection for each
request. What it takes of two cores is lost to the services."""

import asyncio
from collections import defaultdict
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

CONNECT_S: Final = 2.0  # then the next replica: the line of this one is down
HEAD_END: Final = b"\r\n\r\n"

Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class NobodyThere(Exception):
    """It takes no connections."""


class NoAnswer(Exception):
    """The connection broke, or nothing came in time: what became of the request is unknown."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    content: bytes


class Lines:
    """Connections that are kept, each for one request at a time."""

    def __init__(self, attempt_s: float) -> None:
        self._attempt_s = attempt_s
        self._idle: defaultdict[str, list[Ends]] = defaultdict(list)

    async def post(self, url: str, path: str, body: bytes, head: str = "") -> Answer:
        """head: further header lines. Raises NobodyThere, NoAnswer."""
        place = urlsplit(url)
        request = (
            f"POST {path} HTTP/1.1\r\nhost: {place.netloc}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\n{head}\r\n"
        ).encode() + body
        idle = self._idle[url]
        while idle:  # one that the service has closed meanwhile carries nothing
            reader, writer = idle.pop()
            if not (reader.at_eof() or writer.is_closing()):
                break
            writer.transport.abort()
        else:
            reader, writer = await _connected(str(place.hostname), place.port or 80)
        try:
            async with asyncio.timeout(self._attempt_s):
                writer.write(request)
                answer, keep = await _read(reader)
        except (TimeoutError, OSError, EOFError, ValueError, asyncio.LimitOverrunError) as fault:
            writer.transport.abort()
            raise NoAnswer(str(fault)) from fault
        except BaseException:
            writer.transport.abort()
            raise
        if keep:
            idle.append((reader, writer))
        else:
            writer.transport.abort()
        return answer

    def close(self) -> None:
        for idle in self._idle.values():
            for _, writer in idle:
                writer.transport.abort()
        self._idle.clear()


async def _connected(host: str, port: int) -> Ends:
    try:
        async with asyncio.timeout(CONNECT_S):
            return await asyncio.open_connection(host, port)
    except (TimeoutError, OSError) as fault:
        raise NobodyThere(str(fault)) from fault


async def _read(reader: asyncio.StreamReader) -> tuple[Answer, bool]:
    """The answer, and whether its connection goes on."""
    first, *lines = (await reader.readuntil(HEAD_END)).lower().split(b"\r\n")
    values = dict(line.split(b": ", 1) for line in lines if b": " in line)
    content = await reader.readexactly(int(values.get(b"content-length", b"0")))
    return Answer(int(first.split()[1]), content), values.get(b"connection") != b"close"
