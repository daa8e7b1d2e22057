"""StagedVersions: a staged version folds the events since its watermark before it serves."""

import hashlib
from collections.abc import AsyncIterator
from math import inf

from service.errors import Damaged, LogGap
from service.log.live import Live
from service.log.replay import replay
from service.log.stores import Store
from service.state.events import Erased
from service.state.learner import Learner, Staged


class StagedVersions:
    def __init__(self, store: Store) -> None:
        self._store = store

    async def artifact(self, name: str, digest: str) -> bytes | None:
        """Raises Damaged where it has another content than its name says."""
        artifact = await self._store.blob(name, digest)
        if artifact and hashlib.sha256(artifact).hexdigest() != digest:
            raise Damaged(f"artifact {digest} has another content than its name says")
        return artifact

    async def catch_up(self, live: Live, learner: Learner) -> None:
        """Fold the events since its watermark into a staged version, in slices. Raises LogGap where
        one is missing."""
        while (staged := learner.staged) and staged.folded_to < live.state.position:
            if staged.gone is None:
                staged.gone = await self._gone(live.state.name, staged)
                continue
            name, after, upto = live.state.name, staged.folded_to, live.state.position
            async for position, event in replay(
                self._store, name, after, upto=upto, skips=live.skips, dense=True
            ):
                if learner.staged is not staged:
                    break
                if position == staged.folded_to + 1:  # another call may bring it on meanwhile
                    live.state.catch_up(learner, position, event)
            if staged.folded_to == after and learner.staged is staged:
                raise LogGap(f"experiment {name}: the log lacks position {after + 1}")

    async def _gone(self, name: str, staged: Staged) -> set[int]:
        """Positions erased between a version's watermark and its staging."""
        erasures = self.erasures(name, staged.folded_to, staged.position)
        return {position async for event in erasures for position in event.positions}

    async def erasures(self, name: str, after: int, before: float = inf) -> AsyncIterator[Erased]:
        """Those logged between two positions."""
        if after + 1 < before:
            async for _, event in replay(self._store, name, after, upto=before - 1):
                if isinstance(event, Erased):
                    yield event
