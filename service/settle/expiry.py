"""Expiry: the default rewards of decisions that nobody has settled in time."""

import asyncio
import logging
from collections.abc import Iterable

from service.errors import Damaged, StoreUnavailable
from service.log.log import Log
from service.log.stores import Store
from service.settle.settlement import Settlements
from service.state.decisions import Decision, decode_decision
from service.state.fold import State

logger = logging.getLogger(__name__)

EXPIRE_BATCH = 500
"""Decisions of an experiment that are looked for at a time, by each process that shares in it."""

BLOCK_ARMS = 100
"""Arms of the decisions that one event settles, at most, unless one decision has more: heads learn
them within some ten milliseconds."""


class Expiry:
    """Settles decisions by their default reward once they are due.

    seconds   between two searches for them
    """

    def __init__(self, log: Log, store: Store, settlements: Settlements, seconds: float) -> None:
        self._log, self._store, self._settlements = log, store, settlements
        self._seconds = seconds
        self._damaged: set[bytes] = set()

    async def run(self) -> None:
        """Settle what is due, for ever; processes of one log share the decisions among them."""
        while True:
            await asyncio.sleep(self._seconds)
            try:
                while await self.expire_due() > EXPIRE_BATCH // 2:
                    pass  # a look that settles many may have left some
            except StoreUnavailable:
                pass  # they wait for the log, whose committer reports it
            except Exception:  # one decision must not keep the others from their rewards
                logger.exception("a default reward failed")

    async def expire_due(self) -> int:
        """Settle decisions past `reward_by` that fall to this process, some of each experiment.
        Return how many."""
        count, presence = 0, self._log.presence
        for state in self._log.replicas.states.values():
            if state.definition.reward.default is None:
                continue  # they stay open, for a default that is set again
            now, most = self._log.clock.now(state), EXPIRE_BATCH * len(presence.sharers)
            due = await self._store.due(state.name, now, most)
            own = map(self._read, filter(presence.owns, due))
            rows = [row for row in own if row is not None]
            await self.expire(state, *rows)
            count += len(rows)
        return count

    async def expire(self, state: State, *decisions: Decision) -> None:
        """Settle the arms that have no reward yet by the default reward, or close decisions without
        one of which nothing can be learned any more."""
        default = state.definition.reward.default
        if default is None:
            return
        forgotten = [one for one in decisions if state.has_forgotten(one.schema_version)]
        blocks = _blocks(one for one in decisions if not state.has_forgotten(one.schema_version))
        await asyncio.gather(  # in shared commits
            *(self._settlements.expire(state, block, default) for block in blocks),
            *(self._settlements.close(state, decision) for decision in forgotten),
        )

    def _read(self, payload: bytes) -> Decision | None:
        """Read a row; None for a damaged one, logged once: the others must not wait for it."""
        try:
            return decode_decision(payload)
        except Damaged as fault:
            if payload not in self._damaged:
                self._damaged.add(payload)
                logger.error("a decision gets no default reward: %s", fault)
            return None


def _blocks(decisions: Iterable[Decision]) -> list[list[Decision]]:
    """Put decisions of one policy and schema together, in their order, as one event settles
    them."""
    found, latest = list[list[Decision]](), dict[tuple[str, int], list[Decision]]()
    for decision in decisions:
        key = decision.policy, decision.schema_version
        block = latest.get(key)
        arms = len(decision.shown)
        if block is None or sum(len(one.shown) for one in block) + arms > BLOCK_ARMS:
            block = latest[key] = []
            found.append(block)
        block.append(decision)
    return found
