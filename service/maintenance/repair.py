"""What `forage repair` shows: the events that stop experiments, read beside a running service."""

from dataclasses import dataclass, field

from service.errors import ConfigurationError, NotFound
from service.log.follower import Follower
from service.log.replay import record_at
from service.log.stores import open_store
from service.observability.telemetry import Telemetry


@dataclass(frozen=True, slots=True)
class Stopped:
    """An event that cannot be folded."""

    experiment: str
    position: int
    reason: str
    payload: bytes = field(repr=False)


async def find_stopped(url: str, experiment: str | None = None) -> list[Stopped]:
    """Of one experiment, or of all. Raises NotFound, or StoreError where the store cannot be read.

    The store is read and never written.
    """
    if url.startswith("memory"):
        raise ConfigurationError("FORAGE_STORE: no other process can read a memory:// store")
    store = open_store(url, readonly=True)
    await store.open()
    try:
        names = await store.experiments()
        if experiment is not None and experiment not in names:
            raise NotFound(f"the store has no experiment {experiment}", path="experiment")
        follower, found = Follower(store, Telemetry()), list[Stopped]()
        for name in names:
            if experiment not in (None, name):
                continue
            stopped = (await follower.join(name)).quarantine
            if stopped is not None:
                record = await record_at(store, name, stopped.position)
                payload = b"" if record is None else record.payload
                found.append(Stopped(name, stopped.position, stopped.reason, payload))
        return found
    finally:
        await store.close()
