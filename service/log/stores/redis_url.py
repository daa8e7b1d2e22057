"""Clients of the Redis that a URL names. redis-py reads the URL.

redis://[[user]:password@]host[:port][/db]      rediss:// with TLS      unix:///path[?db=1]
redis+sentinel://[[user]:password@]host[:port][,host[:port]...]/service[/db]: the primary that these
Sentinels name, asked again at each new connection; rediss+sentinel:// with TLS to all of them
"""

from typing import Any
from urllib.parse import SplitResult, urlsplit

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.connection import parse_url
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel, SentinelConnectionPool
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from service.errors import ConfigurationError

SENTINEL, SENTINEL_PORT = "+sentinel", 26379
TLS = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs", "ssl_check_hostname")
SENTINEL_USER = ("sentinel_username", "sentinel_password")

WRONG_REDIS_URL = (
    "FORAGE_STORE: not a Redis URL; use redis://[[user]:password@]host[:port][/db], rediss:// for "
    "TLS, unix:///path[?db=1], or redis+sentinel://[[user]:password@]host[:port],.../service[/db]. "
    f"Options after '?': db; {', '.join(TLS)} with rediss; {', '.join(SENTINEL_USER)} with "
    "Sentinels"
)


class _PrimaryPool(SentinelConnectionPool, BlockingConnectionPool):
    """Connections to the primary that Sentinels name; callers wait for a free connection."""

    async def aclose(self) -> None:
        await super().aclose()
        await self.sentinel_manager.aclose()


def name_of(url: str) -> str:
    """Return the URL without user, password and options."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def client_of(url: str, connections: int, connect_s: float, reply_s: float) -> Any:
    """Return a client, not yet connected.

    connections   at a time; callers wait up to `connect_s` for a free connection

    Raises ConfigurationError, whose text holds no part of the URL.
    """
    own: dict[str, Any] = {  # a URL that sets one of them is refused
        "max_connections": connections,
        "timeout": connect_s,
        "socket_connect_timeout": connect_s,
        "socket_timeout": reply_s,
        # a lost reply may belong to a done append: only a caller with identities may repeat it
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,
        "decode_responses": False,
    }
    try:
        parts = urlsplit(url)
        if SENTINEL in parts.scheme:
            pool = _sentinel_pool(parts, own)
        else:
            pool = BlockingConnectionPool(**_options(parts), **own)
        # raises where an option is unknown or does not fit
        pool.make_connection()  # type: ignore[no-untyped-call]
    except (ValueError, TypeError, RedisError):
        raise ConfigurationError(WRONG_REDIS_URL) from None
    return Redis.from_pool(pool)


def _sentinel_pool(parts: SplitResult, own: dict[str, Any]) -> BlockingConnectionPool:
    user, at, hosts = parts.netloc.rpartition("@")
    service, _, db = parts.path.strip("/").partition("/")
    if not service:
        raise ValueError("no service")
    one = parts._replace(
        scheme=parts.scheme.removesuffix(SENTINEL), netloc=f"{user}{at}sentinels", path=f"/{db}"
    )
    options = _options(one)
    tls = options.pop("connection_class", None) is not None
    del options["host"]
    asked = {name.removeprefix("sentinel_"): options.pop(name, None) for name in SENTINEL_USER}
    asked |= {name: options[name] for name in TLS if name in options}
    asked |= {name: own[name] for name in ("socket_connect_timeout", "retry", "protocol")}
    asked |= {"socket_timeout": own["socket_connect_timeout"], "ssl": tls}
    addresses = [urlsplit(f"//{each}") for each in hosts.split(",")]
    manager = Sentinel(  # type: ignore[no-untyped-call]
        [(each.hostname or "localhost", each.port or SENTINEL_PORT) for each in addresses],
        sentinel_kwargs=asked,
    )
    return _PrimaryPool(service, manager, ssl=tls, **options, **own)  # type: ignore[no-untyped-call]


def _options(parts: SplitResult) -> dict[str, Any]:
    """Return redis-py's options of a URL. Raises ValueError."""
    options: dict[str, Any] = {**parse_url(parts.geturl())}
    db = parts.path.strip("/")
    wrong_db = parts.scheme != "unix" and db and not db.isdecimal()  # redis-py would take db 0
    if wrong_db or "," in options.get("host", ""):
        raise ValueError("a part has another form")
    return options
