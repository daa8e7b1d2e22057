"""Presence: the live processes of one log, and their roles.

For efficiency alone. Identities in the log make a default reward count once, however many
processes believe that it falls to them.
"""

import asyncio
from contextlib import suppress
from math import inf
from random import Random, SystemRandom
from typing import Literal
from zlib import crc32

from service.errors import StoreUnavailable
from service.log.stores import Store

ALIVE_SECONDS = 3.0
"""Seconds of silence after which a process counts as dead."""

BEAT_SECONDS = 1.0

Role = Literal["learner", "decider"]
"""What a process is for. A learner folds the log, and does all else that a log needs; a decider
decides by what a learner publishes, and appends rewards."""


class Presence:
    """Announces this process and its role, and knows those of the others, as of the last beat."""

    def __init__(self, store: Store, rng: Random | None = None, role: Role = "learner") -> None:
        self.name = f"{(rng or SystemRandom()).getrandbits(64):016x}"
        self.role = role
        self._store = store
        self._alive: dict[str, str] = {}
        self._until = -inf

    @property
    def count(self) -> int:
        """Live processes of any role."""
        return len(self._alive)

    @property
    def learners(self) -> list[str]:
        """Names of the live learners, sorted."""
        return sorted(name for name, role in self._alive.items() if role == "learner")

    @property
    def has_deciders(self) -> bool:
        """Whether a decider is alive."""
        return "decider" in self._alive.values()

    @property
    def leads(self) -> bool:
        """Whether this process does what one learner is enough for. For a moment two may, or
        none."""
        if not self._store.shared:
            return True
        now = asyncio.get_running_loop().time()
        return now < self._until and self.learners[:1] == [self.name]

    @property
    def sharers(self) -> list[str]:
        """The processes that share the work which is split by decisions: all live learners."""
        return sorted({*self.learners, self.name}) if self._store.shared else [self.name]

    def owns(self, row: bytes) -> bool:
        """Whether what is to be done for a decision falls to this process, by the hash of its row.
        For a moment two may believe so, or none."""
        sharers = self.sharers
        return sharers[crc32(row) % len(sharers)] == self.name

    async def beat(self) -> None:
        """Announce this process, and learn of the others. Raises StoreUnavailable."""
        began = asyncio.get_running_loop().time()
        self._alive = await self._store.present(self.name, self.role, ALIVE_SECONDS)
        self._until = began + ALIVE_SECONDS

    async def run(self) -> None:
        """Beat for ever."""
        while True:
            with suppress(StoreUnavailable):
                await self.beat()
            await asyncio.sleep(BEAT_SECONDS)

    async def leave(self) -> None:
        with suppress(StoreUnavailable):
            await self._store.present(self.name, "", 0.0)
