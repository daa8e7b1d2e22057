"""Give a running service logged visits over its wire, in batches, with retries."""

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from math import isfinite
from typing import Any

import httpx
import msgspec

from service.errors import ConfigurationError, StoreUnavailable
from service.offline.dsjson import KnownFeatures
from service.offline.visit_files import VisitLine

Encoded = tuple[int, bytes | str]
"""Visit of a line: its number, and the visit as JSON, or why it is none."""

NumberedVisit = tuple[int, bytes]

VISITS_PER_REQUEST = 512
BATCH_BYTES = 400_000
"""Visits of one request, and the bytes of their JSON: below the default limits of a service."""
JSON_HEADERS = {"Content-Type": "application/json"}
TRIES = 60
WAIT_S = 1.0
"""Attempts of a request and the pause between them, for a service that restarts or cannot write."""


class Importing:
    """The import of one file over the wire of a service.

    refused   numbers of refused lines, and why
    stopped   by a refused line, where the import skips none
    """

    def __init__(self, client: httpx.Client, experiment: str, policy: str, skip_bad: bool) -> None:
        self._client, self._policy, self._skip_bad = client, policy, skip_bad
        self._path = f"/experiments/{experiment}"
        self.imported = self.duplicates = 0
        self.refused: list[tuple[int, str]] = []
        self.stopped = False

    def known(self) -> KnownFeatures:
        """Ask for the features and the catalogue of the experiment. Raises ConfigurationError where
        there is no such experiment."""
        answer = self._ask("GET", self._path)
        if answer.status_code != 200:
            raise ConfigurationError(_problem(answer))
        try:
            definition = answer.json()["definition"]
            context, arm = (
                {name: str(each["type"]) for name, each in definition["features"][of].items()}
                for of in ("context", "arm")
            )
            return KnownFeatures(context, arm, frozenset(definition["arms"]))
        except (ValueError, LookupError, TypeError) as fault:
            raise ConfigurationError(_problem(answer)) from fault

    def take(self, lines: Sequence[Encoded]) -> None:
        """Import lines until one stops the import. Raises StoreUnavailable where the service does
        not come back, ConfigurationError for a fault of the whole import."""
        visits: list[NumberedVisit] = []
        for number, visit in lines:
            if isinstance(visit, bytes):
                visits.append((number, visit))
                continue
            self._send(visits)
            self._refuse(number, visit)
            visits = []
        self._send(visits)

    def _send(self, visits: Sequence[NumberedVisit]) -> None:
        if not visits or self.stopped:
            return
        head = {"policy": self._policy, "skip_refused": self._skip_bad}
        body = b'%s,"visits":[%s]}' % (
            json.dumps(head).encode()[:-1],
            b",".join(visit for _, visit in visits),
        )
        answer = self._ask("POST", f"{self._path}/import", body)
        if answer.status_code == 200:
            self._count(visits, answer.json()["results"])
            return
        faults = answer.json().get("errors", [])
        whole = [fault["path"] for fault in faults] == ["visits"]
        unread = answer.status_code == 400  # the service names no visit that it cannot read
        if len(visits) > 1 and (answer.status_code == 413 or whole or unread):
            half = len(visits) // 2  # the service is set to take less at once
            self._send(visits[:half])
            self._send(visits[half:])
        elif answer.status_code == 413:
            self._refuse(visits[0][0], "is larger than the service takes")
        elif unread:
            self._refuse(visits[0][0], f"the service cannot read it: {_problem(answer)}")
        else:
            raise ConfigurationError(_problem(answer))

    def _count(self, visits: Sequence[NumberedVisit], results: Sequence[dict[str, Any]]) -> None:
        """Count results, which end early after a refused visit where the import skips none."""
        for (number, _), result in zip(visits, results, strict=False):
            if result["status"] != 200:
                self._refuse(number, _worded(result["problem"]))
            elif result["answer"] == "imported":
                self.imported += 1
            else:
                self.duplicates += 1

    def _refuse(self, number: int, why: str) -> None:
        if not self.stopped:
            self.refused.append((number, why))
            self.stopped = not self._skip_bad

    def _ask(self, method: str, path: str, body: bytes | None = None) -> httpx.Response:
        """Ask the service, with retries: an import may be repeated. Raises StoreUnavailable."""
        problem = ""
        for _ in range(TRIES):
            try:
                answer = self._client.request(method, path, content=body, headers=JSON_HEADERS)
            except httpx.TransportError as fault:
                problem = str(fault)
            else:
                if answer.status_code not in (429, 503):
                    return answer
                problem = _problem(answer)
            time.sleep(WAIT_S)
        raise StoreUnavailable(
            f"{self._client.base_url}: {problem}; nothing is lost: repeat the command to continue"
        )


def batches(lines: Iterator[VisitLine]) -> Iterator[list[Encoded]]:
    """Encode visits, and group them into requests."""
    part, size = list[Encoded](), 0
    for number, visit in lines:
        encoded = visit if isinstance(visit, str) else _encoded(visit)
        own = len(encoded)
        if part and (len(part) == VISITS_PER_REQUEST or size + own > BATCH_BYTES):
            yield part
            part, size = [], 0
        part.append((number, encoded))
        size += own
    if part:
        yield part


_encode_fast = msgspec.json.Encoder().encode
_encode = json.JSONEncoder(allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode


def _encoded(visit: dict[str, object]) -> bytes | str:
    """Encode a visit, or say why it cannot be sent."""
    with suppress(ValueError, OverflowError, RecursionError):
        encoded = _encode_fast(visit)
        if b"null" not in encoded:  # it writes NaN as null
            return encoded
    try:
        return _encode(visit).encode()
    except UnicodeEncodeError:
        return "holds half of a surrogate pair, which is no character"
    except RecursionError:
        return "is nested too deeply"
    except ValueError:
        place = next(_not_finite(visit, ""))
        return f"{place} is NaN or infinite, which is no number: leave it out"


def _not_finite(value: object, path: str) -> Iterator[str]:
    """Yield the paths of numbers that JSON does not have."""
    if isinstance(value, float) and not isfinite(value):
        yield path.lstrip(".")
    elif isinstance(value, dict):
        for name, member in value.items():
            yield from _not_finite(member, f"{path}.{name}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _not_finite(item, f"{path}.{index}")


def _worded(problem: dict[str, Any]) -> str:
    """Word the faults of an RFC 9457 problem, or its detail."""
    faults = [f"{fault['path']} {fault['message']}".lstrip() for fault in problem["errors"]]
    return "; ".join(faults) or str(problem["detail"])


def _problem(answer: httpx.Response) -> str:
    try:
        return _worded(answer.json())
    except (ValueError, LookupError, TypeError):
        return f"{answer.url} answers {answer.status_code}, not as a Forage service"
