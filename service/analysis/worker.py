"""One answer about a log, in a process of its own: the question on standard input, progress and the
result on standard output.

The store's address may hold a password: on standard input no list of processes shows it.
"""

import asyncio
import os
import sys
from pathlib import Path

import msgspec
from pydantic import BaseModel

from service.analysis.checkpoints import NOWHERE, Checkpoints
from service.analysis.evaluate import evaluate
from service.analysis.rollouts import encode_looks, look_at_rollouts
from service.analysis.rule_prices import prices_of
from service.analysis.running import (
    AnswerLine,
    ProgressLine,
    Question,
    RefusalLine,
    Result,
    WorkerLine,
)
from service.analysis.verdict import verdict_on
from service.errors import ConfigurationError, Refused, StoreError, StoreUnavailable
from service.log.reading import Progress, reading

NICE = 10
"""Niceness of the process: serving has priority."""


def _write(line: WorkerLine) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(line) + b"\n")
    sys.stdout.flush()


async def _answer(question: Question) -> str:
    progress = Progress(count=lambda doing, done, of: _write(ProgressLine(doing, done, of)))
    folder = question.checkpoints
    checkpoints = NOWHERE if folder is None else Checkpoints(Path(folder))
    async with reading(question.store) as store:
        found: BaseModel
        match question.asks:
            case "verdict":
                found = await verdict_on(store, question.experiment, progress, checkpoints)
            case "rules":
                found = await prices_of(store, question.experiment, progress, checkpoints)
            case "rollouts":
                looks = await look_at_rollouts(store, question.experiment, progress, checkpoints)
                return encode_looks(looks).decode()
            case request:
                found = await evaluate(store, request, progress, checkpoints)
        return found.model_dump_json()


def run(question: Question) -> Result:
    try:
        return AnswerLine(msgspec.Raw(asyncio.run(_answer(question)).encode()))
    except Refused as fault:
        path = fault.faults[0].path if fault.faults else ""
        return RefusalLine(type(fault).__name__, fault.detail, path)
    except ConfigurationError as fault:
        return RefusalLine("Invalid", str(fault), "definition")
    except StoreUnavailable as fault:
        return RefusalLine("StoreUnavailable", str(fault))
    except StoreError as fault:
        return RefusalLine("Invalid", f"the log cannot be read: {fault}")


def main() -> None:
    os.nice(NICE)
    _write(run(msgspec.json.decode(sys.stdin.buffer.read(), type=Question)))


if __name__ == "__main__":
    main()
