"""One evaluation, or one verdict, in a process of its own: the job on standard input, the result on
standard output.

The store's address may hold a password: on standard input no list of processes shows it.
"""

import asyncio
import json
import os
import sys

import msgspec

from service.control.verdict import verdict_on
from service.errors import ConfigurationError, Refused, StoreError, StoreUnavailable
from service.evaluation.evaluate import evaluate_store
from service.evaluation.running import Job, Result
from service.log.reading import reading

NICE = 10
"""Serving has priority."""


async def _answer(job: Job) -> dict[str, object]:
    if job.request is not None:
        return (await evaluate_store(job.store, job.request)).model_dump()
    async with reading(job.store) as store:
        return (await verdict_on(store, job.experiment)).model_dump()


def run(job: Job) -> Result:
    try:
        return Result(asyncio.run(_answer(job)))
    except Refused as fault:
        path = fault.faults[0].path if fault.faults else ""
        return Result(refused=type(fault).__name__, detail=fault.detail, path=path)
    except ConfigurationError as fault:
        return Result(refused="Invalid", detail=str(fault), path="definition")
    except StoreUnavailable as fault:
        return Result(refused="StoreUnavailable", detail=str(fault))
    except StoreError as fault:
        return Result(refused="Invalid", detail=f"the log cannot be read: {fault}")


def main() -> None:
    os.nice(NICE)
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=Job)
    json.dump(msgspec.structs.asdict(run(job)), sys.stdout)


if __name__ == "__main__":
    main()
