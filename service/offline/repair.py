"""What `forage repair` shows: the events that stop experiments, read beside a running service."""

from dataclasses import dataclass, field

from service.log.reading import experiments_of, reading
from service.log.replay import record_at
from service.log.replicas import Replicas
from service.observability.telemetry import Telemetry


@dataclass(frozen=True, slots=True)
class Stopped:
    """An event that cannot be folded."""

    experiment: str
    position: int
    reason: str
    payload: bytes = field(repr=False)


async def find_stopped(url: str, experiment: str | None = None) -> list[Stopped]:
    """In one experiment, or in all. Raises NotFound, or StoreError where the store cannot be
    read."""
    found = list[Stopped]()
    async with reading(url) as store:
        replicas = Replicas(store, Telemetry())
        for name in await experiments_of(store, experiment):
            if stopped := (await replicas.join(name)).quarantine:
                record = await record_at(store, name, stopped.position)
                payload = b"" if record is None else record.payload
                found.append(Stopped(name, stopped.position, stopped.reason, payload))
    return found
