"""What came of a decision: from a token to identities, an event and a status. Exactly once."""

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from time import time
from typing import Literal
from weakref import WeakValueDictionary

from service.definition.experiment import LARGEST_REWARD, RewardRules
from service.errors import (
    Conflict,
    Damaged,
    Gone,
    Invalid,
    NotFound,
)
from service.log.journal import Journal
from service.log.stores import Store
from service.log.stores.base import Activation, Append, Appended
from service.observability.telemetry import Telemetry
from service.security.access import Grant, expect_granted, granted
from service.security.token import Ticket, TokenSealer
from service.serving.chain import (
    MOST_LINKS,
    STRIDE,
    ArmLink,
    Settlement,
    activation_mark,
    link_mark,
)
from service.state.events import (
    Corrected,
    Decision,
    Expired,
    Rewarded,
    Shown,
    decode_decision,
    encode_event,
)
from service.state.fold import State

logger = logging.getLogger(__name__)

Status = Literal["accepted", "duplicate", "corrected"]
ActivationStatus = Literal["activated", "duplicate"]


@dataclass(frozen=True, slots=True)
class RewardRequest:
    """What a caller says came of a decision: one of `reward` (of the only arm shown), `rewards`
    (by arm) and `cascade` (arms were looked at down to the one that was clicked)."""

    decision_id: str
    reward: float | None = None
    rewards: Mapping[str, float] | None = None
    cascade: bool = False
    clicked: str | None = None
    reward_id: str = ""


def weight_of(state: State, schema_version: int, x: Sequence[float]) -> float:
    """For how much of a settlement the first word on an arm counts. Of other features than the
    present ones nothing is learned."""
    return state.influence.weight(x) if schema_version == state.schema_version else 1.0


class Settlements:
    """Rewards, and the default rewards of decisions that nobody came back for."""

    def __init__(
        self, journal: Journal, store: Store, sealer: TokenSealer, telemetry: Telemetry
    ) -> None:
        self._journal, self._store = journal, store
        self._sealer, self._telemetry = sealer, telemetry
        self._damaged: set[bytes] = set()
        self._locks = WeakValueDictionary[tuple[str, str], asyncio.Lock]()

    async def reward(self, outcome: RewardRequest, grant: Grant | None = None) -> Status:
        """Raises Invalid, NotFound, Forbidden, Gone, Conflict, or StoreUnavailable: nothing was
        acknowledged, and the same call again is safe."""
        ticket = self._sealer.open(outcome.decision_id)
        expect_granted(grant, ticket.experiment)
        state = self._journal.state(ticket.experiment) or await self._journal.discover(
            ticket.experiment
        )
        settlement = self._settlement(state, ticket, await self._shown(ticket), outcome)
        if ticket.deferred:
            await self._expect_activated(state, ticket.id)
        return self._count(state, settlement, await self._settle(state, settlement))

    def _settlement(
        self, state: State, ticket: Ticket, arms: list[Shown], outcome: RewardRequest
    ) -> Settlement:
        if state.deleted:
            raise Gone("the experiment of this decision was deleted")
        rules = state.definition.reward
        shown = {arm.arm: arm for arm in arms}
        rewards = _rewards(outcome, list(shown), rules)
        if time() > ticket.accept_until:
            raise Gone("rewards for this decision were accepted until its `accept_until`")
        told = [ArmLink(shown[arm], reward) for arm, reward in rewards.items()]
        if outcome.cascade:
            told += [ArmLink(arm, None) for arm in arms if arm.arm not in rewards]
        return Settlement(
            ticket.id,
            ticket.policy,
            ticket.schema_version,
            ticket.accept_until,
            told,
            len(told) == len(shown),
            outcome.reward_id,
            rules,
        )

    def _count(self, state: State, settlement: Settlement, status: Status) -> Status:
        self._telemetry.rewards.labels(state.name, settlement.policy, status).inc()
        return status

    async def _expect_activated(self, state: State, decision: str) -> None:
        mark = activation_mark(decision)
        if mark not in await self._store.marks(state.name, [mark]):
            raise Conflict("this decision is deferred: activate it when it is shown")

    async def activate(
        self, decision: str, experiment: str | None, grant: Grant | None = None
    ) -> ActivationStatus:
        """A deferred decision was shown. Raises NotFound, Forbidden, Conflict, Gone, or
        StoreUnavailable: then the same call again is safe."""
        states = self._journal.states
        known = {name: state for name, state in states.items() if granted(grant, name)}
        if experiment is not None:
            expect_granted(grant, experiment)
            known = {experiment: await self._journal.discover(experiment)}
        for name, state in known.items():
            held = await self._journal.decision(name, decision)
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
        for name in self._journal.quarantined:
            if granted(grant, name):
                self._journal.state(name)  # raises: it may be there
        raise NotFound("no experiment has a decision of this id", path="id")

    async def _shown(self, ticket: Ticket) -> list[Shown]:
        """The arms of a ticket with their features, from the decision row where they were many."""
        if ticket.shown:
            return _shown_in(ticket)
        row = await self._store.decision(ticket.experiment, ticket.id)
        if row is None:
            raise Gone("the row of this decision, which holds what it showed, is gone")
        return decode_decision(row).shown

    async def _settle(self, state: State, settlement: Settlement) -> Status:
        entry, event = _entry(state, settlement)
        result = await self._journal.append(entry, event)
        if isinstance(result, Appended):
            return "accepted"
        settlement.learn_of(result.marks, state.skips)
        return await self._settle_in_turn(state, settlement)

    async def _settle_in_turn(self, state: State, settlement: Settlement) -> Status:
        """What the first try left over. Contributions to one decision go one after the other: of
        those that try at once each commit would take one, and refuse the others."""
        key = state.name, settlement.decision
        lock = self._locks.get(key)
        if lock is None:
            lock = self._locks[key] = asyncio.Lock()
        async with lock:
            while settlement.arms:
                await self._find_ends(state, settlement)
                entry, event = _entry(state, settlement)
                result = await self._journal.append(entry, event)
                if isinstance(result, Appended):
                    late = any(arm.was_default for arm in settlement.arms)
                    return "corrected" if late else "accepted"
                settlement.learn_of(result.marks, state.skips)
        return "duplicate"

    async def _find_ends(self, state: State, settlement: Settlement) -> None:
        """Move arms to the ends of their chains, where a further reward may follow any other.
        Raises Gone."""
        arms = settlement.contributed
        if not arms:
            return

        async def known(links: Iterable[tuple[ArmLink, int]]) -> None:
            wanted = [
                (arm, link, link_mark(settlement.decision, link, arm.shown.arm))
                for arm, link in links
            ]
            found = await self._store.marks(state.name, [each[2] for each in wanted])
            for arm, link, identity in wanted:
                if identity in found:
                    arm.link = link
                    arm.follow(found[identity], state.skips)

        await known(
            (arm, link) for arm in arms for link in range(arm.link + STRIDE, MOST_LINKS, STRIDE)
        )
        await known((arm, link) for arm in arms for link in range(arm.link, arm.link + STRIDE))

    async def expire(self, state: State, row: Decision) -> None:
        """Let the default reward hold for the arms of a decision that nobody has settled."""
        rules = state.definition.reward
        if rules.default is None:
            return
        arms = [ArmLink(shown, rules.default) for shown in row.shown]
        settlement = Settlement(
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
            due = await self._store.due(state.name, time(), limit)
            rows = [row for row in map(self._read, due) if row is not None]
            await asyncio.gather(*(self.expire(state, row) for row in rows))  # in shared commits
            count += len(rows)
        return count


def _shown_in(ticket: Ticket) -> list[Shown]:
    return [Shown(arm.arm, arm.propensity, arm.features(), arm.inline) for arm in ticket.shown]


def _entry(state: State, settlement: Settlement) -> tuple[Append, Rewarded | Corrected | Expired]:
    """What the log is to take, and the event in it. The first word on an arm is weighed; a later
    one has the weight of the first, as its mark says."""
    for arm in settlement.arms:
        if arm.was is None:
            arm.weight = weight_of(state, settlement.schema_version, arm.shown.x)
    now = time()
    event = settlement.event(now)
    entry = Append(
        state.name,
        encode_event(event),
        settlement.marks(),
        settlement.decision if settlement.closes else None,
        settlement.keep_until_at(now),
    )
    return entry, event


def _rewards(outcome: RewardRequest, shown: list[str], rules: RewardRules) -> dict[str, float]:
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
    low, high = max(low, -LARGEST_REWARD), min(high, LARGEST_REWARD)
    for arm, reward in rewards.items():
        if not low <= reward <= high:
            where = f"{path}{arm}" if path else "reward"
            raise Invalid(f"must lie between {low:g} and {high:g}", path=where)
    return rewards
