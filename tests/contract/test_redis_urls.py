"""What a URL of Redis may say: options, TLS, Sentinels. The servers are real."""

import asyncio
import datetime
import ipaddress
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import cast
from unittest.mock import ANY

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from redis.exceptions import ResponseError

from benchmarks.support.ports import free_port
from benchmarks.support.redis_server import RedisServer, redis_sentinel, redis_server
from service.errors import ConfigurationError, StoreUnavailable
from service.log.stores import open_store
from service.log.stores.base import Appended
from service.log.stores.redis import RedisStore
from service.log.stores.redis_connection import Patience
from tests.support.stores import event

PATIENT = Patience(connect_s=30.0, reply_s=30.0)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        (
            "redis://host/0?ssl_cert_reqs=none",
            "'ssl_cert_reqs' is no option of redis://.*rediss://",
        ),
        ("redis://host/0?timeout=3", "'timeout' is no option of redis://; it takes none"),
        ("redis://host/0?db=1", "'db' is no option"),
        ("rediss://host/0?ssl_cert_reqs=perhaps", "ssl_cert_reqs: use required, optional, none"),
        ("rediss://host/0?ssl_ca_certs=/none.pem", "ssl_ca_certs: /none.pem cannot be read"),
        ("rediss://host/0?ssl_check_hostname=1", "ssl_check_hostname: use true, false"),
        ("rediss://host/0?ssl=1", "'ssl' is no option of rediss://; it takes ssl_ca_certs"),
        ("redis://one,two/0", "not a Redis URL"),
        ("redis+sentinel://host:26379", "not a URL of Sentinels"),
        ("redis+sentinel://host/shop/zero", "not a URL of Sentinels"),
        ("redis+sentinel://:hunter2@host/shop?sentinel=1", "it takes sentinel_username"),
        ("unix:///run/redis.sock?db=zero", "db: invalid literal"),
    ],
)
def test_what_a_url_may_not_say_is_said_in_words(url: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said) as raised:
        open_store(url)
    assert "hunter2" not in str(raised.value)


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


@pytest.fixture
def encrypted(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """The URL of a server that asks its clients for a certificate, and where it is."""
    certificate(tmp_path)
    cert, key = str(tmp_path / "cert.pem"), str(tmp_path / "key.pem")
    port = free_port()
    options = ["--tls-port", str(port), "--tls-cert-file", cert, "--tls-key-file", key]
    with redis_server(tmp_path, *options, "--tls-ca-cert-file", cert):
        yield f"rediss://127.0.0.1:{port}/0", tmp_path


async def commits(url: str) -> None:
    store = RedisStore(url, patience=PATIENT)
    await store.open()
    try:
        assert await store.commit([event("a")]) == [Appended(1, ANY, ANY)]
    finally:
        await store.close()


@pytest.mark.process
def test_tls_holds_the_server_to_its_certificate(encrypted: tuple[str, Path]) -> None:
    url, folder = encrypted
    own = f"ssl_certfile={folder}/cert.pem&ssl_keyfile={folder}/key.pem"
    with pytest.raises(StoreUnavailable, match=r"(?i)certificate"):
        asyncio.run(commits(f"{url}?{own}"))
    asyncio.run(commits(f"{url}?{own}&ssl_ca_certs={folder}/cert.pem"))


@pytest.mark.process
def test_tls_without_a_check_of_the_certificate(encrypted: tuple[str, Path]) -> None:
    url, folder = encrypted
    own = f"ssl_certfile={folder}/cert.pem&ssl_keyfile={folder}/key.pem"
    asyncio.run(commits(f"{url}?{own}&ssl_cert_reqs=none&ssl_check_hostname=false"))


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
                while b"master" not in cast(list[object], replica.command("ROLE")):  # noqa: ASYNC110
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
