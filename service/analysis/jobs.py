"""Evaluations that a caller starts, watches and cancels: jobs of the process that took them."""

from collections import Counter
from dataclasses import dataclass
from random import Random, SystemRandom

from service.analysis.request import EvaluationRequest
from service.analysis.running import RETRY_AFTER_S, EvaluationWorker, Run
from service.clock import Clock
from service.errors import Busy, NotFound

KEPT_JOBS = 8
"""Ended jobs of an experiment that are kept, the newest."""

KEPT_JOBS_IN_ALL = 32
"""Ended jobs of all experiments that are kept: a result has some kilobytes, and one of a hundred
policies and large catalogues a megabyte."""

KEPT_SECONDS = 3_600.0
"""Seconds for which an ended job is kept."""


@dataclass(frozen=True, slots=True)
class Job:
    """Evaluation that waits, runs or has ended. key: the id of its caller's key; empty where keys
    are off."""

    id: str
    experiment: str
    key: str
    run: Run


class Jobs:
    """Jobs that wait or run, and ended ones for whoever asks for their results."""

    def __init__(self, worker: EvaluationWorker, clock: Clock, rng: Random | None = None) -> None:
        self._worker, self._clock, self._rng = worker, clock, rng or SystemRandom()
        self._jobs = dict[str, Job]()

    def start(self, experiment: str, request: EvaluationRequest, key: str = "") -> Job:
        """Start a job once those that wait have ended. Raises Busy where too many wait, or too many
        of this key; else as `Worker.begin`."""
        self._forget()
        most = self._worker.places // 2
        own = sum(job.key == key and job.run.ended is None for job in self._jobs.values())
        if key and own >= most:
            raise Busy(
                f"this key has {most} evaluations under way, the most for one key: ask again when "
                "one has ended, or cancel one",
                RETRY_AFTER_S,
            )
        run = self._worker.begin(experiment, request)
        job = Job(f"{self._rng.getrandbits(128):032x}", experiment, key, run)
        self._jobs[job.id] = job
        return job

    def find(self, experiment: str, id: str) -> Job:
        """Return a job of an experiment. Raises NotFound."""
        self._forget()
        job = self._jobs.get(id)
        if job is None or job.experiment != experiment:
            raise NotFound(
                "this process has no evaluation of that id: it keeps its own, the newest "
                f"{KEPT_JOBS} of an experiment and {KEPT_JOBS_IN_ALL} in all, for an hour after "
                "their end",
                path="id",
            )
        return job

    async def cancel(self, experiment: str, id: str) -> None:
        """End a job and its process, or forget one that has ended. Raises NotFound."""
        job = self.find(experiment, id)
        if job.run.ended is None:
            await job.run.cancel()
        else:
            del self._jobs[id]

    async def close(self) -> None:
        """Cancel all jobs."""
        await self._worker.close()

    def _forget(self) -> None:
        """Drop ended jobs that are too old or too many."""
        oldest = self._clock.monotonic() - KEPT_SECONDS
        kept = Counter[str]()
        for job in reversed(list(self._jobs.values())):
            if job.run.ended is None:
                continue
            few = kept[job.experiment] < KEPT_JOBS and kept.total() < KEPT_JOBS_IN_ALL
            if few and job.run.ended >= oldest:
                kept[job.experiment] += 1
            else:
                del self._jobs[job.id]
