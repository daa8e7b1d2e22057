"""Evaluations for a service: one at a time, each in a process of its own."""

import asyncio
import json
import logging
import sys

import msgspec

from service.errors import Busy, Invalid, NotFound, StoreUnavailable
from service.evaluation.request import EvaluationRequest

logger = logging.getLogger(__name__)


class Job(msgspec.Struct):
    """Of `service.evaluation.worker`."""

    store: str
    request: EvaluationRequest


class Result(msgspec.Struct):
    """Of `service.evaluation.worker`. refused: the error class, where there is no evaluation."""

    evaluation: dict[str, object] | None = None
    refused: str = ""
    detail: str = ""
    path: str = ""


class Evaluations:
    """Runs `service.evaluation.worker`, which neither delays serving nor uses its memory. A process
    can be ended when it takes too long or its caller leaves; a task of a process pool cannot.

    seconds   the longest that one may take
    waiting   the most that may wait
    """

    def __init__(self, store: str, seconds: float, waiting: int) -> None:
        self._store, self._seconds, self._most = store, seconds, waiting
        self._waiting, self._one = 0, asyncio.Lock()

    @property
    def busy(self) -> bool:
        """Whether an evaluation runs."""
        return self._one.locked()

    async def run(self, request: EvaluationRequest) -> dict[str, object]:
        """Run an evaluation after those that wait. Raises Busy where too many wait, Invalid,
        NotFound, or StoreUnavailable."""
        if self._store.startswith("memory"):
            raise Invalid("no other process can read the log of a service on memory://")
        if self.busy and self._waiting >= self._most:
            raise Busy(f"{self._most} evaluations wait already: ask again when one has ended")
        self._waiting += 1
        try:
            await self._one.acquire()
        finally:
            self._waiting -= 1
        try:
            found = await self._work(msgspec.json.encode(Job(self._store, request)))
        finally:
            self._one.release()
        if found.evaluation is not None:
            return found.evaluation
        match found.refused:
            case "NotFound":
                raise NotFound(found.detail, path=found.path)
            case "StoreUnavailable":
                raise StoreUnavailable(found.detail)
        raise Invalid(found.detail, path=found.path)

    async def _work(self, job: bytes) -> Result:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "service.evaluation.worker",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(self._seconds):
                output, errors = await process.communicate(job)
        except TimeoutError:
            raise Invalid(
                f"took longer than {self._seconds:g} seconds: ask for fewer decisions",
                path="decisions",
            ) from None
        finally:
            if process.returncode is None:  # too late, or the caller has gone
                process.kill()
                await process.wait()
        if process.returncode:
            logger.error("an evaluation failed: %s", errors.decode(errors="replace")[-2_000:])
            raise RuntimeError("an evaluation failed")
        return msgspec.convert(json.loads(output), Result)
