"""Questions that came together, decided together: no task and no turn of the loop for each."""

import asyncio
from collections.abc import Callable
from time import perf_counter

from service.access import GRANT, Grant
from service.arms import are_many
from service.engine import ASIDE_MS, Answer, Asked, Engine, Made, decide
from service.journal import Journal
from service.policies import together
from service.question import Question
from service.telemetry import Telemetry
from service.writer import Held, tell

Then = Callable[[Answer | Exception], None]

TURN_MS = 5.0
"""That decisions of one turn of the loop may take by their estimates; the rest has the next."""

PATIENCE_SECONDS, ENOUGH = 0.002, 16
"""Longest that a question waits for a commit to end before it is decided, and how many do."""


class Desk:
    """`Engine.select`, for callers who do not await.

    What is asked in one turn of the loop is looked up, scored and recorded in the next, and its
    rows share a commit. What is asked while the log commits is decided when that ends: its rows
    could not be written before, and the fewer the turns, the less a decision costs. Once many wait
    they are decided, so that no processor is idle while a distant log commits. Times of these
    stages are a request's share of them.
    """

    def __init__(self, engine: Engine, journal: Journal, telemetry: Telemetry) -> None:
        self._engine, self._journal = engine, journal
        self._asked: list[tuple[Question, Grant | None, Then]] = []
        self._alarm: asyncio.TimerHandle | None = None
        journal.between_commits = self._decide
        self._parse, self._score, self._seal, self._append = (
            telemetry.stages.labels(stage) for stage in ("parse", "score", "seal", "append")
        )

    def ask(self, question: Question, then: Then) -> None:
        """`then` takes the answer, or what `Engine.select` would raise. The question has no key."""
        if not self._asked:
            loop = asyncio.get_running_loop()
            if self._journal.committing:
                self._alarm = loop.call_later(PATIENCE_SECONDS, self._decide)
            else:
                loop.call_soon(self._decide)
        self._asked.append((question, GRANT.get(), then))
        if self._alarm is not None and len(self._asked) == ENOUGH:
            asyncio.get_running_loop().call_soon(self._decide)

    def _decide(self) -> None:
        """Decide what was asked, together what is asked of one policy about the same arms."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if not self._asked:
            return
        for group in self._groups():
            try:
                self._decide_group(group)
            except Exception as fault:
                for _, then in group:
                    then(fault)

    def _groups(self) -> list[list[tuple[Asked, Then]]]:
        """What is asked of one policy about the same arms, looked up."""
        waiting, self._asked = self._asked, []
        start, spent = perf_counter(), 0.0
        groups: dict[tuple[int, int, bool], list[tuple[Asked, Then]]] = {}
        for place, (question, grant, then) in enumerate(waiting):
            if spent > TURN_MS:
                self._asked = waiting[place:]
                asyncio.get_running_loop().call_soon(self._decide)
                break
            before = GRANT.set(grant)
            try:
                asked = self._look_up(question, then)
            except Exception as fault:
                then(fault)
                continue
            finally:
                GRANT.reset(before)
            if asked is not None:
                spent += asked.ms
                same = id(asked.learner), id(asked.candidates), asked.question.top_k == 1
                groups.setdefault(same, []).append((asked, then))
        if known := sum(map(len, groups.values())):
            self._parse.observe((perf_counter() - start) / known, known)
        return list(groups.values())

    def _look_up(self, question: Question, then: Then) -> Asked | None:
        """None: it has to be awaited."""
        state = self._engine.served(question.experiment)
        asked = None
        if state is not None and (question.arms is None or not are_many(question.arms)):
            asked = self._engine.look_up(state, question)
        if asked is None or asked.ms > ASIDE_MS or not asked.candidates.ids:
            self._journal.spawn(tell(self._engine.select(question), then))
            return None
        return asked

    def _decide_group(self, group: list[tuple[Asked, Then]]) -> None:
        """One learner, the same candidates; for one arm each, or for rankings."""
        start = perf_counter()
        asked = [one for one, _ in group]
        learner, candidates, top_k = asked[0].learner, asked[0].candidates, asked[0].question.top_k
        if len(asked) > 1 and top_k == 1:
            contexts, seeds = [one.context for one in asked], [one.seed for one in asked]
            found = together.decide(learner, contexts, candidates, seeds)
        else:
            found = [
                decide(learner, one.context, candidates, one.question.top_k, one.seed)
                for one in asked
            ]
        scored = perf_counter()
        made = [
            self._engine.record(one, p, slate) for one, (p, slate) in zip(asked, found, strict=True)
        ]
        sealed = perf_counter()
        self._score.observe((scored - start) / len(group), len(group))
        self._seal.observe((sealed - scored) / len(group), len(group))
        for (about, then), one in zip(group, made, strict=True):
            if one.whole:
                self._journal.keep_soon(one.row, self._kept(about, one, then, sealed))
            else:
                self._journal.spawn(tell(self._required(about, one), then))

    def _kept(self, asked: Asked, made: Made, then: Then, start: float) -> Callable[[Held], None]:
        def kept(held: Held) -> None:
            self._append.observe(perf_counter() - start)
            try:
                answer: Answer | Exception = self._engine.answer(asked, made, held)
            except Exception as fault:
                answer = fault
            then(answer)

        return kept

    async def _required(self, asked: Asked, made: Made) -> Answer:
        """A row that has to be in the log before the answer."""
        held = await self._journal.keep(made.row, required=True)
        return self._engine.answer(asked, made, held)
