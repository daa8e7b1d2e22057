"""Evaluations and verdicts for a service, each in a process of its own."""

import asyncio
import logging
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Literal

import msgspec

from service.analysis.request import EvaluationRequest
from service.clock import SYSTEM, Clock
from service.errors import Busy, Invalid, NotFound, ProcessEnded, Refused, StoreUnavailable

logger = logging.getLogger(__name__)

RETRY_AFTER_S = 5
"""Seconds after which a refused caller may ask again: most evaluations take less."""

LONGEST_LINE = 2**26
"""Most bytes of a result."""

ERROR_CHARACTERS = 2_000
"""Last characters of a failed process's errors, which the log keeps."""

LogQuestion = Literal["verdict", "rules", "rollouts"]
"""What can be asked of the log of an experiment beside an evaluation."""

RunState = Literal["waiting", "running", "done", "failed", "cancelled"]


class Question(msgspec.Struct):
    """Standard input of `service.analysis.worker`.

    asks         an evaluation, or the verdict, prices of rules or rollouts of the experiment
    checkpoints  folder of what earlier looks have read; None: there is none
    """

    store: str
    experiment: str
    asks: EvaluationRequest | LogQuestion
    checkpoints: str | None = None


class ProgressLine(msgspec.Struct, tag="step"):
    """A line of the worker's standard output: how far it is within one pass over the log.

    doing      what it counts, in words
    done, of   how many, of how many in this pass
    """

    doing: str
    done: int
    of: int


class AnswerLine(msgspec.Struct, tag="answer"):
    """The last line of the worker's standard output. content: JSON."""

    content: msgspec.Raw


class RefusalLine(msgspec.Struct, tag="refusal"):
    """The last line of the worker's standard output where there is no answer. error: its class."""

    error: str
    detail: str
    path: str = ""


Result = AnswerLine | RefusalLine
WorkerLine = ProgressLine | AnswerLine | RefusalLine
_LINES = msgspec.json.Decoder(WorkerLine)


class Run:
    """An evaluation or a verdict, from its request to its end.

    task    gives the answer as JSON; raises Invalid, NotFound, StoreUnavailable or ProcessEnded
    step    the latest that its process has reported; None: nothing yet
    began   by the monotonic clock in seconds, when its process was started; None: it waits
    ended   by the same clock; None: it waits or runs
    """

    def __init__(self, work: Callable[["Run"], Coroutine[Any, Any, bytes]], clock: Clock) -> None:
        self._clock = clock
        self.step: ProgressLine | None = None
        self.began: float | None = None
        self.ended: float | None = None
        self.task = asyncio.create_task(work(self))
        self.task.add_done_callback(self._end)

    @property
    def state(self) -> RunState:
        if self.ended is None:
            return "waiting" if self.began is None else "running"
        if self.task.cancelled():
            return "cancelled"
        return "done" if self.fault is None else "failed"

    @property
    def fault(self) -> BaseException | None:
        """Why it failed."""
        if self.ended is None or self.task.cancelled():
            return None
        return self.task.exception()

    @property
    def seconds(self) -> float | None:
        """Seconds that it has run, or ran; None: its process was not started."""
        if self.began is None:
            return None
        return (self._clock.monotonic() if self.ended is None else self.ended) - self.began

    def begin(self) -> None:
        self.began = self._clock.monotonic()

    async def cancel(self) -> None:
        """End the process and wait until it is gone. Changes nothing about a run that has ended."""
        self.task.cancel()
        await asyncio.wait({self.task})

    def _end(self, task: asyncio.Task[bytes]) -> None:
        self.ended = self._clock.monotonic()
        fault = self.fault  # asyncio warns of an exception that nobody has looked at
        if fault and not isinstance(fault, Refused | StoreUnavailable | ProcessEnded):
            logger.error("an evaluation failed", exc_info=fault)


class EvaluationWorker:
    """Runs `service.analysis.worker`, one process at a time, which neither delays serving nor
    uses its memory. A process can be ended when it takes too long or is cancelled; a task of a
    process pool cannot.

    seconds      the longest that one may run
    waiting      the most that may wait
    checkpoints  a folder in which a look at a log keeps what it has read for the next
    """

    def __init__(
        self,
        store: str,
        seconds: float,
        waiting: int,
        clock: Clock = SYSTEM,
        checkpoints: str | None = None,
    ) -> None:
        self._store, self._seconds, self._most = store, seconds, waiting
        self._checkpoints, self._clock, self._one = checkpoints, clock, asyncio.Lock()
        self._runs = list[Run]()

    @property
    def places(self) -> int:
        """The most that may run or wait."""
        return 1 + self._most

    def begin(self, experiment: str, asks: EvaluationRequest | LogQuestion) -> Run:
        """Start a process once those that wait have ended. Raises Busy where too many wait, Invalid
        where no other process can read the log."""
        if self._store.startswith("memory"):
            raise Invalid("no other process can read the log of a service on memory://")
        if len(self._runs) >= self.places:
            waiting = f"{self._most} wait already (FORAGE_EVALUATION_QUEUE)"
            raise Busy(f"one runs and {waiting}: ask again when one has ended", RETRY_AFTER_S)
        question = msgspec.json.encode(Question(self._store, experiment, asks, self._checkpoints))
        run = Run(lambda run: self._in_turn(run, question), self._clock)
        self._runs.append(run)
        run.task.add_done_callback(lambda _: self._runs.remove(run))
        return run

    async def run(self, experiment: str, asks: EvaluationRequest | LogQuestion) -> bytes:
        """Return the answer as JSON. Raises as `begin` and as the task of a `Run`."""
        return await self.begin(experiment, asks).task

    async def close(self) -> None:
        """Cancel all runs, at once: the end of one would start the next."""
        await asyncio.gather(*(run.cancel() for run in self._runs))

    async def _in_turn(self, run: Run, question: bytes) -> bytes:
        async with self._one:
            run.begin()
            found = await self._work(run, question)
        if isinstance(found, AnswerLine):
            return bytes(found.content)
        match found.error:
            case "NotFound":
                raise NotFound(found.detail, path=found.path)
            case "StoreUnavailable":
                raise StoreUnavailable(found.detail)
            case _:
                raise Invalid(found.detail, path=found.path)

    async def _work(self, run: Run, question: bytes) -> Result:
        try:
            # A session of its own: an interrupt at the terminal is for this process, which ends it.
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "service.analysis.worker",
                stdin=PIPE,
                stdout=PIPE,
                stderr=PIPE,
                limit=LONGEST_LINE,
                start_new_session=True,
            )
        except OSError as fault:
            raise ProcessEnded(f"its process cannot be started: {fault.strerror}") from fault
        try:
            async with asyncio.timeout(self._seconds):
                return await _talk(process, run, question)
        except TimeoutError:
            raise Invalid(
                f"took longer than {self._seconds:g} seconds: ask for fewer decisions, or raise "
                "FORAGE_EVALUATION_SECONDS",
                path="decisions",
            ) from None
        finally:
            if process.returncode is None:  # too late, or cancelled
                process.kill()
                await process.wait()


async def _talk(process: Process, run: Run, question: bytes) -> Result:
    """Ask the process, follow its steps, and return its result. Raises ProcessEnded."""
    assert process.stdin is not None
    assert process.stderr is not None
    with suppress(ConnectionError):  # it has ended: the exit status says why
        process.stdin.write(question)
        process.stdin.close()
    found, errors = await asyncio.gather(_follow(process, run), process.stderr.read())
    status = await process.wait()
    if status or found is None:
        why = _exit(status)
        said = errors.decode(errors="replace")[-ERROR_CHARACTERS:]
        logger.error("the process of an evaluation was ended %s: %s", why, said)
        raise ProcessEnded(f"its process was ended {why}")
    return found


async def _follow(process: Process, run: Run) -> Result | None:
    assert process.stdout is not None
    found = None
    async for line in process.stdout:
        told = _LINES.decode(line)
        if isinstance(told, ProgressLine):
            run.step = told
        else:
            found = told
    return found


def _exit(status: int) -> str:
    """Say how a process ended. status: negative of a signal."""
    if status != -signal.SIGKILL:
        name = signal.Signals(-status).name if status < 0 else f"status {status}"
        return f"with {name}; the log of the service has its errors"
    return "by SIGKILL, as the system does where memory runs out"
