"""What a family sends, and what comes back: values, without a socket."""

import json
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

TENANT: Final = "tenant"
"""The admin's key of the attacking tenant."""
PAGE: Final = "page"
"""The key that everybody reads in the source of the attacking tenant's page."""
ORIGIN: Final = "https://attacker.example"
"""Of that page."""
ENDLESS: Final = 4_000_000
"""Bytes of what never ends: far above every bound, and little enough for a campaign."""


class Answer(NamedTuple):
    """What came of a shot.

    kind    a status; or `closed`: without an answer; `open`: the service neither answered nor
            closed in time; `unreached`: no connection
    """

    kind: str
    body: bytes = b""
    seconds: float = 0.0

    @property
    def status(self) -> int:
        """0 where there was none."""
        return int(self.kind) if self.kind.isdigit() else 0

    def json(self) -> Any:
        """None where it is none."""
        try:
            return json.loads(self.body)
        except ValueError:
            return None


@dataclass(frozen=True, slots=True)
class Shot:
    """One hostile request.

    pieces      written one after another, `pause_s` apart
    again       so many bytes at least: the last piece is repeated
    key         whose rate it counts against, "" for none
    must_fail   why it may not succeed; "" where it may
    whole       it can be answered; else the service has to end it by itself
    reads       the client reads the answer
    delay_s     before it is sent
    source      number of the client's address
    """

    pieces: Sequence[bytes]
    again: int = 0
    pause_s: float = 0.0
    key: str = ""
    must_fail: str = ""
    whole: bool = True
    reads: bool = True
    delay_s: float = 0.0
    source: int = 0

    @property
    def target(self) -> str:
        """Method and path, for people."""
        line = self.pieces[0].split(b"\r\n", 1)[0] if self.pieces else b""
        return line[:80].decode("latin-1")


Attack = Generator[Shot, Answer, None]
"""A family at work: it yields shots and is sent their answers."""


@dataclass(frozen=True, slots=True)
class Arsenal:
    """What an attacker has.

    host         of the service, with its port
    keys         texts by name
    tokens, ids  of decisions of the other tenant, as they may have leaked
    """

    host: str
    keys: dict[str, str]
    tokens: Sequence[str]
    ids: Sequence[str]

    def ask(
        self, method: str, path: str, body: Any = None, *, key: str = "",
        headers: Sequence[str] = (), must_fail: str = "", source: int = 0,
    ) -> Shot:  # fmt: skip
        """A whole request. body: JSON, or bytes as they are."""
        content = b"" if body is None else body
        if not isinstance(content, bytes):
            content = json.dumps(body).encode()
        lines = [f"{method} {path} HTTP/1.1", f"Host: {self.host}"]
        if key:
            lines.append(f"Authorization: Bearer {self.keys[key]}")
        if key == PAGE and not any(line.lower().startswith("origin:") for line in headers):
            lines.append(f"Origin: {ORIGIN}")
        if body is not None and not any(each.lower().startswith("content-") for each in headers):
            lines.append("Content-Type: application/json")
        if body is not None:
            lines.append(f"Content-Length: {len(content)}")
        lines += headers
        head = "\r\n".join(lines).encode("utf-8", "surrogateescape")
        return Shot([head + b"\r\n\r\n" + content], key=key, must_fail=must_fail, source=source)
