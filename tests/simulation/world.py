"""The world of one run: a disk, its processes, their callers, a trainer, and what befalls them.

A rule takes chance and changes something; then a little time passes, and all that must hold is
looked at. Two worlds of one seed and the same steps are the same, bit for bit.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from random import Random
from typing import Any

from service.definition.reward_request import RewardRequest
from service.definition.select_request import SelectRequest
from service.errors import ForageError, Refused, StoreUnavailable
from service.settle.settlement import Receipt
from tests.simulation.audit import Audit
from tests.simulation.clock import MARGIN_S, Clock, injected
from tests.simulation.disk import Disk
from tests.simulation.experiment import TRAINED, Training, definition_of
from tests.simulation.ledger import CONTRIBUTIONS, Contribution, Ledger, Visit
from tests.simulation.process import NAME, Bugs, Process, simulated_definition

PAUSES_S = (0.0, 0.003, 0.02, 0.1, 0.6)
DELAYS_S = (0.0, 0.0, 0.002, 0.05, 1.0)
"""Of a message on its way."""
HEALING_S = 12.0
"""In which all is well again once the faults are over; a late write takes 5 of them."""
TRIES = 10
UNITS = ("ann", "ben", "cleo", "dora")
LEEWAY_S = MARGIN_S - 100.0
"""So much time may pass between two calms: less than marks are kept."""


class World:
    """One run: two processes on a shared store, or one that has it for itself.

    leeway_s   how much time may pass between two calms
    """

    def __init__(self, seed: int, leeway_s: float = LEEWAY_S) -> None:
        self._rng = Random(seed)
        shared = self._rng.random() < 0.7
        self._aggregation = self._rng.choice(("first", "sum", "last"))
        self._definition = definition_of(self._aggregation)
        self._clock = Clock(shared=shared)
        self._loop = self._clock.loop()
        self.disk = Disk(shared=shared, now=self._clock.latest)
        self.ledger = Ledger(self._definition.reward)
        self.audit = Audit(self.disk, self.ledger)
        self._bugs = Bugs()
        self._violations: list[BaseException] = []
        self._artifacts: list[bytes] = []
        self._erasures: list[str | None] = []
        """Units that were asked to be erased; None where that was answered."""
        self._revisions = 0
        self._leeway = self._leeway_s = leeway_s
        self._replicas: list[Process | None] = [None] * (2 if shared else 1)
        self._skews = [0.0] * len(self._replicas)
        """Of the clocks of their hosts, when they were last up."""

    @contextmanager
    def open(self) -> Iterator["World"]:
        with ExitStack() as stack:
            stack.callback(self._loop.close)
            stack.enter_context(injected(self._rng))
            stack.enter_context(simulated_definition())
            stack.enter_context(self._bugs.watching())
            self._run(self.start_all())
            try:
                yield self
            finally:
                self._run(self._end())

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        self._loop.run_until_complete(work)

    async def _end(self) -> None:
        for process in self.processes:
            process.crash()
        await asyncio.sleep(HEALING_S)

    def step(self, rule: "Rule", rng: Random) -> None:
        """One rule, a little time, and everything that must hold."""
        self._run(rule(self, rng))
        self._run(asyncio.sleep(rng.choice(PAUSES_S)))
        self.check()

    def finish(self) -> None:
        """The faults are over: callers try again until they are answered."""
        self._run(self._finish())

    async def _finish(self) -> None:
        for _ in range(2):
            await self.calm()
            for visit, own in self._unanswered():
                self.report(visit, own, self._rng)
        await self.calm()
        assert not self._unanswered(), "a caller is never answered"

    def _unanswered(self) -> list[tuple[Visit, Contribution]]:
        every = [(visit, own) for visit in self.ledger.visits.values() for own in visit.sent]
        return [(visit, own) for visit, own in every if not own.answers and not own.refused]

    def check(self) -> None:
        for fault in (*self._violations, *self._bugs.found):
            raise AssertionError(f"{type(fault).__name__}: {fault}") from fault
        self.audit.check(self.processes)

    async def calm(self) -> None:
        """Faults end, whoever is down starts, and a while later all is as it must be."""
        await self.start_all()
        for process in self.processes:
            process.line.down = process.line.slow = process.skew = 0.0
            process.line.faults.clear()
        await asyncio.sleep(HEALING_S)
        await self._ask_again()
        self._leeway = self._leeway_s
        due = min(self._clock.true(), *map(_log_time, self.processes)) - HEALING_S / 2
        for _ in range(TRIES):  # an event may just have been written
            if self.audit.caught_up(self.processes):
                break
            await asyncio.sleep(0.1)
        self.check()
        self.audit.check_calm(self.processes, due)

    async def _ask_again(self) -> None:
        """Erasures that were not answered."""
        units = sorted({unit for unit in self._erasures if unit})
        self._erasures = [None] * len(self._erasures)
        process = self.processes[0]
        for unit in units * TRIES:
            if unit in units:
                try:
                    await process.run(process.parts.eraser.erase(unit, ""))
                    units.remove(unit)
                except StoreUnavailable:
                    await asyncio.sleep(0.5)
        assert not units, f"{units} cannot be erased"

    @property
    def processes(self) -> list[Process]:
        return [process for process in self._replicas if process is not None]

    def serving(self, rng: Random) -> Process | None:
        """A process that answers requests."""
        ready = [process for process in self.processes if process.services]
        return rng.choice(ready) if ready else None

    def any_process(self, rng: Random) -> Process | None:
        return rng.choice(self.processes) if self.processes else None

    async def start_all(self) -> None:
        for index, process in enumerate(self._replicas):
            if process is None:
                skew = self._skews[index]
                self._replicas[index] = Process(
                    self.disk, self._definition, self._clock, self._rng, skew
                )

    async def lose(self, process: Process) -> None:
        process.crash()
        index = self._replicas.index(process)
        self._replicas[index], self._skews[index] = None, process.skew
        await asyncio.sleep(0)

    def ask(
        self,
        process: Process,
        request: Callable[[], Coroutine[Any, Any, Any]],
        answered: Callable[[Any, ForageError | None], None],
        rng: Random,
    ) -> None:
        """Send a request on its way. Whoever dies first never answers."""

        async def deliver() -> None:
            answer, refused = None, None
            await asyncio.sleep(delay)
            try:
                answer = await request()
            except (Refused, StoreUnavailable) as fault:
                refused = fault
            except Exception as fault:
                self._violations.append(fault)
                return
            if not process.dead:
                try:
                    answered(answer, refused)
                except AssertionError as violation:
                    self._violations.append(violation)

        delay = rng.choice(DELAYS_S)
        process.run(deliver())

    def select(self, rng: Random) -> None:
        if process := self.serving(rng):
            context = {"pet": rng.choice(("cat", "dog")), "age": 3.0}
            unit = rng.choice(UNITS)
            question = SelectRequest(context, NAME, unit=unit, top_k=rng.choice((1, 1, 2)))
            select = partial(process.parts.selector.select, question)
            self.ask(process, select, partial(self.ledger.shown, unit), rng)

    def contribute(self, visit: Visit, rng: Random) -> None:
        """A new contribution, to some of the arms."""
        if len(visit.sent) < CONTRIBUTIONS:
            arms = [shown.arm for shown in visit.decision.shown]
            own = visit.contribute(sorted(rng.sample(arms, rng.randint(1, len(arms)))))
            self.report(visit, own, rng)

    def report(self, visit: Visit, own: Contribution, rng: Random, factor: float = 1.0) -> None:
        """Tell some process of a contribution. factor: of its worth, to contradict it."""
        if not (process := self.serving(rng)):
            return
        rewards = {arm: reward * factor for arm, reward in own.rewards.items()}
        outcome = RewardRequest(visit.token, rewards=rewards, reward_id=own.reward_id)
        # Of a row that went by a clock far ahead, nothing tells whose it was.
        erased = visit.erased and visit.decision.id not in self.disk.trimmed

        def answered(settled: Receipt | None, fault: ForageError | None) -> None:
            status = None if settled is None else settled.status
            if factor == 1.0:
                self.ledger.answered(visit, own, status, fault, erased=erased)
            else:
                self.ledger.contradicted(status, fault)

        self.ask(process, partial(process.parts.settlements.reward, outcome), answered, rng)

    def erase(self, rng: Random) -> None:
        """A unit wants to be forgotten."""
        if process := self.serving(rng):
            unit = rng.choice(UNITS)
            before, number = self.ledger.logged_of(unit), len(self._erasures)

            def answered(gone: object, fault: ForageError | None) -> None:
                self.ledger.erased(before, gone, fault)
                self._erasures[number] = None if gone is not None else unit

            self._erasures.append(unit)
            self.ask(process, partial(process.parts.eraser.erase, unit, ""), answered, rng)

    def define(self, rng: Random) -> None:
        if process := self.serving(rng):
            self._revisions += 1
            definition = definition_of(self._aggregation, self._revisions)
            define = partial(process.parts.admin.define, NAME, definition, "")
            self.ask(process, define, lambda *_: None, rng)

    def train(self, rng: Random) -> None:
        """Work on the log as it is; what comes of it may be handed over much later, or never."""
        if self.audit.records and not any(
            learner.challenger for learner in self.audit.state.learners.values()
        ):
            training = Training(self.audit.records, self.audit.state)
            training.stage(TRAINED, lag=rng.choice((0, 3)), gated=rng.random() < 0.7)
            self._artifacts.append(training.artifact)

    def hand_over(self, rng: Random) -> None:
        """One of the last artifacts, which may be stale by now."""
        if self._artifacts and (process := self.serving(rng)):
            artifact = rng.choice(self._artifacts[-3:])
            state = process.parts.log.replicas.states.get(NAME)
            assert state is not None, "a process serves, and has not got what was defined"
            stage = partial(process.parts.admin.stage, state, TRAINED, artifact, "")
            self.ask(process, stage, lambda *_: None, rng)

    @property
    def now(self) -> float:
        """Of the loop."""
        return self._loop.time()

    def jump(self, seconds: float) -> None:
        """So much time passes, unless that is more than may."""
        if seconds <= self._leeway:
            self._leeway -= seconds
            self._clock.skip(seconds)

    def jump_to(self, moment: float) -> None:
        self.jump(max(0.0, moment - self._clock.true()))

    async def outage(self, seconds: float) -> None:
        """Nobody is there for so long; what was on its way has arrived or is lost."""
        if seconds <= self._leeway:
            for process in self.processes:
                await self.lose(process)
            await asyncio.sleep(HEALING_S)
            self.jump(seconds)
            await self.start_all()


def _log_time(process: Process) -> float:
    assert process.services is not None, "a process cannot start"
    log = process.services.log
    return log.clock.now(log.replicas.by_name[NAME].state)


Rule = Callable[[World, Random], Coroutine[Any, Any, None]]
