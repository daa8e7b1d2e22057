"""A thousand requests get the same bytes over a connection, through ASGI, and in any pieces."""

import re
from pathlib import Path

import pytest

from tests.support.exchanges import (
    CONTINUE,
    KINDS,
    NAMED,
    Exchange,
    counted,
    of_any_connection,
    over_a_connection,
    request,
    served,
    through_asgi,
)
from tests.support.service import Wire

LISTED = {b"https://shop.example", b"http://localhost:5173"}
ASKED = ("plain", "listed", "keyed", "starting", "draining")
"""Kinds whose answers do not depend on connections; overload is a matter of the protocol."""


def sent_to(wire: Wire, *parts: bytes) -> tuple[bytes, str]:
    """Send these, and return what a client gets without the tokens, which are sealed each time."""
    answers, fate = over_a_connection(wire, Exchange("", [*parts]))
    return re.sub(rb'"decision_id":"[\w-]+"', b"", answers), fate


@pytest.mark.parametrize("kind", ASKED)
def test_connections_and_asgi_give_the_same_answers_and_counts(kind: str, tmp_path: Path) -> None:
    found = []
    for send in (lambda *asked: of_any_connection(over_a_connection(*asked)[0]), through_asgi):
        with served(kind, tmp_path / f"{len(found)}") as (wire, exchanges):
            answers = {each.name: send(wire, each) for each in exchanges if each.through}
            found.append((answers, counted(wire)))
    (connected, counts), (asked, asked_counts) = found
    assert connected == asked
    assert counts == asked_counts
    assert len(connected) >= 7


def test_a_request_in_any_two_pieces_is_answered_as_the_whole(tmp_path: Path) -> None:
    with served("plain", tmp_path) as (wire, _):
        whole = sent_to(wire, NAMED)
        assert whole[0].startswith(b"HTTP/1.1 200 OK\r\n")
        for cut in range(1, len(NAMED)):
            assert sent_to(wire, NAMED[:cut], NAMED[cut:]) == whole


def test_pipelined_requests_are_answered_as_single_ones(tmp_path: Path) -> None:
    refused = request("/reward", b"{", "X-Request-ID: r2")
    other = request("/healthz", b"", "X-Request-ID: r3", method="GET")
    with served("plain", tmp_path) as (wire, _):
        single = [sent_to(wire, each)[0] for each in (NAMED, refused, other, NAMED)]
        sent = NAMED + refused + other + NAMED
        for cut in (1, len(NAMED) - 1, len(NAMED) + len(refused) - 1, len(sent)):
            assert sent_to(wire, sent[:cut], sent[cut:]) == (b"".join(single), "kept")


@pytest.mark.parametrize("kind", KINDS)
def test_every_exchange_ends_in_whole_answers(kind: str, tmp_path: Path) -> None:
    """Whatever is sent, its client gets an answer or an end, never a 500. Good answers and refusals
    alike have an id, and what the browsers of listed and other pages have to know."""
    with served(kind, tmp_path) as (wire, exchanges):
        for each in exchanges:
            answer, fate = over_a_connection(wire, each)
            assert answer.startswith(b"HTTP/1.1 ") or fate != "kept", each.name
            assert b"HTTP/1.1 500 " not in answer, each.name
            if each.name.startswith(("continue", "a slow body")):
                assert answer.startswith(CONTINUE), each.name
            if each.through and kind != "overloaded" and "preflight" not in each.name:
                sent = b"".join(part for part in each.parts if isinstance(part, bytes))
                origin = re.search(rb"\r\nOrigin: (.*)\r\n", sent)
                allowed = re.search(rb"\r\naccess-control-allow-origin: (.*)\r\n", answer)
                listed = kind in ("listed", "keyed", "starting")
                assert answer.count(b"\r\nx-request-id: ") == 1, each.name
                assert answer.count(b"\r\nvary: Origin\r\n") == listed, each.name
                if listed and origin is not None and origin[1] in LISTED:
                    assert allowed is not None, each.name
                    assert allowed[1] == origin[1]
                else:
                    assert allowed is None, each.name
