"""Log lines: one JSON object each or one line to read, with fields, and never a secret in them."""

import base64
import io
import json
import logging
from typing import Any, Literal

import pytest
from structlog.contextvars import bound_contextvars

from service.telemetry.logs import HIDDEN, Redact, formatter

KEY = bytes((37 * number + 251) % 256 for number in range(32))
TOKEN = "AQ" + base64.urlsafe_b64encode(bytes(range(150))).decode().rstrip("=")
FK = "fk_0123456789abcdef_" + "ab" * 32


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def line(
    *record: Any,
    form: Literal["auto", "console", "json"] = "json",
    stream: io.StringIO | None = None,
    level: int = logging.WARNING,
    fault: BaseException | None = None,
) -> str:
    """A record as the formatter writes it."""
    message, *arguments = record
    shown = formatter(form, stream or io.StringIO(), [KEY])
    info = (type(fault), fault, fault.__traceback__) if fault else None
    return shown.format(
        logging.LogRecord("forage.part", level, "f.py", 1, message, tuple(arguments), info)
    )


def test_a_line_has_its_fields() -> None:
    with bound_contextvars(request_id="abc-1"):
        written = line("%d rows of %s\nwere lost", 3, "zoo")
        shown = line("3 rows were lost", form="console")
    assert "\n" not in written
    told = json.loads(written)
    assert list(told) == ["timestamp", "level", "logger", "event", "request_id"]
    assert told.pop("timestamp").endswith("Z")
    assert list(told.values()) == ["warning", "forage.part", "3 rows of zoo\nwere lost", "abc-1"]
    for part in ("[warning", "3 rows were lost", "request_id=abc-1"):
        assert part in shown
    assert "\033" not in shown


def test_auto_is_for_people_on_a_terminal_and_for_machines_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert json.loads(line("x", form="auto"))["event"] == "x"
    assert "\033[" in line("x", form="auto", stream=Terminal())
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\033" not in line("x", form="auto", stream=Terminal())


def test_an_exception_is_a_field_and_its_text_is_looked_through() -> None:
    try:
        raise ValueError(f"sent {FK} by redis://:hunter2@host/0")
    except ValueError as error:
        fault = error
    told = json.loads(line("it failed", fault=fault))
    assert told["exception"].startswith("Traceback")
    assert "ValueError: sent" in told["exception"]
    for form in ("json", "console"):
        written = line("it failed", fault=fault, form=form)  # type: ignore[arg-type]
        assert FK not in written
        assert "hunter2" not in written
    assert "Traceback" in line("it failed", fault=fault, form="console")


def test_a_name_cannot_begin_a_line_of_its_own_nor_move_the_cursor() -> None:
    written = line("arm %s", "a\n2026 [info] all is well\x1b[2J\x07", form="console")
    assert "\n" not in written
    assert "\x1b" not in written
    assert r"a\x0a2026" in written


@pytest.mark.parametrize(
    ("secret", "text"),
    [
        *((plain, "saw {} here") for plain in (FK, TOKEN, repr(KEY))),
        (base64.b64encode(KEY).decode(), "saw {} here"),
        (base64.urlsafe_b64encode(KEY).decode().rstrip("="), "saw {} here"),
        ("s3cr3t", "Authorization: Bearer {}"),
        ("s3cr3t", "{{'authorization': 'Bearer {}', 'a': 1}}"),
        ("s3cr3t", "(b'authorization', b'Basic {}')"),
        ("s3cr3t", "X-API-Key: {}"),
        ("s3cr3t", "redis://:{}@host:6379/0 is gone"),
        ("s3/cr@3t", "rediss://user:{}@host:6379/0 is gone"),
        ("s3cr3t", "https://user:{}@proxy/path"),
        ("c2VjcmV0c2VjcmV0", "FORAGE_TOKEN_KEYS={}"),
    ],
)
@pytest.mark.parametrize("form", ["json", "console"])
def test_a_secret_is_hidden_everywhere(
    secret: str, text: str, form: Literal["json", "console"]
) -> None:
    written = line("%s", text.format(secret), form=form)
    assert secret not in written
    assert HIDDEN in written
    with bound_contextvars(told=text.format(secret)):
        assert secret not in line("x", form=form)


def test_other_texts_and_numbers_stay() -> None:
    for text in (
        "decision ZxAaQJEfk07d1uvFLcb5KQ of zooplus",
        "version " + "ab" * 32,  # a SHA-256
        "serving zooplus on http://127.0.0.1:8000 (/docs), store sqlite",
        "redis://host:6379/0 is gone",
        "GET /experiments/{experiment}/arms/{id} answered 503 after 0.1 ms",
    ):
        assert Redact([KEY]).text(text) == text
    told: dict[str, Any] = {"count": 3, "share": 0.5, "ok": True, "none": None}
    assert Redact()(None, "", told) == told
