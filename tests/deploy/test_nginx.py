"""deploy/nginx/forage.conf agrees with the settings of the service behind it."""

import re
from ipaddress import ip_address

from service.security.addresses import Addresses
from service.security.hosts import Hosts
from service.settings import Settings
from tests.support.metrics import ROOT

TEXT = (ROOT / "deploy/nginx/forage.conf").read_text(encoding="utf-8")
UNITS = {"": 1, "s": 1, "k": 1_024, "m": 1_048_576}


def values(directive: str) -> list[str]:
    """Arguments of each occurrence of a directive."""
    return re.findall(rf"^ *{directive} ([^;{{]*);", TEXT, re.MULTILINE)


def number(text: str) -> int:
    """Bytes or seconds."""
    digits, unit = re.fullmatch(r"(\d+)([a-z]?)", text).groups()  # type: ignore[union-attr]
    return int(digits) * UNITS[unit]


def settings() -> Settings:
    """The settings that the head of the file gives."""
    given = dict(re.findall(r"FORAGE_(TRUSTED_PROXIES|ALLOWED_HOSTS)=(\S+)", TEXT))
    return Settings(trusted_proxies=given["TRUSTED_PROXIES"], allowed_hosts=given["ALLOWED_HOSTS"])


def test_it_passes_requests_to_the_port_of_the_service() -> None:
    servers = {each.split()[0] for each in values("server")}
    assert servers == {f"127.0.0.1:{Settings().port}"}
    assert set(values("proxy_pass")) == {"http://forage", "http://evaluations"}


def test_the_service_trusts_it_and_sees_the_address_of_the_client() -> None:
    upstream = values("server")[0]
    assert ip_address(upstream.partition(":")[0]) in settings().trusted_proxies[0]
    assert {"X-Forwarded-For $remote_addr", 'Forwarded ""'} <= set(values("proxy_set_header"))
    seen = Addresses(settings().trusted_proxies).of(
        "127.0.0.1", [(b"x-forwarded-for", b"203.0.113.7")]
    )
    assert seen == "203.0.113.7"


def test_the_service_answers_for_its_host() -> None:
    assert "Host $host" in values("proxy_set_header")
    [name] = values("server_name")
    hosts = Hosts(settings().host, settings().allowed_hosts)
    assert hosts.serves([name.encode()])
    assert not hosts.is_foreign([f"https://{name}".encode()], [name.encode()], "http", None)


def test_its_bounds_are_those_of_the_service() -> None:
    default = Settings()
    usual, artifact = map(number, values("client_max_body_size"))
    assert (usual, artifact) == (default.max_body_bytes, default.max_artifact_bytes)
    count, size = values("large_client_header_buffers")[0].split()
    assert int(count) * number(size) < default.max_head_bytes
    assert number(values("proxy_read_timeout")[0]) > default.evaluation_seconds


def test_it_asks_another_replica_where_one_restarts() -> None:
    assert values("proxy_next_upstream") == ["error timeout http_503 non_idempotent"]
    for upstream in values("server"):
        assert upstream.split()[1:] == ["max_fails=1", "fail_timeout=1s"]


def test_evaluations_of_an_experiment_are_those_of_one_replica() -> None:
    assert values("hash") == ["$experiment consistent"]
    [path] = re.findall(r"location ~ (\S*evaluations\S*) \{\s+proxy_pass http://evaluations;", TEXT)
    place = re.compile(path.replace("?<", "?P<"))
    for found in ("/experiments/shop/evaluations", "/experiments/shop/evaluations/1f0c"):
        assert place.search(found)["experiment"] == "shop"  # type: ignore[index]
    assert not place.search("/experiments/shop/arms/evaluations")
    assert not place.search("/experiments/shop/shadows")


def test_it_reads_slow_clients_itself_and_closes_idle_connections_first() -> None:
    assert values("proxy_request_buffering") == values("proxy_buffering") == ["on"]
    assert values("proxy_http_version") == ["1.1"]
    assert 'Connection ""' in values("proxy_set_header")
    for seconds in values("keepalive_timeout"):
        assert number(seconds) < Settings().keep_alive_seconds
