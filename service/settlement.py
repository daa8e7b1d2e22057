"""What came of a decision: from a token to identities, an event and a status. Exactly once."""

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import time
from typing import Any, Literal

from service.access import expect_granted, granted
from service.errors import Conflict, Damaged, Gone, Invalid, NotFound, StoreUnavailable
from service.events import (
    Corrected,
    Decision,
    Expired,
    Rewarded,
    Settled,
    Shown,
    decode_decision,
    encode_event,
)
from service.experiment import RewardRules
from service.fold import State
from service.journal import Journal
from service.stores.base import Activation, Append, Appended, Known, Mark
from service.telemetry import Telemetry
from service.token import Ticket, TokenSealer
from service.writer import tell

logger = logging.getLogger(__name__)

OPEN_S = 30 * 86_400.0
"""How much longer marks are kept of a decision that has arms left to settle."""

ERASED = "null"
"""What the links of an erased decision hold: nothing can be settled of it any more."""

Status = Literal["accepted", "duplicate", "corrected"]
ActivationStatus = Literal["activated", "duplicate"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a caller says came of a decision: one of `reward` (of the only arm shown), `rewards`
    (by arm) and `cascade` (arms were looked at down to the one that was clicked)."""

    decision_id: str
    reward: float | None = None
    rewards: Mapping[str, float] | None = None
    cascade: bool = False
    clicked: str | None = None
    reward_id: str = ""


def activation_mark(decision: str) -> str:
    """The identity of a deferred decision's having been shown."""
    return f"{decision}/activated"


def link_mark(decision: str, link: int, arm: str) -> str:
    """The identity of the `link`-th change of what is learned of a shown arm."""
    return f"{decision}#{link}/{arm}"


@dataclass(slots=True)
class _Arm:
    """One shown arm on its way to being settled.

    Each has a chain of marks, one a change of what is learned of it. Two writers cannot take the
    same link, so every event knows exactly what had been learned before it.
    """

    shown: Shown
    reward: float
    link: int = 0
    was: float | None = None
    since: int | None = None
    was_default: bool = False

    def total(self, rules: RewardRules) -> float:
        """What is to be learned of it now."""
        further = rules.aggregation == "sum" and self.was is not None and not self.was_default
        return self.reward + (self.was or 0.0) if further else self.reward

    def contribution_mark(self, decision: str, reward_id: str) -> str:
        return f"{decision}={len(reward_id)}/{reward_id}/{self.shown.arm}"


@dataclass(slots=True)
class _Settlement:
    """Arms of one decision that settle together.

    closes      these are all of its arms: the decision is no longer due
    reward_id   None for the default reward
    """

    decision: str
    policy: str
    schema_version: int
    keep_until: float
    arms: list[_Arm]
    closes: bool
    reward_id: str | None
    rules: RewardRules

    def event(self) -> Rewarded | Corrected | Expired:
        body: dict[str, Any] = {
            "at": time(),
            "decision": self.decision,
            "policy": self.policy,
            "schema_version": self.schema_version,
            "settled": [
                Settled(arm.shown.arm, arm.total(self.rules), arm.shown.x, arm.shown.inline)
                for arm in self.arms
            ],
        }
        if self.reward_id is None:
            return Expired(**body)
        if all(arm.was is None for arm in self.arms):
            return Rewarded(**body)
        was, since = [arm.was for arm in self.arms], [arm.since for arm in self.arms]
        return Corrected(**body, was=was, since=since)

    def keep_until_at(self, now: float) -> float:
        """How long its marks are needed: no reward comes after `accept_until`, but an outage may
        be over later, and the default for what is left of the decision come only then."""
        return max(self.keep_until, now) + (0.0 if self.closes else OPEN_S)

    def marks(self) -> dict[str, str]:
        """As JSON, written by hand: a number is as `repr` writes it."""
        marks, default = {}, "true" if self.reward_id is None else "false"
        for arm in self.arms:
            link = f"[{arm.total(self.rules)!r}, {default}]"
            marks[link_mark(self.decision, arm.link, arm.shown.arm)] = link
            if self.reward_id is not None:
                own = arm.contribution_mark(self.decision, self.reward_id)
                marks[own] = repr(arm.reward)
        return marks

    def learn_of(self, known: Mapping[str, Mark]) -> None:
        """Take in which marks were known: drop what is settled, move on along the chains.

        Raises Conflict where the same contribution was given with another value, Gone where the
        decision was erased.
        """
        left = []
        for arm in self.arms:
            if self.reward_id is not None:
                own = known.get(arm.contribution_mark(self.decision, self.reward_id))
                if own is not None and json.loads(own.value) != arm.reward:
                    raise Conflict(
                        f"arm {arm.shown.arm!r} of this decision has another reward under the "
                        "same reward_id"
                    )
                if own is not None:
                    continue
            link = known.get(link_mark(self.decision, arm.link, arm.shown.arm))
            if link is not None:
                if link.value == ERASED:
                    raise Gone("this decision was erased")
                arm.was, arm.was_default = json.loads(link.value)
                arm.since = link.position if arm.link == 0 else arm.since
                arm.link += 1
                if self.reward_id is None or not (
                    arm.was_default or self.rules.aggregation != "first"
                ):
                    continue  # the first word holds
            left.append(arm)
        self.arms = left


class Settlements:
    """Rewards, and the default rewards of decisions that nobody came back for."""

    def __init__(self, journal: Journal, sealer: TokenSealer, telemetry: Telemetry) -> None:
        self._journal, self._sealer, self._telemetry = journal, sealer, telemetry
        self._damaged: set[bytes] = set()

    async def reward(self, outcome: Outcome) -> Status:
        """Raises Invalid, NotFound, Forbidden, Gone, Conflict, or StoreUnavailable: nothing was
        acknowledged, and the same call again is safe."""
        ticket = self._sealer.open(outcome.decision_id)
        expect_granted(ticket.experiment)
        state = self._journal.state(ticket.experiment) or await self._journal.discover(
            ticket.experiment
        )
        settlement = self._settlement(state, ticket, await self._shown(ticket), outcome)
        if ticket.deferred:
            await self._expect_activated(state, ticket.id)
        return self._count(state, settlement, await self._settle(state, settlement))

    def reward_soon(self, outcome: Outcome, then: Callable[[Status | Exception], None]) -> None:
        """`reward`, for a caller who does not await. Raises, or tells, what `reward` raises."""
        ticket = self._sealer.open(outcome.decision_id)
        expect_granted(ticket.experiment)
        state = self._journal.state(ticket.experiment)
        if state is None or ticket.deferred or not ticket.shown:
            self._journal.spawn(tell(self.reward(outcome), then))
            return
        settlement = self._settlement(state, ticket, _shown_in(ticket), outcome)
        entry, event = _entry(state, settlement)

        def settled(result: Appended | Known | StoreUnavailable) -> None:
            if isinstance(result, Appended):
                then(self._count(state, settlement, "accepted"))
            elif isinstance(result, Known):
                self._journal.spawn(tell(self._go_on(state, settlement, result), then))
            else:
                then(result)

        self._journal.append_soon(entry, event, settled)

    async def _go_on(self, state: State, settlement: _Settlement, known: Known) -> Status:
        """After the first try of `reward_soon`."""
        settlement.learn_of(known.marks)
        return self._count(state, settlement, await self._settle(state, settlement))

    def _settlement(
        self, state: State, ticket: Ticket, arms: list[Shown], outcome: Outcome
    ) -> _Settlement:
        if state.deleted:
            raise Gone("the experiment of this decision was deleted")
        rules = state.definition.reward
        shown = {arm.arm: arm for arm in arms}
        rewards = _rewards(outcome, list(shown), rules)
        if time() > ticket.accept_until:
            raise Gone("rewards for this decision were accepted until its `accept_until`")
        return _Settlement(
            ticket.id,
            ticket.policy,
            ticket.schema_version,
            ticket.accept_until,
            [_Arm(shown[arm], reward) for arm, reward in rewards.items()],
            len(rewards) == len(shown) or outcome.cascade,
            outcome.reward_id,
            rules,
        )

    def _count(self, state: State, settlement: _Settlement, status: Status) -> Status:
        self._telemetry.rewards.labels(state.name, settlement.policy, status).inc()
        return status

    async def _expect_activated(self, state: State, decision: str) -> None:
        mark = activation_mark(decision)
        if mark not in await self._journal.store.marks(state.name, [mark]):
            raise Conflict("this decision is deferred: activate it when it is shown")

    async def activate(self, decision: str, experiment: str | None) -> ActivationStatus:
        """A deferred decision was shown. Raises NotFound, Forbidden, Conflict, Gone, or
        StoreUnavailable: then the same call again is safe."""
        known = {name: state for name, state in self._journal.states.items() if granted(name)}
        if experiment is not None:
            expect_granted(experiment)
            known = {experiment: await self._journal.discover(experiment)}
        for name, state in known.items():
            held = await self._journal.held(name, decision)
            if held is None or state.deleted:
                continue
            row = decode_decision(held.payload)
            if not row.deferred:
                raise Conflict("this decision was not deferred: it counts as shown")
            if time() > row.accept_until:
                raise Gone("this decision could be activated until its `accept_until`")
            defaults = state.definition.reward.default is not None
            first = await self._journal.activate(
                Activation(
                    name,
                    decision,
                    activation_mark(decision),
                    row.reward_by if defaults else None,
                    row.accept_until,
                )
            )
            return "activated" if first else "duplicate"
        raise NotFound("no experiment has a decision of this id", path="id")

    async def _shown(self, ticket: Ticket) -> list[Shown]:
        """The arms of a ticket with their features, from the decision row where they were many."""
        if ticket.shown:
            return _shown_in(ticket)
        row = await self._journal.store.decision(ticket.experiment, ticket.id)
        if row is None:
            raise Gone("the row of this decision, which holds what it showed, is gone")
        return decode_decision(row).shown

    async def _settle(self, state: State, settlement: _Settlement) -> Status:
        while settlement.arms:
            entry, event = _entry(state, settlement)
            result = await self._journal.append(entry, event)
            if isinstance(result, Appended):
                late = any(arm.was_default for arm in settlement.arms)
                return "corrected" if late else "accepted"
            settlement.learn_of(result.marks)
        return "duplicate"

    async def expire(self, state: State, row: Decision) -> None:
        """Let the default reward hold for the arms of a decision that nobody has settled."""
        rules = state.definition.reward
        if rules.default is None:
            return
        arms = [_Arm(shown, rules.default) for shown in row.shown]
        settlement = _Settlement(
            row.id, row.policy, row.schema_version, row.accept_until, arms, True, None, rules
        )
        try:
            status = await self._settle(state, settlement)
        except Gone:
            return  # it is being erased
        outcome = "expired" if status == "accepted" else status
        self._telemetry.rewards.labels(state.name, row.policy, outcome).inc()

    def _read(self, payload: bytes) -> Decision | None:
        """None: it is damaged, which is said once; the others must not wait for it."""
        try:
            return decode_decision(payload)
        except Damaged as fault:
            if payload not in self._damaged:
                self._damaged.add(payload)
                logger.error("a decision gets no default reward: %s", fault)
            return None

    async def expire_due(self, limit: int = 500) -> int:
        """Settle decisions past `reward_by`; how many there were, at most `limit` an experiment."""
        count = 0
        for state in self._journal.states.values():
            if state.definition.reward.default is None:
                continue  # they stay open, for a default that is set again
            due = await self._journal.store.due(state.name, time(), limit)
            rows = [row for row in map(self._read, due) if row is not None]
            await asyncio.gather(*(self.expire(state, row) for row in rows))  # in shared commits
            count += len(rows)
        return count


def _shown_in(ticket: Ticket) -> list[Shown]:
    return [Shown(arm.arm, arm.propensity, arm.features(), arm.inline) for arm in ticket.shown]


def _entry(state: State, settlement: _Settlement) -> tuple[Append, Rewarded | Corrected | Expired]:
    """What the log is to take, and the event in it."""
    event = settlement.event()
    entry = Append(
        state.name,
        encode_event(event),
        settlement.marks(),
        settlement.decision if settlement.closes else None,
        settlement.keep_until_at(time()),
    )
    return entry, event


def _rewards(outcome: Outcome, shown: list[str], rules: RewardRules) -> dict[str, float]:
    """Reward by arm. Raises Invalid with the path of the fault."""
    low, high = rules.range
    if outcome.cascade:
        if outcome.clicked is None:
            return dict.fromkeys(shown, low)
        if outcome.clicked not in shown:
            raise Invalid("was not shown by this decision", path="clicked")
        seen = shown[: shown.index(outcome.clicked)]
        return {**dict.fromkeys(seen, low), outcome.clicked: high}
    if outcome.rewards is not None:
        rewards, path = dict(outcome.rewards), "rewards."
        for arm in rewards:
            if arm not in shown:
                raise Invalid("was not shown by this decision", path=f"rewards.{arm}")
    elif len(shown) > 1:
        raise Invalid("several arms were shown: give `rewards` or `feedback`", path="reward")
    else:
        assert outcome.reward is not None
        rewards, path = {shown[0]: outcome.reward}, ""
    for arm, reward in rewards.items():
        if not low <= reward <= high:
            where = f"{path}{arm}" if path else "reward"
            raise Invalid(f"must lie between {low:g} and {high:g}", path=where)
    return rewards
