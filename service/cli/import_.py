"""forage import: give a running service visits that somebody else decided, for a policy to learn
from."""

import json
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import httpx
from typer import Argument, Option

from service.cli.running import Command, progress
from service.errors import ConfigurationError, StoreUnavailable
from service.settings import Settings

if TYPE_CHECKING:
    from service.cli.import_files import Line

NumberedVisit = tuple[int, dict[str, object]]
"""A line of the file and its visit."""

BATCH = 200
BATCH_BYTES = 400_000
"""Visits of one request, and their JSON: below what a service takes unless it is set lower."""
TRIES = 60
WAIT_S = 1.0
"""For a service that cannot write its log at present, or is started anew."""
LISTED = 20
"""Refused lines that are named, of those that are skipped."""


@partial(
    Command,
    summary="give a service logged visits to learn from",
    epilog="Exit status: 0 when all lines were taken, or with --skip-bad all that can be; 1 when a "
    "line was refused: those before it were taken, and when it is mended the same command goes on.",
    example="forage import history.jsonl --experiment shop --policy linucb",
    settings=("store", "url"),
)
def command(
    settings: Settings,
    path: Annotated[Path, Argument(metavar="FILE", help=".jsonl, .csv or .parquet")],
    experiment: Annotated[str, Option(metavar="NAME")],
    policy: Annotated[str, Option(metavar="POLICY", help="that learns from it")],
    skip_bad: Annotated[
        bool, Option("--skip-bad", help="go on after a line that is refused")
    ] = False,
) -> int:
    """Read visits that somebody else decided, with the chance of what was shown and what came of
    it, and give them to a running service, which logs them and lets the policy learn. The same file
    again changes nothing: visits are known by their id. docs/import.md tells the format."""
    from service.cli.import_files import read
    from service.serving.audit_report import aligned

    with httpx.Client(
        base_url=settings.url, timeout=60, trust_env=False, headers=settings.key_headers
    ) as client:
        importing = Importing(client, experiment, policy, skip_bad)
        with progress() as say:
            for part in _parts(read(path, importing.types())):
                going_on = importing.take(part)
                if say:
                    say(f"{importing.taken:,} lines taken")
                if not going_on:
                    break
    counts = importing.imported, importing.duplicates, len(importing.refused)
    head = ["policy", "imported", "duplicates", "refused"]
    print("\n".join(aligned([head, [policy, *(f"{count:,}" for count in counts)]])))
    for number, why in importing.refused[:LISTED]:
        print(f"forage: {path}:{number}: {why}", file=sys.stderr)
    if (left := len(importing.refused) - LISTED) > 0:
        print(f"forage: {path}: and {left:,} more", file=sys.stderr)
    return 1 if importing.stopped else 0


class Importing:
    """The import of one file over the wire of a service."""

    def __init__(self, client: httpx.Client, experiment: str, policy: str, skip_bad: bool) -> None:
        self._client, self._policy, self._skip_bad = client, policy, skip_bad
        self._path = f"/experiments/{experiment}"
        self.imported = self.duplicates = 0
        self.refused: list[tuple[int, str]] = []
        self.stopped = False

    @property
    def taken(self) -> int:
        return self.imported + self.duplicates

    def types(self) -> dict[str, str]:
        """Features of the context, with their types. Raises ConfigurationError where there is no
        such experiment."""
        answer = self._ask("GET", self._path)
        if answer.status_code != 200:
            raise ConfigurationError(_problem(answer))
        try:
            features = answer.json()["definition"]["features"]["context"]
            return {name: feature["type"] for name, feature in features.items()}
        except (ValueError, LookupError, TypeError) as fault:
            raise ConfigurationError(_problem(answer)) from fault

    def take(self, lines: Sequence["Line"]) -> bool:
        """Import these; whether to go on. Raises StoreUnavailable where the service does not come
        back, ConfigurationError for what is wrong with all of them."""
        visits: list[NumberedVisit] = []
        for number, visit in lines:
            if isinstance(visit, dict):
                visits.append((number, visit))
                continue
            if not (self._send(visits) and self._refuse(number, visit)):
                return False
            visits = []
        return self._send(visits)

    def _send(self, visits: Sequence[NumberedVisit]) -> bool:
        if not visits:
            return True
        body = {"policy": self._policy, "visits": [visit for _, visit in visits]}
        answer = self._ask("POST", f"{self._path}/import", {**body, "skip_refused": self._skip_bad})
        if answer.status_code == 200:
            return self._count(visits, answer.json()["results"])
        paths = [fault["path"] for fault in answer.json().get("errors", [])]
        if len(visits) > 1 and (answer.status_code == 413 or paths == ["visits"]):
            half = len(visits) // 2  # the service is set to take less at once
            return self._send(visits[:half]) and self._send(visits[half:])
        if answer.status_code == 413:
            return self._refuse(visits[0][0], "is larger than the service takes")
        if answer.status_code == 422 and (found := _first(answer.json()["errors"])):
            index, why = found
            return (
                self._send(visits[:index])
                and self._refuse(visits[index][0], why)
                and self._send(visits[index + 1 :])
            )
        raise ConfigurationError(_problem(answer))

    def _count(self, visits: Sequence[NumberedVisit], results: Sequence[dict[str, Any]]) -> bool:
        """What became of them; the results end early where one was refused and nothing skipped."""
        for (number, _), result in zip(visits, results, strict=False):
            if result["status"] != 200:
                problem = result["problem"]
                faults = [_worded(fault) for fault in problem["errors"]] or [problem["detail"]]
                if not self._refuse(number, "; ".join(faults)):
                    return False
            elif result["answer"] == "imported":
                self.imported += 1
            else:
                self.duplicates += 1
        return True

    def _refuse(self, number: int, why: str) -> bool:
        self.refused.append((number, why))
        self.stopped = not self._skip_bad
        return self._skip_bad

    def _ask(self, method: str, path: str, body: dict[str, object] | None = None) -> httpx.Response:
        """Its answer, once it has one: an import may be repeated."""
        problem = ""
        for _ in range(TRIES):
            try:
                answer = self._client.request(method, path, json=body)
            except httpx.TransportError as fault:
                problem = str(fault)
            else:
                if answer.status_code not in (429, 503):
                    return answer
                problem = _problem(answer)
            time.sleep(WAIT_S)
        raise StoreUnavailable(
            f"{self._client.base_url}: {problem}; nothing is lost: the same command goes on"
        )


def _parts(lines: Iterator["Line"]) -> Iterator[list["Line"]]:
    """What one request holds."""
    part, size = list["Line"](), 0
    for number, visit in lines:
        try:
            own = len(json.dumps(visit, allow_nan=False))
            line: Line = (number, visit)
        except (TypeError, ValueError) as fault:  # of Parquet: NaN, bytes, dates
            own, line = 0, (number, f"cannot be sent as JSON: {fault}")
        if part and (len(part) == BATCH or size + own > BATCH_BYTES):
            yield part
            part, size = [], 0
        part.append(line)
        size += own
    if part:
        yield part


def _first(faults: Sequence[dict[str, str]]) -> tuple[int, str] | None:
    """The first visit of a body that has a fault, and its faults."""
    by_visit: dict[int, list[str]] = {}
    for fault in faults:
        where, _, rest = fault["path"].partition(".")
        number, _, path = rest.partition(".")
        if where == "visits" and number.isdecimal():
            by_visit.setdefault(int(number), []).append(_worded({**fault, "path": path}))
    if not by_visit:
        return None
    index = min(by_visit)
    return index, "; ".join(by_visit[index])


def _worded(fault: dict[str, str]) -> str:
    return f"{fault['path']} {fault['message']}" if fault["path"] else fault["message"]


def _problem(answer: httpx.Response) -> str:
    try:
        problem = answer.json()
        return "; ".join([_worded(fault) for fault in problem["errors"]] or [problem["detail"]])
    except (ValueError, LookupError, TypeError):
        return f"{answer.url} answers {answer.status_code}, not as a Forage service"
