"""Evaluations and verdicts for a service, each in a process of its own."""

import asyncio
import json
import logging
import sys

import msgspec

from service.errors import Busy, Invalid, NotFound, StoreUnavailable
from service.evaluation.request import EvaluationRequest

logger = logging.getLogger(__name__)


class Job(msgspec.Struct):
    """Of `service.evaluation.worker`. request: None asks for the verdict of the experiment."""

    store: str
    experiment: str
    request: EvaluationRequest | None = None


class Result(msgspec.Struct):
    """Of `service.evaluation.worker`. refused: the error class, where there is no answer."""

    answer: dict[str, object] | None = None
    refused: str = ""
    detail: str = ""
    path: str = ""


class Worker:
    """Runs `service.evaluation.worker`, one job at a time, which neither delays serving nor uses
    its memory. A process can be ended when it takes too long or its caller leaves; a task of a
    process pool cannot.

    seconds   the longest that one may take
    waiting   the most that may wait
    """

    def __init__(self, store: str, seconds: float, waiting: int) -> None:
        self._store, self._seconds, self._most = store, seconds, waiting
        self._waiting, self._one = 0, asyncio.Lock()

    @property
    def busy(self) -> bool:
        """Whether a job runs."""
        return self._one.locked()

    async def run(
        self, experiment: str, request: EvaluationRequest | None = None
    ) -> dict[str, object]:
        """Run a job after those that wait. Raises Busy where too many wait, Invalid, NotFound, or
        StoreUnavailable."""
        if self._store.startswith("memory"):
            raise Invalid("no other process can read the log of a service on memory://")
        if self.busy and self._waiting >= self._most:
            raise Busy(f"{self._most} wait already: ask again when one has ended")
        self._waiting += 1
        try:
            await self._one.acquire()
        finally:
            self._waiting -= 1
        try:
            found = await self._work(msgspec.json.encode(Job(self._store, experiment, request)))
        finally:
            self._one.release()
        if found.answer is not None:
            return found.answer
        match found.refused:
            case "NotFound":
                raise NotFound(found.detail, path=found.path)
            case "StoreUnavailable":
                raise StoreUnavailable(found.detail)
            case _:
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
                f"took longer than {self._seconds:g} seconds: ask for fewer decisions, or raise "
                "FORAGE_EVALUATION_SECONDS",
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
