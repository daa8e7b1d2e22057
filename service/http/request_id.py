"""An id for each request: the caller's `X-Request-ID` or one of ours, in the answer and the log."""

import os
import re
from itertools import count
from typing import Final

from service.telemetry.logs import REQUEST_ID

HEADER: Final = "X-Request-ID"
HEADER_NAME: Final = b"x-request-id"
SANE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._~:/+=@-]{0,127}")
"""Pattern of ids that are taken from a caller; with any other the request gets one of ours."""

_process = os.urandom(4).hex()
_numbers = count(int.from_bytes(os.urandom(2), "big"))


def current() -> str:
    """Return the id of the request under way, or a new one where there is none."""
    return REQUEST_ID.get(None) or new()


def new() -> str:
    """Names the process and the request, and is no secret."""
    return f"{_process}{next(_numbers):08x}"


def sane(value: bytes) -> str:
    """Return the id that this header gives, or one of ours in its place."""
    text = value.decode("latin-1")
    return text if SANE.fullmatch(text) else new()


def write(headers: list[tuple[bytes, bytes]], id: str) -> list[tuple[bytes, bytes]]:
    """Headers of an answer with this id, and no other."""
    return [*(each for each in headers if each[0] != HEADER_NAME), (HEADER_NAME, id.encode())]
