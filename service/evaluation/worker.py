"""One evaluation in a process of its own: asked on standard input, answered on standard output.

The store's address may hold a password: it comes on standard input too, where no list of processes
shows it.
"""

import asyncio
import json
import os
import sys
from typing import Any

from service.errors import ConfigurationError, Refused, StoreError, StoreUnavailable
from service.evaluation.evaluate import Request, evaluate_store
from service.evaluation.report import as_json
from service.evaluation.rows import Selection

NICE = 10
"""Serving goes before."""


def request_of(asked: dict[str, Any]) -> Request:
    """What `service.evaluation.running` wrote."""
    by = asked["logged_by"]
    return Request(
        experiment=asked["experiment"],
        policies=asked["policies"],
        definitions=asked["definition"],
        selection=Selection(
            asked["since"], asked["until"], asked["decisions"], by and frozenset(by)
        ),
        freeze=asked["frozen"],
        own=asked["own_propensity"],
        first_slot=asked["slates"] == "first_slot",
        confidence=asked["confidence"],
    )


def answer(asked: dict[str, Any]) -> dict[str, Any]:
    """The evaluation, or which refusal it came to."""
    try:
        found = asyncio.run(evaluate_store(asked["store"], request_of(asked)))
    except Refused as fault:
        path = fault.faults[0].path if fault.faults else ""
        return {"refused": type(fault).__name__, "detail": fault.detail, "path": path}
    except ConfigurationError as fault:
        return {"refused": "Invalid", "detail": str(fault), "path": "definition"}
    except StoreUnavailable as fault:
        return {"refused": "StoreUnavailable", "detail": str(fault), "path": ""}
    except StoreError as fault:
        detail = f"the log cannot be evaluated on: {fault}"
        return {"refused": "Invalid", "detail": detail, "path": ""}
    return {"evaluation": as_json(found)}


def main() -> None:
    os.nice(NICE)
    json.dump(answer(json.load(sys.stdin)), sys.stdout)


if __name__ == "__main__":
    main()
