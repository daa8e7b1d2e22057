"""Evaluations for a service: each in a process of its own, one at a time, those of each experiment
in turn."""

import asyncio
import json
import logging
import sys

import msgspec

from service.errors import Invalid, NotFound, StoreUnavailable
from service.evaluation.request import EvaluationRequest
from service.evaluation.turns import Turns

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
    """Runs `service.evaluation.worker`: it does not delay serving, nor use its memory.

    seconds   longest that one may take
    waiting   of one experiment, at most
    """

    def __init__(self, store: str, seconds: float, waiting: int) -> None:
        self._store, self._seconds = store, seconds
        self.turns = Turns(waiting)

    async def run(self, request: EvaluationRequest) -> dict[str, object]:
        """Wait for its turn and run it. Raises Busy where too many of its experiment wait, Invalid,
        NotFound, or StoreUnavailable."""
        if self._store.startswith("memory"):
            raise Invalid("no other process can read the log of a service on memory://")
        async with self.turns.turn(request.experiment or "") as ahead:
            found = await self._work(msgspec.json.encode(Job(self._store, request)))
        if found.evaluation is not None:
            return {**found.evaluation, "waited_for": ahead}
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
