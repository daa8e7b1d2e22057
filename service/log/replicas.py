"""Replicas: every experiment of a store, as one process folds them."""

from collections.abc import Collection
from math import inf

from service.errors import Quarantined, StoreUnavailable
from service.log.background import Background
from service.log.replica import ChangedExperiments, Replica, Watcher
from service.log.stores import Store
from service.state.fold import State


class Replicas:
    """Recovers experiments, and follows their logs."""

    def __init__(self, store: Store, background: Background | None = None) -> None:
        self._store = store
        self._background = background or Background()
        self._delayed: set[str] = set()
        self._moving = False
        self.changes = ChangedExperiments()
        self.watcher: Watcher | None = None
        self.by_name: dict[str, Replica] = {}

    @property
    def states(self) -> dict[str, State]:
        """States of the served experiments."""
        return {name: each.state for name, each in self.by_name.items() if each.serves}

    @property
    def names(self) -> list[str]:
        """Names of the served and the quarantined experiments."""
        return [
            name
            for name, each in self.by_name.items()
            if each.quarantine is not None or not (each.recovered and each.state.deleted)
        ]

    @property
    def policies(self) -> dict[str, Collection[str]]:
        """Policies of each of these experiments."""
        return {name: self.by_name[name].state.learners for name in self.names}

    @property
    def quarantined(self) -> dict[str, Quarantined]:
        return {name: each.quarantine for name, each in self.by_name.items() if each.quarantine}

    @property
    def caught_up_at(self) -> float:
        """Time by the loop's clock: all events appended before are folded, but for quarantines."""
        served = (each.caught_up_at for each in self.by_name.values() if each.quarantine is None)
        return min(served, default=inf)

    def state(self, name: str) -> State | None:
        """Return the state of an experiment. Raises Quarantined, or StoreUnavailable while it is
        folded anew."""
        replica = self.by_name.get(name)
        if replica is None:
            return None
        state = replica.served()
        return None if state.deleted else state

    async def discover(self, name: str) -> State:
        """Return the state of an experiment, recovered from the store, or empty where it has none.
        Raises as `state`."""
        return (await self.join(name)).served()

    async def join(self, name: str) -> Replica:
        """Return the replica of an experiment, recovered from the store if it is new here."""
        if name not in self.by_name:
            found = Replica(self._store, State(name), self.changes, watcher=self.watcher)
            async with found.lock:  # a snapshot may fall due meanwhile, and reads the log too
                lost_to = await found.recover()
            if found.state.position == 0 and found.quarantine is None:  # any name may be asked for
                return found
            if self.by_name.setdefault(name, found) is found and lost_to > found.known_to:
                found.report_loss(lost_to)
        return self.by_name[name]

    def create(self, name: str, began: float) -> Replica:
        """Add an experiment whose first event this process has just appended, in a commit that
        began then."""
        found = Replica(self._store, State(name), self.changes, watcher=self.watcher)
        found.recovered, found.caught_up_at = True, began
        self.by_name[name] = found
        return found

    async def catch_up(self, name: str) -> bool:
        """Fold what other processes have appended to an experiment; whether there was anything."""
        replica = self.by_name.get(name)
        if replica is None or not self._store.shared:
            return False
        try:
            return await replica.catch_up()
        except StoreUnavailable:
            return False  # the task that follows the log reports it

    async def expect(self, name: str, position: int) -> None:
        """Report a loss if the log of an experiment ends before this position, at which a decision
        was made. Raises StoreUnavailable, also where the log was emptied."""
        await (await self.join(name)).expect(position)

    async def reach(self, name: str, position: int) -> None:
        """Wait until the state has an event that this process has appended."""
        await self.by_name[name].reach(position)

    async def changed(self) -> list[Replica]:
        """Wait until something is folded, recovered or lost; the experiments since the last
        call."""
        names = await self.changes.take()
        return [self.by_name[name] for name in names if name in self.by_name]

    # -- following -----------------------------------------------------------------------------

    async def follow(self, seconds: float, *, discover: bool = True) -> None:
        """Fold new events, once there are some or after `seconds`; at once where the last call
        found some, since more will have come. discover: also of experiments that are new to this
        process, and of those whose quarantine may have been lifted."""
        before = self._positions
        if not self._moving:
            await self._store.wait(before, seconds)
        if discover:
            for name in await self._store.experiments():
                await self.join(name)
            for name in self.quarantined:
                await self.by_name[name].lift()
        await self.fold_all_to_end()
        self._moving = self._positions != before

    @property
    def _positions(self) -> dict[str, int]:
        """The position of each experiment that is folded."""
        folded = [each.state for each in self.by_name.values() if each.quarantine is None]
        return {state.name: state.position for state in folded}

    async def fold_all_to_end(self) -> None:
        """Fold every log up to its end. An experiment whose lock is held does not delay the others:
        it is folded in the background once the lock is free."""
        for replica in list(self.by_name.values()):
            if not replica.lock.locked():
                await self._fold_in_turn(replica)
            elif replica.name not in self._delayed:
                self._delayed.add(replica.name)
                self._background.spawn(self._fold_in_turn(replica))

    async def _fold_in_turn(self, replica: Replica) -> None:
        try:
            async with replica.lock:
                await replica.fold_to_end()
        finally:
            self._delayed.discard(replica.name)
