"""Stores by URL: sqlite:///path (embedded), redis://host:port/db (shared), memory:// (tests)."""

from service.errors import ConfigurationError
from service.stores.base import Store

__all__ = ["Store", "open_store"]


def open_store(url: str, *, readonly: bool = False) -> Store:
    """The store a URL names, not yet opened. A backend is imported only when it is named."""
    scheme = url.partition("://")[0]
    if scheme == "sqlite":
        from service.stores.sqlite import SqliteStore

        return SqliteStore.from_url(url, readonly=readonly)
    if scheme in ("redis", "rediss", "unix"):
        from service.stores.redis import RedisStore

        return RedisStore.from_url(url)
    if scheme == "memory":
        from service.stores.memory import MemoryStore

        return MemoryStore()
    raise ConfigurationError(
        f"FORAGE_STORE: unknown scheme {scheme!r}; use sqlite:///path, redis://host:port/db "
        "or memory://"
    )
