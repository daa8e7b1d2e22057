"""Which processes serve one log, and how far each has got: who does what one is enough for, and
when all are ready for what they have to do together.

Both are for efficiency and smoothness alone. That a default reward counts once, and that a version
serves from one position on, is made so by identities in the log, whoever thinks that it leads.
"""

import asyncio
import json
from collections import deque
from contextlib import suppress
from math import inf
from random import SystemRandom

from service.errors import StoreUnavailable
from service.log.stores import Store

_entropy = SystemRandom()

ALIVE_SECONDS = 3.0
"""After so long without a word a process counts as dead."""

BEAT_SECONDS = 1.0
POLL_SECONDS = 0.05

BARRIER_SECONDS = 10.0
"""So long all wait for one that lives and does not get there."""

REMEMBERED = 64
"""Things that a process says it is ready for: the last ones."""


class Presence:
    def __init__(self, store: Store) -> None:
        self.name = f"{_entropy.getrandbits(64):016x}"
        self._store = store
        self._ready_for: deque[str] = deque(maxlen=REMEMBERED)
        self._alive: dict[str, list[str]] = {}
        self._until = -inf

    @property
    def count(self) -> int:
        """Processes that live, as far as this one has heard."""
        return len(self._alive)

    @property
    def leads(self) -> bool:
        """Whether this process is to do what one is enough for. For a moment two may, or none."""
        if not self._store.shared:
            return True
        now = asyncio.get_running_loop().time()
        return now < self._until and self.name == min(self._alive, default="")

    async def beat(self) -> None:
        """Say that this process lives, hear which others do. Raises StoreUnavailable."""
        said = asyncio.get_running_loop().time()
        doing = json.dumps(list(self._ready_for))
        found = await self._store.present(self.name, doing, ALIVE_SECONDS)
        self._alive = {process: json.loads(ready) for process, ready in found.items()}
        self._until = said + ALIVE_SECONDS

    async def beat_for_ever(self) -> None:
        while True:
            with suppress(StoreUnavailable):
                await self.beat()
            await asyncio.sleep(BEAT_SECONDS)

    async def all_ready_for(self, what: str) -> bool:
        """Say that this process is ready, and wait until every one that lives is; False where one
        did not get there in time. Raises StoreUnavailable."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + BARRIER_SECONDS
        if what not in self._ready_for:
            self._ready_for.append(what)
        while True:
            await self.beat()
            if all(what in ready for ready in self._alive.values()):
                return True
            if loop.time() > deadline:
                return False
            await asyncio.sleep(POLL_SECONDS)

    async def leave(self) -> None:
        with suppress(StoreUnavailable):
            await self._store.present(self.name, "[]", 0.0)
