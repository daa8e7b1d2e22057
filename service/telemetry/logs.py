"""The log of a process, on stderr: lines to read on a terminal, JSON objects for a collector.

The modules log through `logging`, as the libraries do that they use; structlog gives each line its
fields, among them the id of its request. A last step hides secrets in the whole line.
"""

import base64
import logging
import os
import re
import sys
from collections.abc import Iterable
from contextvars import ContextVar
from typing import IO, Literal

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

changes = logging.getLogger("forage.changes")
"""Logger of all changes, so that a collector can keep their lines apart."""

HIDDEN = "[hidden]"

SECRET_PATTERNS = [
    (re.compile(r"\bfk_[\w-]+"), HIDDEN),  # API keys
    (re.compile(r"(?i)\b(bearer|basic)\s+[^\s'\",;]+"), rf"\1 {HIDDEN}"),
    (re.compile(r"(?i)\b((?:x-api-key|authorization)['\"]?\s*[:=,]\s*b?['\"]?)"
                r"(?!(?:bearer|basic)\s)[^\s'\",;]+"), rf"\1{HIDDEN}"),
    (re.compile(r"(?i)\b([a-z][a-z0-9+.-]*://)[^\s/@]*:[^\s@]*@"), rf"\1{HIDDEN}@"),
    (re.compile(r"(?i)\b((?:sentinel_)?password=)[^\s&'\"]+"), rf"\1{HIDDEN}"),
    (re.compile(r"(?i)\b(FORAGE_TOKEN_KEYS['\"]?\s*[:=]\s*['\"]?)[^\s'\"]+"), rf"\1{HIDDEN}"),
    (re.compile(r"(?<![\w-])[\w-]{80,}(?![\w-])", re.ASCII), HIDDEN),  # tokens: 120 and more
]  # fmt: skip
"""Patterns of secrets, and what to write in their place."""

CONTROL = {code: f"\\x{code:02x}" for code in (*range(9), *range(10, 32), *range(127, 160))}
"""Escapes of control characters: a caller's text may neither begin a line of its own nor move a
terminal's cursor."""


def log_to_stderr(
    level: str, form: Literal["auto", "console", "json"], token_keys: Iterable[bytes] = ()
) -> None:
    """Send the log of all libraries to stderr, from `level` on. The log never holds token_keys."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter(form, sys.stderr, token_keys))
    logging.basicConfig(level=level.upper(), handlers=[handler])
    logging.getLogger("httpx").setLevel(logging.WARNING)
    logging.getLogger("psycopg").setLevel(logging.ERROR)  # it warns of what it raises as well


def log_as(
    level: str, form: Literal["auto", "console", "json"], token_keys: Iterable[bytes] = ()
) -> None:
    """Change what `log_to_stderr` has set."""
    root = logging.getLogger()
    root.setLevel(level.upper())
    for handler in root.handlers:
        handler.setFormatter(formatter(form, sys.stderr, token_keys))


REQUEST_ID: ContextVar[str] = ContextVar("REQUEST_ID")
"""Id of the current request."""


def _add_request_id(_: WrappedLogger, __: str, line: EventDict) -> EventDict:
    name = REQUEST_ID.get(None)
    if name is not None:
        line.setdefault("request_id", name)
    return line


def log_change(experiment: str, what: str, by: str) -> None:
    """Write a line about a change that somebody made, and that the experiment's log has."""
    changes.info("experiment %s: %s, by %s", experiment, what, by or "a caller without a key")


def coloured(stream: IO[str]) -> bool:
    """Say whether to write colours: on a terminal, unless NO_COLOR forbids them (no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def formatter(
    form: Literal["auto", "console", "json"], stream: IO[str], token_keys: Iterable[bytes] = ()
) -> logging.Formatter:
    console = form == "console" or (form == "auto" and stream.isatty())
    shown: Processor = structlog.processors.JSONRenderer(ensure_ascii=False)
    if console:
        shown = structlog.dev.ConsoleRenderer(
            colors=coloured(stream),
            exception_formatter=structlog.dev.plain_traceback,
            pad_event_to=0,
        )
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[
            structlog.contextvars.merge_contextvars,
            _add_request_id,
            structlog.stdlib.add_log_level,
            structlog.stdlib.add_logger_name,
            structlog.processors.TimeStamper("iso", utc=True),
        ],
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.format_exc_info,
            Redact(token_keys),
            *([_one_line] if console else [_in_order]),
            shown,
        ],
    )


class Redact:
    """A processor that hides secrets in every text of a line."""

    def __init__(self, token_keys: Iterable[bytes] = ()) -> None:
        forms = {form for key in token_keys for form in _written(key)}
        self._known = re.compile("|".join(map(re.escape, forms))) if forms else None

    def __call__(self, logger: WrappedLogger, method: str, line: EventDict) -> EventDict:
        return {
            name: value if value is None or isinstance(value, bool | int | float)
            else self.text(str(value))
            for name, value in line.items()
        }  # fmt: skip

    def text(self, text: str) -> str:
        if self._known:
            text = self._known.sub(HIDDEN, text)
        for pattern, left in SECRET_PATTERNS:
            text = pattern.sub(left, text)
        return text


def _written(key: bytes) -> Iterable[str]:
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        text = encode(key).decode()
        yield from (text, text.rstrip("="))
    yield repr(key)[2:-1]


def _in_order(logger: WrappedLogger, method: str, line: EventDict) -> EventDict:
    first = {name: line[name] for name in ("timestamp", "level", "logger", "event") if name in line}
    return {**first, **line}


def _one_line(logger: WrappedLogger, method: str, line: EventDict) -> EventDict:
    return {
        name: value.translate(CONTROL) if isinstance(value, str) and name != "exception" else value
        for name, value in line.items()
    }
