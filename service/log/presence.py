"""Presence: the live processes of one log, and what each is ready for.

For efficiency and smoothness alone. Identities in the log make a default reward count once, and a
version serve from one position on, whichever process believes that it leads.
"""

import asyncio
import json
from collections import deque
from contextlib import suppress
from math import inf
from random import Random, SystemRandom

from service.errors import StoreUnavailable
from service.log.stores import Store

ALIVE_SECONDS = 3.0
"""Seconds of silence after which a process counts as dead."""

BEAT_SECONDS = 1.0
PRESENCE_POLL_SECONDS = 0.05

BARRIER_SECONDS = 10.0
"""Longest wait, in seconds, for a live process that does not get ready."""

REMEMBERED_NOTICES = 64
"""Latest announcements of a process that are kept."""


class Presence:
    def __init__(self, store: Store, rng: Random | None = None) -> None:
        self.name = f"{(rng or SystemRandom()).getrandbits(64):016x}"
        self._store = store
        self._ready_for: deque[str] = deque(maxlen=REMEMBERED_NOTICES)
        self._alive: dict[str, list[str]] = {}
        self._until = -inf

    @property
    def count(self) -> int:
        """Live processes, as of the last beat."""
        return len(self._alive)

    @property
    def leads(self) -> bool:
        """Whether this process does what one is enough for. For a moment two may, or none."""
        if not self._store.shared:
            return True
        now = asyncio.get_running_loop().time()
        return now < self._until and self.name == min(self._alive, default="")

    async def beat(self) -> None:
        """Announce this process, and learn of the others. Raises StoreUnavailable."""
        began = asyncio.get_running_loop().time()
        doing = json.dumps(list(self._ready_for))
        found = await self._store.present(self.name, doing, ALIVE_SECONDS)
        self._alive = {process: json.loads(ready) for process, ready in found.items()}
        self._until = began + ALIVE_SECONDS

    async def run(self) -> None:
        """Beat for ever."""
        while True:
            with suppress(StoreUnavailable):
                await self.beat()
            await asyncio.sleep(BEAT_SECONDS)

    async def all_ready_for(self, what: str) -> bool:
        """Announce that this process is ready, and wait for all live ones; False where one did not
        get ready in time. Raises StoreUnavailable."""
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
            await asyncio.sleep(PRESENCE_POLL_SECONDS)

    async def leave(self) -> None:
        with suppress(StoreUnavailable):
            await self._store.present(self.name, "[]", 0.0)
