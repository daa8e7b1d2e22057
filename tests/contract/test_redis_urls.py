"""What a URL of Redis may say: options, TLS, Sentinels. The servers are real."""

import asyncio
import datetime
import ipaddress
from contextlib import suppress
from pathlib import Path
from typing import Any, cast
from unittest.mock import ANY

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from service.errors import ConfigurationError, StoreUnavailable
from service.log.stores import open_store
from service.log.stores.base import Appended
from service.log.stores.redis import RedisStore
from service.log.stores.redis_connection import RedisTimeouts
from service.log.stores.redis_url import client_of, name_of
from tests.support.ports import free_port
from tests.support.redis_server import RedisServer, redis_sentinel, redis_server
from tests.support.stores import event

PATIENT = RedisTimeouts(connect_s=30.0, reply_s=30.0)


@pytest.mark.parametrize(
    "url",
    [
        "redis://:hunter2@host/0?ssl_cert_reqs=none",
        "redis://:hunter2@host/0?timeout=3",
        "redis://:hunter2@host/0?protocol=3",
        "redis://:hunter2@host/0?sentinel_password=hunter2",
        "redis://:hunter2@host/zero",
        "redis://:hunter2@host:port",
        "redis://u:hunter2/@[::1",
        "redis://:hunter2@one,two/0",
        "rediss://:hunter2@host/0?ssl_cert_reqs=perhaps",
        "rediss://:hunter2@host/0?ssl=1",
        "redis+sentinel://:hunter2@host:26379",
        "redis+sentinel://:hunter2@host/shop/zero",
        "redis+sentinel://:hunter2@host:port/shop",
        "redis+sentinel://:hunter2@host/shop?sentinel=1",
        "redis+sentinel://:hunter2@host/shop?ssl_certfile=a.pem",
        "unix:///run/redis.sock?db=zero",
    ],
)
def test_a_url_that_is_wrong_is_refused_with_the_forms_that_are_right(url: str) -> None:
    forms = r"use redis://.*rediss://.*unix://.*redis\+sentinel://.*ssl_ca_certs"
    with pytest.raises(ConfigurationError, match=forms) as raised:
        open_store(url)
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize(
    ("url", "name", "said"),
    [
        ("redis://", "redis://", {"host": "localhost", "port": 6379, "db": 0}),
        (
            "redis://ann:p%40ss@host:1/2",
            "redis://host:1/2",
            {"host": "host", "port": 1, "db": 2, "username": "ann", "password": "p@ss"},
        ),
        ("rediss://host", "rediss://host", {"host": "host", "port": 6379, "db": 0}),
        ("unix:///run/r.sock?db=3", "unix:///run/r.sock", {"path": "/run/r.sock", "db": 3}),
        (
            "rediss+sentinel://:p@one,two:2/shop/4?sentinel_password=q&ssl_ca_certs=a.pem",
            "rediss+sentinel://one,two:2/shop/4",
            {"db": 4, "username": None, "password": "p"},
        ),
    ],
)
def test_a_url_names_a_redis(url: str, name: str, said: dict[str, Any]) -> None:
    connection = client_of(url, 1, 1.0, 1.0).connection_pool.make_connection()
    assert {setting: getattr(connection, setting) for setting in said} == said
    assert name_of(url) == name


def test_sentinels_have_their_own_password_and_the_same_tls() -> None:
    url = "rediss+sentinel://:p@one,two:2/shop?sentinel_password=q&ssl_ca_certs=a.pem"
    pool = client_of(url, 1, 1.0, 1.0).connection_pool
    assert (pool.service_name, pool.is_master) == ("shop", True)
    sentinels = [each.connection_pool.connection_kwargs for each in pool.sentinel_manager.sentinels]
    assert [(each["host"], each["port"]) for each in sentinels] == [("one", 26379), ("two", 2)]
    assert {each["password"] for each in sentinels} == {"q"}
    assert {each["ssl_ca_certs"] for each in sentinels} == {"a.pem"}


# -- TLS -------------------------------------------------------------------------------------------


def certificate(folder: Path) -> None:
    """Self-signed, of this host: for the server and its clients."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "forage test")])
    begin = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), 1)
        .not_valid_before(begin)
        .not_valid_after(begin.replace(year=2120))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]),
            critical=False,
        )
        .sign(key, hashes.SHA256())
    )
    (folder / "cert.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (folder / "key.pem").write_bytes(key.private_bytes(serialization.Encoding.PEM, *form))


async def commits(url: str) -> None:
    store = RedisStore(url, patience=PATIENT)
    await store.open()
    try:
        assert await store.commit([event("a")]) == [Appended(1, ANY)]
    finally:
        await store.close()


@pytest.mark.process
def test_tls_holds_the_server_to_its_certificate_unless_told_not_to(tmp_path: Path) -> None:
    certificate(tmp_path)
    cert, key, port = tmp_path / "cert.pem", tmp_path / "key.pem", str(free_port())
    options = ["--tls-port", port, "--tls-cert-file", str(cert), "--tls-key-file", str(key)]
    own = f"rediss://127.0.0.1:{port}/0?ssl_certfile={cert}&ssl_keyfile={key}"
    with redis_server(tmp_path, *options, "--tls-ca-cert-file", str(cert)) as server:
        with pytest.raises(StoreUnavailable, match=r"(?i)certificate"):
            asyncio.run(commits(own))
        for more in (f"ssl_ca_certs={cert}", "ssl_cert_reqs=none&ssl_check_hostname=false"):
            asyncio.run(commits(f"{own}&{more}"))
            server.command("FLUSHALL")


# -- Sentinel --------------------------------------------------------------------------------------


async def until_it_takes(store: RedisStore, identity: str) -> object:
    """What the first commit that does not fail answers."""
    async with asyncio.timeout(60):
        while True:
            with suppress(StoreUnavailable):
                return (await store.commit([event(identity)]))[0]
            await asyncio.sleep(0.02)


@pytest.mark.process
@pytest.mark.slow
def test_a_store_follows_the_primary_that_sentinels_name(tmp_path: Path) -> None:
    """The first of them is not there; the primary changes under the store, which goes on with what
    the new one holds, in its commits as in its waits."""
    folders = [tmp_path / name for name in ("primary", "replica", "sentinel")]
    for folder in folders:
        folder.mkdir()

    async def scenario(url: str, replica: RedisServer, sentinel: RedisServer) -> None:
        store = RedisStore(url, replicas=1, patience=PATIENT)  # else the failover may lose some
        await store.open()
        try:
            await until_it_takes(store, "a")
            async with asyncio.timeout(60):
                while True:
                    with suppress(ResponseError):  # it has not heard of the replica yet
                        await asyncio.to_thread(sentinel.command, "SENTINEL", "FAILOVER", "shop")
                        break
                    await asyncio.sleep(0.1)
                while True:
                    with suppress(RedisConnectionError):  # Sentinel ends connections to it
                        if b"master" in cast(list[object], replica.command("ROLE")):
                            break
                    await asyncio.sleep(0.02)
            await until_it_takes(store, "b")
            other = RedisStore(replica.url, patience=PATIENT)
            await other.open()
            assert set(await other.marks("zoo", ["a", "b"])) == {"a", "b"}
            waiting = asyncio.create_task(store.wait({"zoo": 2}, seconds=60))
            await other.commit([event("c")])
            await asyncio.wait_for(waiting, 30)
            await other.close()
        finally:
            await store.close()

    at_once = "--repl-diskless-sync-delay", "0"
    with (
        redis_server(folders[0], *at_once, tcp=True) as primary,
        redis_server(
            folders[1], *at_once, "--replicaof", "127.0.0.1", str(primary.port), tcp=True
        ) as replica,
        redis_sentinel(folders[2], primary) as sentinel,
    ):
        hosts = f"127.0.0.1:1,127.0.0.1:{sentinel.port}"
        asyncio.run(scenario(f"redis+sentinel://{hosts}/shop/0", replica, sentinel))
