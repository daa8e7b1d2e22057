"""Windows as this process sees them: what the log has counted, and what it has shown itself since.

What other processes have shown and not logged yet, it cannot see: for shares that is little, since
they are paced. A count that several processes share is never passed: each shows no more than the
part that it has leased, in the log, of what is left.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from itertools import takewhile
from math import ceil

from service.clock import Clock
from service.errors import StoreError
from service.log.log import Log
from service.log.stores.base import Append, Appended
from service.state.decisions import WindowCount
from service.state.events import Leased, encode_event
from service.state.exposure import Exposure, ShownByRule
from service.state.fold import State
from service.state.rule_plan import Paced, Plan
from service.state.rulebook import RuleBook

LEASED = 0.1
"""Part of what is left of a count that a process asks for at once."""

AHEAD_SECONDS = 60.0
"""Seconds by which a decision may be older than one that the log has counted, and still count."""

ASKED_AGAIN_SECONDS = 1.0
"""Seconds after which a process asks again for what it did not get."""


class _Shown:
    """What this process has shown of one experiment.

    ahead      its decisions that the log has not counted yet, by id: time and labels
    exposure   what the log has counted, and these
    seen       the counts of the log that `exposure` began with: a rulebook, and `Exposure.added`
    own        of counts that are leased: what this process showed in a window, by rule, number of
               the window, and label
    asked      until when an answer to the last question about a rule is waited for
    answers    those that are on their way
    """

    def __init__(self) -> None:
        self.ahead: dict[str, tuple[float, ShownByRule]] = {}
        self.exposure = Exposure()
        self.seen: tuple[RuleBook, int] | None = None
        self.own: dict[tuple[str, int], dict[str, int]] = {}
        self.asked: dict[str, float] = {}
        self.answers: set[asyncio.Future[None]] = set()

    def forget(self, ids: Sequence[str]) -> None:
        """Forget decisions that the log has counted, and those long before them, which it never
        will: their callers had gone, or there was no room for them in memory."""
        known = [self.ahead.pop(each) for each in ids if each in self.ahead]
        since = max((at for at, _ in known), default=0.0) - AHEAD_SECONDS
        lost = list(takewhile(lambda each: self.ahead[each][0] < since, self.ahead))
        for each in lost:
            del self.ahead[each]


class Windows:
    """Counts what this process shows, until the log has counted it."""

    def __init__(self, log: Log, clock: Clock) -> None:
        self._log, self._clock = log, clock
        self._of = dict[str, _Shown]()

    def counts(self, state: State, plan: Plan, at: float) -> tuple[WindowCount, ...]:
        """Return the counts that the limits of a decision depend on. at: its time (unix
        seconds)."""
        shown = self._shown(state)
        found = list[WindowCount]()
        for each in plan.paced:
            decisions, counts = shown.exposure.windows[each.name].counts(at, each.labels)
            if each.declared.count is not None and self._log.shared:
                counts = self._unleased(state, shown, each, at)
            found.append(WindowCount(each.name, decisions, counts))
        return tuple(found)

    def show(
        self, state: State, id: str, plan: Plan, at: float, arms: Sequence[int]
    ) -> ShownByRule:
        """Count a decision. arms: places of those shown. Return what the log is to count."""
        shown, labels = self._shown(state), plan.shown(arms)
        shown.ahead[id] = at, labels
        shown.exposure.add(at, labels)
        for each in plan.paced:
            if each.declared.count is not None:
                own = self._own(state, shown, each, at)
                for label in labels[each.name]:
                    own[label] = own.get(label, 0) + 1
        return labels

    def _shown(self, state: State) -> _Shown:
        shown = self._of.setdefault(state.name, _Shown())
        counted = state.rulebook, state.exposure.added
        if shown.seen != counted:
            shown.forget(self._log.committer.take_counted(state))
            shown.seen, shown.exposure = counted, state.exposure.copy()
            for at, labels in shown.ahead.values():
                shown.exposure.add(at, labels)
        return shown

    # -- leases --------------------------------------------------------------------------------

    def _own(self, state: State, shown: _Shown, each: Paced, at: float) -> dict[str, int]:
        """Return what this process has shown in the window of a time."""
        key = each.name, state.exposure.windows[each.name].number_at(at)
        if key not in shown.own:
            shown.own = {other: own for other, own in shown.own.items() if other[0] != each.name}
            shown.own[key] = {}
        return shown.own[key]

    def _unleased(self, state: State, shown: _Shown, each: Paced, at: float) -> tuple[int, ...]:
        """Return counts that leave what this process may show yet of each label, and ask for more
        where it has little."""
        count, me = each.declared.count or 0, self._log.presence.name
        own, window = self._own(state, shown, each, at), state.exposure.windows[each.name]
        found, wanted = list[int](), dict[str, int]()
        for label in each.labels:
            leases = window.leased(at, label)
            may = max(leases.get(me, 0) - own.get(label, 0), 0)
            part = ceil((count - sum(leases.values())) * LEASED)
            if part and may <= part // 2:
                wanted[label] = part
            found.append(count - may)
        now = self._clock.monotonic()
        if wanted and shown.asked.get(each.name, 0.0) <= now:
            shown.asked[each.name] = now + ASKED_AGAIN_SECONDS
            answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            shown.answers.add(answer)
            self._log.background.spawn(self._ask(state, shown, each.name, wanted, answer))
        return tuple(found)

    async def _ask(
        self,
        state: State,
        shown: _Shown,
        rule: str,
        wanted: dict[str, int],
        answer: asyncio.Future[None],
    ) -> None:
        """Ask for a part of a count. Where the log is gone, ask again later."""
        process, at = self._log.presence.name, self._log.clock.now(state)
        event = Leased(at=at, rule=rule, process=process, asked=wanted)
        try:
            with suppress(StoreError, TimeoutError):
                entry = Append(state.name, encode_event(event), {})
                result = await self._log.committer.append(entry, event)
                if isinstance(result, Appended):
                    async with asyncio.timeout(ASKED_AGAIN_SECONDS):
                        await self._log.replicas.reach(state.name, result.position)
                shown.asked[rule] = 0.0
        finally:
            shown.answers.discard(answer)
            answer.set_result(None)

    async def answered(self, experiment: str) -> bool:
        """Wait for parts of counts that were asked for, a while; return whether any were."""
        shown = self._of.get(experiment)
        if shown is None or not shown.answers:
            return False
        await asyncio.wait([*shown.answers], timeout=ASKED_AGAIN_SECONDS)
        return True
