"""Stores by URL: sqlite:///path (embedded, of one host), redis://host:port/db and
postgresql://host/database (of several hosts), memory:// (tests)."""

from service.clock import SYSTEM, Clock
from service.errors import ConfigurationError
from service.log.stores.store import Store

__all__ = ["POSTGRES", "REDIS", "Store", "open_store"]

REDIS = frozenset({"redis", "rediss", "unix", "redis+sentinel", "rediss+sentinel"})
"""Schemes of the shared store on Redis."""
POSTGRES = frozenset({"postgresql", "postgres"})
"""Schemes of the shared store on PostgreSQL."""


def open_store(
    url: str,
    *,
    readonly: bool = False,
    shared: bool = False,
    redis_replicas: int = 0,
    listen: str | None = None,
    clock: Clock = SYSTEM,
) -> Store:
    """Return the store of a URL, not yet opened. Only its backend is imported.

    shared           with other processes of this host, where the store is embedded
    redis_replicas   that must hold a commit before it is acknowledged, beside Redis itself
    listen           URL of the same PostgreSQL, around a pooler, for the connection that is told
                     of commits
    clock            of this process, which a store with a server compares with its own
    """
    scheme = url.partition("://")[0]
    if scheme == "sqlite":
        from service.log.stores.sqlite import SqliteStore

        return SqliteStore.from_url(url, readonly=readonly, shared=shared)
    if scheme in REDIS:
        from service.log.stores.redis import RedisStore

        return RedisStore.from_url(url, replicas=redis_replicas, clock=clock)
    if scheme in POSTGRES:
        try:
            from service.log.stores.postgres import PostgresStore
        except ImportError as error:
            raise ConfigurationError(
                "FORAGE_STORE: PostgreSQL needs psycopg: pip install 'forage-bandits[postgres]'"
            ) from error
        return PostgresStore.from_url(url, readonly=readonly, listen=listen, clock=clock)
    if scheme == "memory":
        from service.log.stores.memory import MemoryStore

        return MemoryStore()
    raise ConfigurationError(
        f"FORAGE_STORE: unknown scheme {scheme!r}; use sqlite:///path, redis://host:port/db, "
        "postgresql://host/database or memory://"
    )
