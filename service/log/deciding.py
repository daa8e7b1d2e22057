"""Experiments as a process holds them that decides and folds nothing: at published positions."""

import asyncio
from collections.abc import Sequence
from math import inf

from service.errors import Quarantined, StoreError, StoreUnavailable
from service.log.background import Background
from service.log.replica import ChangedExperiments, Committed, Replica
from service.log.replicas import Replicas
from service.log.stores import Store
from service.state.fold import State
from service.state.publication import Following, Stamp


class DecidingReplica(Replica):
    """One experiment, at the position that is published.

    caught_up_at   by the loop's clock: events appended before then are in the state
    recovered      a publication was read
    """

    def __init__(self, store: Store, name: str, changed: ChangedExperiments | None = None) -> None:
        super().__init__(store, State(name), changed)
        self._following = Following(name)
        self._stamp = ""
        self._appended, self._moved = 0, asyncio.Event()

    @property
    def known_to(self) -> int:
        return max(super().known_to, self._appended)

    def served(self) -> State:
        if not self.recovered and self.quarantine is None:
            raise StoreUnavailable(f"no learner has published experiment {self.name} yet")
        return super().served()

    async def take(self, text: str, seen_at: float) -> None:
        """Read what a stamp tells of, where it is new. seen_at: by the loop's clock, when the store
        had another stamp, or none that this process knew. Raises StoreError."""
        if text == self._stamp:
            return
        stamp, known = Stamp.read(text), self._stamp != ""
        if stamp.position == 0:
            self.quarantine = Quarantined(self.name, None, "no learner can fold its log")
        else:
            await self._read(stamp)
        if known and self.state.position >= stamp.position:
            self.caught_up_at = max(self.caught_up_at, seen_at - stamp.lag)
        self._stamp = text
        self._changed.add(self.name)
        self._moved.set()
        self._moved = asyncio.Event()

    async def _read(self, stamp: Stamp) -> None:
        following, image = self._following, None
        missing = following.missing(stamp)
        if not missing:
            return
        parts = await self._store.get(self.name, "published", missing)
        if "image" in parts:
            image = await asyncio.to_thread(following.read_image, parts)
        async with self.lock:  # a thread may decide
            following.take(image, parts)
            self.state = following.state
            self.quarantine, self.recovered = None, self.state.position > 0
        if image is not None and not self.row:
            self.row = (await self._store.describe(self.name)).row

    async def apply_committed(self, events: Sequence[Committed], began: float) -> None:
        """Note that this process has appended events, which a learner folds."""
        self._appended = max([self._appended, *(event.position for event in events)])

    async def reach(self, position: int) -> None:
        """Wait until a position is published."""
        while self.state.position < position:
            await self._moved.wait()

    async def fold_to_end(self) -> None:
        """Do nothing: learners fold."""

    async def expect(self, position: int) -> None:
        if position > self.known_to:
            self._appended = (await self._store.describe(self.name)).position
        if position > self.known_to:
            self.report_loss(position)


class DecidingReplicas(Replicas):
    """Follows what is published of every experiment."""

    def __init__(self, store: Store, background: Background | None = None) -> None:
        super().__init__(store, background)
        self._looking = asyncio.Lock()
        self._looked_at = -inf
        self._found: dict[str, DecidingReplica] = {}

    async def join(self, name: str) -> Replica:
        """Return an experiment, as it is published by now. Raises StoreUnavailable."""
        if name not in self.by_name:
            await self.follow(0.0)
        if name in self.by_name:
            return self.by_name[name]
        found = DecidingReplica(self._store, name)
        found.recovered = name not in await self._store.experiments()  # any name may be asked for
        return found

    async def catch_up(self, name: str) -> bool:
        replica = self.by_name.get(name)
        before = None if replica is None else replica.state.position
        try:
            await self.follow(0.0)
        except StoreUnavailable:
            return False
        replica = self.by_name.get(name)
        return replica is not None and replica.state.position != before

    async def follow(self, seconds: float, *, discover: bool = True) -> None:
        """Read what was published since the last call. Raises StoreError, after all that can be
        read has been."""
        async with self._looking:
            before, self._looked_at = self._looked_at, asyncio.get_running_loop().time()
            faults = list[StoreError]()
            for name, stamp in (await self._store.stamps()).items():
                if name not in self._found:
                    self._found[name] = DecidingReplica(self._store, name, self.changes)
                replica = self._found[name]
                try:
                    await replica.take(stamp, before)
                except StoreError as fault:
                    faults.append(fault)
                if replica.recovered or replica.quarantine is not None:
                    self.by_name[name] = replica
            if faults:
                raise faults[0]

    async def fold_all_to_end(self) -> None:
        await self.follow(0.0)

    async def are_published(self, *, anew: bool) -> bool:
        """Whether each experiment was published; anew: since this process began to look. Raises
        StoreUnavailable."""
        found = [self.by_name.get(name) for name in await self._store.experiments()]
        return all(
            each is not None and (not anew or each.caught_up_at > -inf or bool(each.quarantine))
            for each in found
        )
