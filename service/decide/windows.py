"""Windows as this process sees them: what the log counted at first, and what it showed since.

Shares are paced by each process on its own decisions. A count that several processes share is never
passed: each shows no more than the part that it has leased, in the log, of what is left.
"""

from collections.abc import Sequence
from contextlib import suppress
from math import ceil
from weakref import WeakKeyDictionary

from service.clock import Clock
from service.errors import StoreError
from service.log.log import Log
from service.log.stores.base import Append
from service.state.decisions import WindowCount
from service.state.events import Leased, encode_event
from service.state.exposure import Exposure, ShownByRule
from service.state.fold import State
from service.state.rule_plan import Paced, Plan
from service.state.rulebook import RuleBook

LEASED = 0.1
"""Part of what is left of a count that a process asks for at once."""

ASKED_AGAIN_SECONDS = 1.0
"""Seconds after which a process asks again for what it did not get."""


class _Shown:
    """What this process has shown of one experiment, under one rulebook.

    exposure   begins with what the log held
    own        of counts that are leased: what this process showed in a window, by rule, number of
               the window, and label
    asked      until when an answer to the last question about a rule is waited for
    """

    def __init__(self, rulebook: RuleBook, exposure: Exposure) -> None:
        self.rulebook, self.exposure = rulebook, exposure
        self.own: dict[tuple[str, int], dict[str, int]] = {}
        self.asked: dict[str, float] = {}


class Windows:
    """Counts what this process shows, from when it first decides. A restart begins with what the
    log holds by then."""

    def __init__(self, log: Log, clock: Clock) -> None:
        self._log, self._clock = log, clock
        self._of = WeakKeyDictionary[State, _Shown]()

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

    def show(self, state: State, plan: Plan, at: float, arms: Sequence[int]) -> ShownByRule:
        """Count a decision. arms: places of those shown. Return what the log is to count."""
        shown, labels = self._shown(state), plan.shown(arms)
        shown.exposure.add(at, labels)
        for each in plan.paced:
            if each.declared.count is not None:
                own = self._own(state, shown, each, at)
                for label in labels[each.name]:
                    own[label] = own.get(label, 0) + 1
        return labels

    def _shown(self, state: State) -> _Shown:
        known = self._of.get(state)
        if known is not None and known.rulebook is state.rulebook:
            return known
        shown = self._of[state] = _Shown(state.rulebook, state.exposure.copy())
        if known is not None:
            shown.exposure.keep(known.exposure)
            shown.own = known.own
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
            self._log.background.spawn(self._ask(state, shown, each.name, wanted))
        return tuple(found)

    async def _ask(self, state: State, shown: _Shown, rule: str, wanted: dict[str, int]) -> None:
        """Ask for a part of a count. Where the log is gone, ask again later."""
        process, at = self._log.presence.name, self._log.clock.now(state)
        event = Leased(at=at, rule=rule, process=process, asked=wanted)
        with suppress(StoreError):
            await self._log.committer.append(Append(state.name, encode_event(event), {}), event)
            shown.asked[rule] = 0.0
