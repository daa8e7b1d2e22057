"""URLs of Redis, and clients of what they name.

redis://[[user]:password@]host[:port][/db]      rediss:// with TLS      unix:///path[?db=1]
redis+sentinel://[[user]:password@]host[:port][,host[:port]...]/service[/db]: the primary that these
Sentinels name, asked again at each new connection; rediss+sentinel:// with TLS to all of them
"""

import os
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.connection import Connection, SSLConnection, UnixDomainSocketConnection
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel, SentinelConnectionPool
from redis.backoff import NoBackoff

from service.errors import ConfigurationError

PORT, SENTINEL_PORT = 6379, 26379

WRONG = "FORAGE_STORE: not a Redis URL; use redis://[[user]:password@]host[:port][/db]"
WRONG_SENTINEL = (
    "FORAGE_STORE: not a URL of Sentinels; use "
    "redis+sentinel://[[user]:password@]host[:port][,host[:port]...]/service[/db]"
)


def _file(text: str) -> str:
    if not os.access(text, os.R_OK):
        raise ValueError(f"{text} cannot be read")
    return text


def _one_of(values: Mapping[str, Any]) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        if text not in values:
            raise ValueError(f"use {', '.join(values)}")
        return values[text]

    return read


Options = Mapping[str, Callable[[str], Any]]

TLS: Options = {
    "ssl_ca_certs": _file,
    "ssl_certfile": _file,
    "ssl_keyfile": _file,
    "ssl_cert_reqs": _one_of({each: each for each in ("required", "optional", "none")}),
    "ssl_check_hostname": _one_of({"true": True, "false": False}),
}
SENTINEL: Options = {"sentinel_username": str, "sentinel_password": str}
UNIX: Options = {"db": int}


class _PrimaryPool(SentinelConnectionPool, BlockingConnectionPool):
    """Connections to the primary that Sentinel names; who finds none free waits for one."""

    async def aclose(self) -> None:
        await super().aclose()
        await self.sentinel_manager.aclose()


class RedisUrl:
    """name: of this Redis, without passwords"""

    def __init__(self, url: str) -> None:
        """Raises ConfigurationError, whose text holds no part of a password."""
        try:
            parts = urlsplit(url)
            self.name = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
            tls, self._sentinels = parts.scheme.startswith("rediss"), "+sentinel" in parts.scheme
            hosts = _hosts(parts, SENTINEL_PORT if self._sentinels else PORT)
            options = _credentials(parts)
            path = unquote(parts.path).strip("/")
            if parts.scheme == "unix":
                options |= {"path": unquote(parts.path)}
            elif self._sentinels:
                self._service, _, path = path.partition("/")
                if not self._service:
                    raise ValueError("no service")
                options |= {"db": int(path or 0)}
            else:
                [(host, port)] = hosts
                options |= {"host": host, "port": port, "db": int(path or 0)}
        except ValueError:
            raise ConfigurationError(WRONG_SENTINEL if "+" in url[:16] else WRONG) from None
        known = {**(TLS if tls else {}), **(SENTINEL if self._sentinels else {})}
        given = _query(parts, UNIX if parts.scheme == "unix" else known)
        self._encryption = {name: value for name, value in given.items() if name in TLS}
        asked = given.keys() & SENTINEL.keys()
        self._asked = {name.removeprefix("sentinel_"): given[name] for name in asked}
        self._hosts, self._tls = hosts, tls
        self._options = options | {key: given[key] for key in given.keys() & UNIX.keys()}
        self._unix = parts.scheme == "unix"

    def client(self, connections: int, connect_s: float, reply_s: float, **more: Any) -> Any:
        """connections: at a time; who finds none free waits for `connect_s`. more: options of
        redis-py"""
        common: dict[str, Any] = {
            "socket_connect_timeout": connect_s,
            # a lost reply may belong to a done append: only a caller with identities may repeat it
            "retry": Retry(NoBackoff(), 0),
            "protocol": 2,
            **self._encryption,
        }
        bounds: dict[str, Any] = {
            "max_connections": connections,
            "timeout": connect_s,
            "socket_timeout": reply_s,
        }
        if self._sentinels:
            asked = {**common, **self._asked, "socket_timeout": connect_s, "ssl": self._tls}
            manager = Sentinel(self._hosts, sentinel_kwargs=asked)  # type: ignore[no-untyped-call]
            pool = _PrimaryPool(  # type: ignore[no-untyped-call]
                self._service, manager, ssl=self._tls, **bounds, **common, **self._options, **more
            )
            return Redis.from_pool(pool)
        kind = SSLConnection if self._tls else Connection
        return Redis.from_pool(
            BlockingConnectionPool(
                connection_class=UnixDomainSocketConnection if self._unix else kind,
                **bounds,
                **common,
                **self._options,
                **more,
            )
        )


def _hosts(parts: SplitResult, port: int) -> list[tuple[str, int]]:
    """Raises ValueError."""
    found = []
    for each in parts.netloc.rpartition("@")[2].split(","):
        one = urlsplit(f"//{each}")
        found.append((one.hostname or "localhost", one.port or port))
    return found


def _credentials(parts: SplitResult) -> dict[str, Any]:
    given = {"username": parts.username, "password": parts.password}
    return {name: unquote(text) for name, text in given.items() if text}


def _query(parts: SplitResult, known: Options) -> dict[str, Any]:
    """The options of a URL. Raises ConfigurationError for one that is not known or wrong."""
    found = {}
    for name, text in parse_qsl(parts.query, keep_blank_values=True):
        if name not in known:
            options = f"it takes {', '.join(known)}" if known else "it takes none"
            hint = "; TLS needs rediss://" if name in TLS else ""
            raise ConfigurationError(
                f"FORAGE_STORE: {name[:40]!r} is no option of {parts.scheme}://; {options}{hint}"
            )
        try:
            found[name] = known[name](text)
        except ValueError as fault:
            raise ConfigurationError(f"FORAGE_STORE: {name}: {fault}") from None
    return found
