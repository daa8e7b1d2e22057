"""Evaluations that a service is asked for: each in a process of its own, one at a time, and those
of each experiment in its turn."""

import asyncio
import json
import logging
import sys
from collections.abc import Mapping
from typing import Any

from service.errors import Invalid, NotFound, StoreUnavailable
from service.evaluation.turns import Turns

logger = logging.getLogger(__name__)


class Evaluations:
    """Runs `service.evaluation.worker`: serving is not held up, and its memory does not grow.

    seconds   longest that one may take
    waiting   of one experiment, at most
    """

    def __init__(self, store: str, seconds: float, waiting: int) -> None:
        self._store, self._seconds = store, seconds
        self.turns = Turns(waiting)

    async def run(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Once its turn has come. Raises Busy where too many of its experiment wait, Invalid,
        NotFound, or StoreUnavailable."""
        if self._store.startswith("memory"):
            raise Invalid("no other process can read the log of a service on memory://")
        async with self.turns.turn(asked["experiment"]) as ahead:
            found = await self._ask(json.dumps({**asked, "store": self._store}).encode())
        if "evaluation" in found:
            return {**found["evaluation"], "waited_for": ahead}
        detail, path = found["detail"], found["path"]
        match found["refused"]:
            case "NotFound":
                raise NotFound(detail, path=path)
            case "StoreUnavailable":
                raise StoreUnavailable(detail)
        raise Invalid(detail, path=path)

    async def _ask(self, question: bytes) -> dict[str, Any]:
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
                said, faults = await process.communicate(question)
        except TimeoutError:
            raise Invalid(
                f"took longer than {self._seconds:g} seconds: ask for fewer decisions",
                path="decisions",
            ) from None
        finally:
            if process.returncode is None:  # too late, or nobody waits for it any more
                process.kill()
                await process.wait()
        if process.returncode:
            logger.error("an evaluation failed: %s", faults.decode(errors="replace")[-2_000:])
            raise RuntimeError("an evaluation failed")
        answer: dict[str, Any] = json.loads(said)
        return answer
