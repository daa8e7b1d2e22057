"""One connection: how far its request has come, since when, and whether that took too long.

A protocol of asyncio tells a `Connection` what it reads and answers; `http.connections` has all of
them, and ends those that are overdue.
"""

import asyncio
import resource
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol

from service.errors import ConfigurationError
from service.settings import Settings

Stage = Literal["new", "head", "body", "idle", "closing"]
Reason = Literal[
    "unused", "idle", "head_size", "head_time", "body_time", "unread", "malformed",
    "room", "bound", "address",
]  # fmt: skip
REASONS: Final[tuple[Reason, ...]] = Reason.__args__  # type: ignore[attr-defined]
"""Why the service ended a connection, as `forage_connections_closed_total` counts it.

room            closed for a new one
bound, address  refused: all connections were taken, or the share of an address
"""
BETWEEN: Final = frozenset({"new", "idle"})
"""Stages in which the next byte begins a request."""
STATES: Final = ("new", "head", "body", "answer", "idle", "closing")

FRAME: Final = "GET  HTTP/1.1\r\n\r\n"
PUNCTUATION: Final = ": \r\n"
HURRIED_SECONDS: Final = 2.0
"""What a slow body or reader has in place of the usual time where connections run out."""

MOST: Final = 4_096
"""Connections of a process that has files for more: one core answers no more at a time."""
RESERVED_FILES: Final = 64
"""For store, sockets to others and standard files; an eighth where that is more."""


@dataclass(frozen=True, slots=True)
class Limits:
    """
    per_address        connections of one address (of one /64 of IPv6)
    head_bytes         of a request's line and headers, and of trailers
    unused_seconds     until the first byte of a connection
    head_seconds       from the first byte of a head to its last
    body_seconds       for a body, and `bytes_per_second` more
    answer_seconds     for an answer to be read, and `bytes_per_second` more
    linger_seconds     for a client to read why it was refused
    """

    connections: int
    per_address: int
    head_bytes: int = 16_384
    head_fields: int = 100
    unused_seconds: float = 10.0
    head_seconds: float = 10.0
    idle_seconds: float = 5.0
    body_seconds: float = 30.0
    answer_seconds: float = 30.0
    bytes_per_second: int = 16_384
    linger_seconds: float = 2.0


def limits_of(settings: Settings, files: int | None = None) -> Limits:
    """files: that this process may open; left out: as the system says. Raises ConfigurationError
    where they are too few for the connections that are set."""
    if files is None:
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    possible = MOST if files < 0 else max(1, files - max(RESERVED_FILES, files // 8))
    most = settings.max_connections or min(MOST, possible)
    if 0 <= files < most + RESERVED_FILES and settings.max_connections:
        raise ConfigurationError(
            f"FORAGE_MAX_CONNECTIONS: {most} connections need {most + RESERVED_FILES} open files, "
            f"and this process may have {files}: raise the limit (ulimit -n)"
        )
    return Limits(most, max(1, most // 2), settings.max_head_bytes)


class Served(Protocol):
    """What a protocol offers of its connection."""

    transport: asyncio.Transport

    @property
    def held_back(self) -> bool:
        """Whether the service itself has stopped reading, so that the client cannot send."""

    def end(self, reason: Reason) -> None:
        """Say why where no answer is under way, call `Connection.refused`, and close."""


class HeadTooLarge(Exception):
    """More bytes or fields than a head may have."""


class Connection:
    """What one connection is doing.

    stage     of reading: nothing yet, a head, a body, nothing in between, or refused
    since     when that began; of "idle": when the last answer was written
    pending   requests that are not answered
    unsent    bytes of answers that the client had not taken at the last look
    """

    __slots__ = (
        "_body", "_clock", "_limits", "_loose", "address", "pending", "served", "since", "stage",
        "unread_since", "unsent",
    )  # fmt: skip

    def __init__(
        self, served: Served, address: str, limits: Limits, clock: Callable[[], float]
    ) -> None:
        self.served, self.address = served, address
        self._limits, self._clock = limits, clock
        self.stage: Stage = "new"
        self.since = clock()
        self.pending = self.unsent = 0
        self.unread_since = 0.0
        self._body = self._loose = 0

    # -- what the protocol tells -----------------------------------------------------------------

    def received(self, count: int) -> None:
        """Bytes that are about to be parsed: at most `Limits.head_bytes` at a time."""
        self._loose += count

    def expect_bounded(self, fields: int) -> None:
        """After parsing. Raises HeadTooLarge where a head, its trailers or the frame of a chunk do
        not end."""
        if self._loose > self._limits.head_bytes or fields > self._limits.head_fields:
            raise HeadTooLarge

    def head_begun(self) -> None:
        self.stage, self.since = "head", self._clock()

    def expect_short_head(self, target: bytes, fields: Sequence[tuple[bytes, bytes]]) -> None:
        """Before a head has ended. Raises HeadTooLarge."""
        size = len(FRAME) + len(target) + len(fields) * len(PUNCTUATION)
        for name, value in fields:
            size += len(name) + len(value)
        if len(fields) > self._limits.head_fields or size > self._limits.head_bytes:
            raise HeadTooLarge

    def head_ended(self) -> None:
        self.stage, self.since = "body", self._clock()
        self.pending += 1
        self._body = self._loose = 0

    def body(self, count: int) -> None:
        self._body += count
        self._loose = 0

    def request_ended(self) -> None:
        self.stage, self.since = "idle", self._clock()
        self._loose = 0

    def asked(self) -> None:
        """A request that came whole."""
        self.pending += 1

    def answered(self) -> None:
        self.pending -= 1
        if self.stage in BETWEEN:
            self.stage, self.since = "idle", self._clock()

    def read_on(self) -> None:
        """The client took most of what was to be sent."""
        self.unread_since = self._clock()

    def refused(self) -> None:
        """The client was told why, and may read that before the connection is closed."""
        self.stage, self.since = "closing", self._clock()

    # -- what is asked of it ---------------------------------------------------------------------

    @property
    def state(self) -> str:
        return "answer" if self.pending and self.stage in BETWEEN else self.stage

    def overdue(self, now: float) -> Reason | None:
        """Why it has to end; None: it may go on."""
        limits, waited = self._limits, now - self.since
        if self.unsent:
            return "unread" if now - self.unread_since > limits.answer_seconds else None
        if self.stage == "body":
            return "body_time" if self._behind(now) > limits.body_seconds else None
        if self.stage == "head":
            return "head_time" if waited > limits.head_seconds else None
        if self.pending:
            return None
        if self.stage == "new":
            return "unused" if waited > limits.unused_seconds else None
        return "idle" if waited > limits.idle_seconds else None

    def rank(self, now: float) -> int | None:
        """In which order connections are closed for a new one; None: it is at work."""
        if self.stage == "closing":
            return 0
        if self.unsent:
            return 2 if now - self.unread_since > HURRIED_SECONDS else None
        if self.stage == "body":
            late = self._behind(now) > HURRIED_SECONDS and not self.served.held_back
            return 2 if late else None
        return 1 if not self.pending else None

    def forgive(self, seconds: float) -> None:
        """Time that was not the client's to use."""
        self.since += seconds
        self.unread_since += seconds

    def look_at_unsent(self, now: float) -> None:
        size = self.served.transport.get_write_buffer_size()
        if not self.unsent:
            self.unread_since = now
        elif size < self.unsent:
            taken = (self.unsent - size) / self._limits.bytes_per_second
            self.unread_since = min(now, self.unread_since + taken)
        self.unsent = size

    def _behind(self, now: float) -> float:
        """How long the body has taken beyond what its bytes may take."""
        return now - self.since - self._body / self._limits.bytes_per_second
