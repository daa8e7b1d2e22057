"""What a service may answer to a hostile request."""

from collections.abc import Iterator
from typing import Any, Final

from tests.attack.hostile.shots import Answer, Shot

UNAVAILABLE: Final = ("quarantined", "log-unavailable", "overloaded", "too-many-connections")
"""Problems of a 503 that an attacker may get."""
PROBLEMS: Final = "https://forage.dev/problems/"


def faults(shot: Shot, answer: Answer, *, patient: bool = True) -> Iterator[str]:
    """What is wrong with an answer; nothing where all is well. patient: a service that ends bad
    connections in time had that time."""
    if answer.kind == "broken":
        yield f"what was answered is not HTTP: {answer.body[:80]!r}"
    if answer.kind == "open" and shot.whole:
        yield f"neither answered nor closed after {answer.seconds:.0f} s"
    elif answer.kind == "open" and shot.reads and patient:
        yield f"not closed after {answer.seconds:.0f} s"
    if answer.status >= 500 and not _unavailable(answer.status, answer.json()):
        yield f"answered {answer.status}: {answer.body[:200]!r}"
    if 200 <= answer.status < 300:
        if shot.must_fail:
            yield f"answered {answer.status}, and {shot.must_fail}"
        yield from _faults_within(answer)


def _faults_within(answer: Answer) -> Iterator[str]:
    """Of the parts of a batch or a beacon, which have a status each."""
    content = answer.json() if answer.body[:12].startswith((b'{"results"', b'{"statuses"')) else {}
    for item in content.get("results", []):
        status = item.get("status", 0)
        if status >= 500 and not _unavailable(status, item.get("problem")):
            yield f"an item answered {status}: {item}"[:200]
    for status in content.get("statuses", []):
        if status >= 500 and status != 503:
            yield f"a part of a beacon answered {status}"


def _unavailable(status: int, problem: Any) -> bool:
    if status != 503 or not isinstance(problem, dict):
        return False
    return str(problem.get("type")).removeprefix(PROBLEMS) in UNAVAILABLE
