"""The short form of the hostile campaign, and what its judge takes for a fault."""

import json
from pathlib import Path
from random import Random

import pytest

from tests.attack.hostile.campaign import Asked, attack
from tests.attack.hostile.families import COUNTS, FAMILIES, counts_of
from tests.attack.hostile.judge import faults
from tests.attack.hostile.report import table
from tests.attack.hostile.shots import Answer, Arsenal, Shot
from tests.attack.hostile.wire import Patience

ASK = Shot([b"POST /select HTTP/1.1\r\n\r\n"])
ARSENAL = Arsenal(
    "127.0.0.1:1",
    "127.0.0.1:2",
    dict.fromkeys(("tenant", "page", "expired", "revoked"), "fk_0"),
    ["token"],
    ["id"],
)


@pytest.mark.slow
def test_hostile_requests_of_every_family_harm_nobody(tmp_path: Path) -> None:
    short = Patience(answer_s=20.0, end_s=0.3, judges=False)
    found = attack(tmp_path, Asked(requests=300, judged=False, patience=short))
    assert found.clean, table(found)
    assert set(found.tallies) == set(FAMILIES)


def problem(status: int, slug: str) -> Answer:
    content = {"type": f"https://forage.dev/problems/{slug}", "status": status}
    return Answer(str(status), json.dumps(content).encode())


@pytest.mark.parametrize(
    ("shot", "answer"),
    [
        (ASK, problem(500, "internal")),
        (ASK, problem(503, "something-else")),
        (ASK, Answer("502", b"<html>")),
        (ASK, Answer("open", seconds=60.0)),
        (ASK, Answer("broken", b"SSH-2.0")),
        (ASK, Answer("200", b'{"results": [{"status": 500, "problem": {}}]}')),
        (ASK, Answer("200", b'{"statuses": [200, 500]}')),
        (Shot(ASK.pieces, must_fail="it is no key"), Answer("200", b"{}")),
        (Shot([b"GET /"], whole=False), Answer("open", seconds=45.0)),
    ],
)
def test_a_fault_is_told(shot: Shot, answer: Answer) -> None:
    assert list(faults(shot, answer))


@pytest.mark.parametrize(
    ("shot", "answer"),
    [
        (ASK, Answer("200", b'{"results": [{"status": 404, "problem": {}}]}')),
        (ASK, problem(503, "quarantined")),
        (ASK, problem(503, "log-unavailable")),
        (ASK, Answer("closed")),
        (ASK, Answer("unreached")),
        (Shot(ASK.pieces, must_fail="it is no key"), problem(401, "unauthorized")),
        (Shot([b"GET /"], whole=False), Answer("closed")),
        (Shot([b"GET /"], whole=False, reads=False), Answer("open", seconds=45.0)),
    ],
)
def test_a_refusal_is_no_fault(shot: Shot, answer: Answer) -> None:
    assert list(faults(shot, answer)) == []


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_repeats_itself_with_its_seed(name: str) -> None:
    def shots() -> list[Shot]:
        attack = FAMILIES[name].attack(ARSENAL, Random(7))
        return [next(attack), *(attack.send(Answer("422")) for _ in range(5))]

    assert shots() == shots()


def test_a_campaign_of_any_size_has_requests_of_every_family() -> None:
    assert counts_of(sum(COUNTS.values()), FAMILIES) == COUNTS
    assert min(counts_of(50, FAMILIES).values()) >= 3
