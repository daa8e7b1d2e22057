"""Expiry: the default rewards of decisions that nobody has settled in time."""

import asyncio
import logging

from service.errors import Damaged, Gone, StoreUnavailable
from service.log.log import Log
from service.log.stores import Store
from service.settle.marks import ShownReward
from service.settle.settlement import Settlements
from service.state.decisions import Decision, decode_decision
from service.state.fold import State

logger = logging.getLogger(__name__)

EXPIRE_BATCH = 500
"""Decisions of an experiment that are settled together."""


class Expiry:
    """Settles decisions by their default reward once they are due.

    seconds   between two searches for them
    """

    def __init__(self, log: Log, store: Store, settlements: Settlements, seconds: float) -> None:
        self._log, self._store, self._settlements = log, store, settlements
        self._seconds = seconds
        self._damaged: set[bytes] = set()

    async def run(self) -> None:
        """Settle what is due, for ever, in the process that leads."""
        while True:
            await asyncio.sleep(self._seconds)
            try:
                while self._log.presence.leads and await self.expire_due():
                    pass
            except StoreUnavailable:
                pass  # they wait for the log, whose committer reports it
            except Exception:  # one decision must not keep the others from their rewards
                logger.exception("a default reward failed")

    async def expire_due(self) -> int:
        """Settle decisions past `reward_by`, some of each experiment. Return how many."""
        count = 0
        for state in self._log.replicas.states.values():
            if state.definition.reward.default is None:
                continue  # they stay open, for a default that is set again
            due = await self._store.due(state.name, self._log.clock.now(state), EXPIRE_BATCH)
            rows = [row for row in map(self._read, due) if row is not None]
            await asyncio.gather(*(self.expire(state, row) for row in rows))  # in shared commits
            count += len(rows)
        return count

    async def expire(self, state: State, decision: Decision) -> None:
        """Settle the arms that have no reward yet by the default reward, or close them without one
        where nothing can be learned of the decision any more."""
        default = state.definition.reward.default
        if default is None:
            return
        forgotten = state.has_forgotten(decision.schema_version)
        default = None if forgotten else default
        arms = [ShownReward(shown, default, n) for n, shown in enumerate(decision.shown, start=1)]
        try:
            settled = await self._settlements.settle(state, decision, arms, len(arms), None)
        except Gone:
            return  # it is being erased
        if forgotten:
            return
        outcome = "expired" if settled.status == "accepted" else settled.status
        self._settlements.count(state, decision.policy, outcome)

    def _read(self, payload: bytes) -> Decision | None:
        """Read a row; None for a damaged one, logged once: the others must not wait for it."""
        try:
            return decode_decision(payload)
        except Damaged as fault:
            if payload not in self._damaged:
                self._damaged.add(payload)
                logger.error("a decision gets no default reward: %s", fault)
            return None
