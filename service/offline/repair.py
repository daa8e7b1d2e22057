"""What `forage repair` shows: what stops experiments, read beside a running service."""

from dataclasses import dataclass, field

from service.log.reading import experiments_of, reading
from service.log.replay import record_at
from service.log.replicas import Replicas


@dataclass(frozen=True, slots=True)
class Stopped:
    """An experiment whose log cannot be folded.

    position   of the event at fault; None: the log itself is lost or cannot be read
    payload    of that event
    """

    experiment: str
    position: int | None
    reason: str
    payload: bytes = field(repr=False)


async def find_stopped(url: str, experiment: str | None = None) -> list[Stopped]:
    """Find what is stopped in one experiment, or in all. Raises NotFound, or StoreError where the
    store cannot be read."""
    found = list[Stopped]()
    async with reading(url) as store:
        replicas = Replicas(store)
        for name in await experiments_of(store, experiment):
            if stopped := (await replicas.join(name)).quarantine:
                at = stopped.position
                record = None if at is None else await record_at(store, name, at)
                payload = b"" if record is None else record.payload
                found.append(Stopped(name, at, stopped.reason, payload))
    return found
