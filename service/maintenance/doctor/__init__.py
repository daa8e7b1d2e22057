"""Is all as it should be? What `forage doctor` examines and advises. It changes nothing.

host        threads, open files, the trainer's library
secrets     token keys, API keys: who may read them, which have expired
sqlite      the embedded store's files, disk, lock and settings
redis       the shared store's settings, memory, replicas and clock
service     a running one: its answers, clock, experiments and training
"""

from service.log.stores import REDIS
from service.maintenance.doctor.checks import Check, fault, text, warning
from service.maintenance.doctor.host import examine_host, examine_secrets
from service.maintenance.doctor.service import examine_service
from service.settings import Settings

__all__ = ["Check", "examine", "text"]


async def examine(settings: Settings, url: str | None) -> list[Check]:
    """Everything that can be examined from here. url: of a running service; None: of none."""
    found = [*examine_host(), *examine_secrets(settings)]
    scheme = settings.store.partition("://")[0]
    if scheme == "sqlite":
        from service.maintenance.doctor.sqlite import examine_sqlite

        found += examine_sqlite(settings)
    elif scheme in REDIS:
        from service.maintenance.doctor.redis import examine_redis

        found += await examine_redis(settings)
    elif scheme == "memory":
        say = "memory:// forgets everything when the service stops"
        found.append(warning("store", say, "use sqlite:/// or redis:// to keep it"))
    else:
        advice = "use sqlite:///path, redis://host:port/db or memory://"
        found.append(fault("store", f"unknown scheme {scheme!r}", advice))
    if url is not None:
        found += await examine_service(settings, url)
    return found
