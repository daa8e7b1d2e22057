"""Rewards of decisions: from a token to an event in the log and a status, exactly once."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import compress
from typing import Literal, NamedTuple
from weakref import WeakValueDictionary

from service.decide.experiments import expect_present
from service.definition.experiment import LARGEST_REWARD, RewardRules
from service.definition.reward_request import RewardRequest
from service.errors import Conflict, Gone, Invalid, NotFound, StoreUnavailable
from service.log.log import Log
from service.log.stores import Store
from service.log.stores.base import Append, Appended, Mark
from service.naming import listed, quoted
from service.security.access import Grant, expect_granted, granted
from service.security.token import Ticket, TokenSealer
from service.settle.marks import MarkedSettlement, ShownReward, activation_mark
from service.settle.weighing import weigh
from service.state.decisions import Decision, Shown, decode_decision, model_version
from service.state.events import Activated, Default, Expired, encode_event
from service.state.fold import EARLIER, State
from service.telemetry.metrics import Telemetry

logger = logging.getLogger(__name__)

Status = Literal["accepted", "duplicate", "corrected", "ignored"]
ActivationStatus = Literal["activated", "duplicate"]


class Receipt(NamedTuple):
    """What became of a reward. reason: why it, or some of it, cannot count."""

    status: Status
    reason: str | None = None


class Settlements:
    """Settles decisions by their rewards, or by the default reward once they are due."""

    def __init__(self, log: Log, store: Store, sealer: TokenSealer, telemetry: Telemetry) -> None:
        self._log, self._store = log, store
        self._sealer, self._telemetry = sealer, telemetry
        self._locks = WeakValueDictionary[tuple[str, str], asyncio.Lock]()

    async def reward(self, request: RewardRequest, grant: Grant | None = None) -> Receipt:
        """Take a reward. Raises Invalid, NotFound, Forbidden, Gone, Conflict, or StoreUnavailable:
        nothing was acknowledged, and the same call again is safe."""
        ticket = self._sealer.open(request.decision_id)
        name = ticket.experiment
        expect_granted(grant, name)
        state = self._log.replicas.state(name) or await self._log.replicas.discover(name)
        shown = await self._shown(ticket)
        if ticket.position > state.position:
            await self._log.replicas.expect(name, ticket.position)
        _expect_learnable(state, ticket.schema_version)
        rewards = _rewards(request, [arm.arm for arm in shown], state.definition.reward)
        if self._log.clock.now(state) > ticket.accept_until:
            raise Gone("rewards for this decision were accepted until its `accept_until`")
        if ticket.contested:
            await self._expect_logged(ticket, shown)
        if ticket.deferred:
            mark = activation_mark(ticket.id)
            if mark not in await self._store.marks(name, [mark]):
                raise Conflict("this decision is deferred: activate it when it is shown")
        by_arm = {arm.arm: arm for arm in shown}
        slots = {} if request.cascade else {arm.arm: n for n, arm in enumerate(shown, start=1)}
        arms = [ShownReward(by_arm[arm], rewards[arm], slots.get(arm, 0)) for arm in rewards]
        if request.cascade:
            arms += [ShownReward(arm, None) for arm in shown if arm.arm not in rewards]
        outcome = await self.settle(state, ticket, arms, len(shown), request.reward_id)
        _expect_learnable(state, ticket.schema_version)  # a deletion may have come first
        self.count(state, ticket.policy, outcome.status)
        if ticket.unlogged and outcome.status == "accepted":
            await self._count_lost(ticket, request.decision_id)
        return outcome

    async def _count_lost(self, ticket: Ticket, token: str) -> None:
        """Count a decision as lost if another process answered it and its row is nowhere: that
        process has ended, most likely. A process counts its own as it drops them."""
        if not self._sealer.is_own(token):
            with suppress(StoreUnavailable):  # the reward is accepted already
                found = await self._log.committer.decision(ticket.experiment, ticket.id)
                self._telemetry.lost.inc(found is None)

    def count(self, state: State, policy: str, outcome: str, decisions: int = 1) -> None:
        self._telemetry.rewards.labels(state.name, policy, outcome).inc(decisions)

    async def activate(
        self, decision: str, experiment: str | None, grant: Grant | None = None
    ) -> ActivationStatus:
        """Log that a deferred decision was shown. Raises NotFound, Forbidden, Conflict, Gone, or
        StoreUnavailable: then the same call again is safe."""
        states = self._log.replicas.states
        known = {name: state for name, state in states.items() if granted(grant, name)}
        if experiment is not None:
            expect_granted(grant, experiment)
            known = {experiment: await self._log.replicas.discover(experiment)}
        for name, state in known.items():
            held = await self._log.committer.decision(name, decision)
            if held is None:
                continue
            row = decode_decision(held.payload)
            _expect_learnable(state, row.schema_version)
            if not row.deferred:
                raise Conflict("this decision was not deferred: it counts as shown")
            if self._log.clock.now(state) > row.accept_until:
                raise Gone("this decision could be activated until its `accept_until`")
            defaults = state.definition.reward.default is not None
            event = Activated(at=self._log.clock.now(state), decision=decision)
            entry = Append(
                name,
                encode_event(event),
                {activation_mark(decision): ""},
                opens=(decision, row.reward_by) if defaults else None,
                keep_until=row.accept_until,
            )
            result = await self._log.committer.append(entry, event)
            return "activated" if isinstance(result, Appended) else "duplicate"
        for name in self._log.replicas.quarantined:
            if granted(grant, name):
                self._log.replicas.state(name)  # raises: it may be there
        raise NotFound(f"no experiment has a decision {quoted(decision)}", path="id")

    async def _expect_logged(self, ticket: Ticket, shown: list[Shown]) -> None:
        """Raise Gone where the log has another decision under the same key."""
        row = await self._store.decision(ticket.experiment, ticket.id)
        if row is None:
            raise StoreUnavailable("this decision is not in the log yet")
        if decode_decision(row).shown != shown:
            raise Gone("another process has answered this Idempotency-Key too: its decision counts")

    async def _shown(self, ticket: Ticket) -> list[Shown]:
        """Return the arms of a ticket with their features; the decision's row has them where the
        token had no room."""
        if ticket.shown:
            return ticket.shown
        row = await self._store.decision(ticket.experiment, ticket.id)
        if row is None:
            raise Gone("the row of this decision, which holds what it showed, is gone")
        return decode_decision(row).shown

    async def settle(
        self,
        state: State,
        source: Ticket | Decision,
        arms: list[ShownReward],
        slots: int,
        reward_id: str | None,
    ) -> Receipt:
        settlement = _marked(state, source, arms, slots, reward_id)
        if await self._append(state, settlement):
            return Receipt("accepted")
        # Contributions to one decision take turns: of concurrent ones each commit would accept one
        # and refuse the others.
        lock = self._locks.setdefault((state.name, source.id), asyncio.Lock())
        waited = lock.locked()
        async with lock:
            if waited:
                known = await self._store.marks(state.name, [*settlement.marks()])
                settlement.learn_of(known, state.skips)
            while settlement.arms:
                if await self._append(state, settlement):
                    late = any(arm.was_default for arm in settlement.arms)
                    return Receipt("corrected" if late else "accepted", _ignored(settlement))
        counted = settlement.repeated or not settlement.ignored
        return Receipt("duplicate" if counted else "ignored", _ignored(settlement))

    async def _append(self, state: State, settlement: MarkedSettlement) -> bool:
        """Append the settlement and return whether the log accepts it; otherwise the settlement
        learns from the marks that it met."""
        met = await self._append_block(state, [settlement])
        if met is None:
            return True
        settlement.learn_of(met, state.skips)
        return False

    async def _append_block(
        self, state: State, block: Sequence[MarkedSettlement]
    ) -> Mapping[str, Mark] | None:
        """Append one settlement, or several defaults of one policy and schema, as one event. Return
        the marks that it met; None: the log accepts it."""
        now = self._log.clock.now(state)
        marks, replaces = dict[str, str](), dict[str, str]()
        for one in block:
            weigh(state, one)
            marks |= one.marks()
            replaces |= one.replaces
        told = [one.settlement(now) for one in block]
        event = told[0] if not isinstance(told[0], Default) else Expired.of(told)
        entry = Append(
            state.name,
            encode_event(event),
            marks,
            replaces,
            [one.decision for one in block if one.closes],
            keep_until=max(one.keep_until_at(now) for one in block),
        )
        result = await self._log.committer.append(entry, event)
        return None if isinstance(result, Appended) else result.marks

    # -- default rewards -----------------------------------------------------------------------

    async def expire(self, state: State, decisions: Sequence[Decision], default: float) -> None:
        """Settle the arms of decisions of one policy and schema that have no reward yet by the
        default reward, as one event. A decision of which the log knows more is settled alone."""
        alone, block = list[Decision](), list(decisions)
        while len(block) > 1:
            settlements = [_defaulted(state, one, default) for one in block]
            met = await self._append_block(state, settlements)
            if met is None:
                self.count(state, block[0].policy, "expired", len(block))
                break
            known = [not met.keys().isdisjoint(one.marks()) for one in settlements]
            alone += compress(block, known)
            block = [one for one, so in zip(block, known, strict=True) if not so]
        else:
            alone += block
        await asyncio.gather(*(self._expire_alone(state, one, default) for one in alone))

    async def _expire_alone(self, state: State, decision: Decision, default: float) -> None:
        arms = _by_default(decision, default)
        with suppress(Gone):  # it is being erased
            receipt = await self.settle(state, decision, arms, len(arms), None)
            outcome = "expired" if receipt.status == "accepted" else receipt.status
            self.count(state, decision.policy, outcome)

    async def close(self, state: State, decision: Decision) -> None:
        """Settle a decision without any reward: nothing can be learned of it any more."""
        arms = _by_default(decision, None)
        with suppress(Gone):
            await self.settle(state, decision, arms, len(arms), None)


def _by_default(decision: Decision, default: float | None) -> list[ShownReward]:
    return [ShownReward(shown, default, n) for n, shown in enumerate(decision.shown, start=1)]


def _defaulted(state: State, decision: Decision, default: float) -> MarkedSettlement:
    arms = _by_default(decision, default)
    return _marked(state, decision, arms, len(arms), None)


def _marked(
    state: State,
    source: Ticket | Decision,
    arms: list[ShownReward],
    slots: int,
    reward_id: str | None,
) -> MarkedSettlement:
    made_by = model_version(source.model_version)
    return MarkedSettlement(
        source.id,
        source.policy,
        source.schema_version,
        source.reward_by,
        source.accept_until,
        arms,
        len(arms) == slots,
        reward_id,
        state.definition.reward,
        version=0 if made_by is None else made_by.of(source.policy),
        unlogged=isinstance(source, Ticket) and source.unlogged,
    )


def _ignored(settlement: MarkedSettlement) -> str | None:
    """Say why rewards of a settlement cannot count; None where all of them can, or have."""
    if not settlement.ignored:
        return None
    return (
        f"the first reward of an arm counts (reward.aggregation is {settlement.rules.aggregation}),"
        f" and an earlier one under another reward_id settled {listed(settlement.ignored)}"
    )


def _expect_learnable(state: State, schema_version: int) -> None:
    """Raise Gone for a decision of which nothing can be learned any more."""
    expect_present(state, schema_version)
    if state.has_forgotten(schema_version):
        raise Gone(
            f"the features have changed more than {EARLIER} times since this decision: nothing can "
            "be learned of it"
        )


def _not_shown(shown: list[str], path: str) -> Invalid:
    return Invalid(f"was not shown by this decision, which showed {listed(shown)}", path=path)


def _rewards(request: RewardRequest, shown: list[str], rules: RewardRules) -> dict[str, float]:
    """Reward by arm. Raises Invalid with the path of the fault."""
    low, high = rules.range
    if request.cascade:
        if request.clicked is None:
            return dict.fromkeys(shown, low)
        if request.clicked not in shown:
            raise _not_shown(shown, "clicked")
        seen = shown[: shown.index(request.clicked)]
        return {**dict.fromkeys(seen, low), request.clicked: high}
    if request.rewards is not None:
        rewards = {f"rewards.{arm}": (arm, reward) for arm, reward in request.rewards.items()}
        for path, (arm, _) in rewards.items():
            if arm not in shown:
                raise _not_shown(shown, path)
    elif len(shown) > 1:
        raise Invalid("several arms were shown: give `rewards` or `feedback`", path="reward")
    else:
        assert request.reward is not None
        rewards = {"reward": (shown[0], request.reward)}
    low, high = max(low, -LARGEST_REWARD), min(high, LARGEST_REWARD)
    for path, (_, reward) in rewards.items():
        if not low <= reward <= high:
            raise Invalid(f"must lie between {low:g} and {high:g}", path=path)
    return dict(rewards.values())
