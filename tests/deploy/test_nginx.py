"""The files of deploy/nginx agree with the settings of the services behind them."""

import re
from ipaddress import ip_address

import pytest

from service.http.gate import DECIDED
from service.http.overload import PENDING_FACTORS
from service.security.addresses import Addresses
from service.security.hosts import Hosts
from service.settings import Settings
from tests.support.metrics import ROOT

ALONE, DECIDERS = "forage.conf", "deciders.conf"
TEXTS = {
    name: (ROOT / "deploy/nginx" / name).read_text(encoding="utf-8") for name in (ALONE, DECIDERS)
}
files = pytest.mark.parametrize("file", TEXTS)
UNITS = {"": 1, "s": 1, "k": 1_024, "m": 1_048_576}


def values(file: str, directive: str) -> list[str]:
    """Arguments of each occurrence of a directive."""
    return re.findall(rf"^ *{directive} ([^;{{]*);", TEXTS[file], re.MULTILINE)


def number(text: str) -> int:
    """Bytes or seconds."""
    digits, unit = re.fullmatch(r"(\d+)([a-z]?)", text).groups()  # type: ignore[union-attr]
    return int(digits) * UNITS[unit]


def settings(file: str) -> Settings:
    """The settings that the head of the file gives."""
    given = dict(re.findall(r"FORAGE_(TRUSTED_PROXIES|ALLOWED_HOSTS)=(\S+)", TEXTS[file]))
    return Settings(trusted_proxies=given["TRUSTED_PROXIES"], allowed_hosts=given["ALLOWED_HOSTS"])


@files
def test_it_passes_requests_to_the_port_of_the_service(file: str) -> None:
    servers, port = {each.split()[0] for each in values(file, "server")}, Settings().port
    upstreams = {"http://forage", "http://evaluations"}
    if file == DECIDERS:
        servers -= {f"127.0.0.1:{port + 1}"}
        upstreams = {"http://deciders", "http://learners", "http://evaluations"}
    assert servers == {f"127.0.0.1:{port}"}
    assert set(values(file, "proxy_pass")) == upstreams


@files
def test_the_service_trusts_it_and_sees_the_address_of_the_client(file: str) -> None:
    upstream = values(file, "server")[0]
    assert ip_address(upstream.partition(":")[0]) in settings(file).trusted_proxies[0]
    assert {"X-Forwarded-For $remote_addr", 'Forwarded ""'} <= set(values(file, "proxy_set_header"))
    seen = Addresses(settings(file).trusted_proxies).of(
        "127.0.0.1", [(b"x-forwarded-for", b"203.0.113.7")]
    )
    assert seen == "203.0.113.7"


@files
def test_the_service_answers_for_its_host(file: str) -> None:
    assert "Host $host" in values(file, "proxy_set_header")
    [name] = values(file, "server_name")
    hosts = Hosts(settings(file).host, settings(file).allowed_hosts)
    assert hosts.serves([name.encode()])
    assert not hosts.is_foreign([f"https://{name}".encode()], [name.encode()], "http", None)


@files
def test_its_bounds_are_those_of_the_service(file: str) -> None:
    default = Settings()
    usual, artifact = map(number, values(file, "client_max_body_size"))
    assert (usual, artifact) == (default.max_body_bytes, default.max_artifact_bytes)
    count, size = values(file, "large_client_header_buffers")[0].split()
    assert int(count) * number(size) < default.max_head_bytes
    assert number(values(file, "proxy_read_timeout")[0]) > default.evaluation_seconds


@files
def test_it_asks_another_replica_where_one_restarts(file: str) -> None:
    assert values(file, "proxy_next_upstream") == ["error timeout http_503 non_idempotent"]
    for upstream in values(file, "server"):
        assert upstream.split()[1:] in (["max_fails=1", "fail_timeout=1s"], ["backup"])


@files
def test_evaluations_of_an_experiment_are_those_of_one_replica(file: str) -> None:
    assert values(file, "hash") == ["$experiment consistent"]
    [path] = re.findall(
        r"location ~ (\S*evaluations\S*) \{\s+proxy_pass http://evaluations;", TEXTS[file]
    )
    place = re.compile(path.replace("?<", "?P<"))
    for found in ("/experiments/shop/evaluations", "/experiments/shop/evaluations/1f0c"):
        assert place.search(found)["experiment"] == "shop"  # type: ignore[index]
    assert not place.search("/experiments/shop/arms/evaluations")
    assert not place.search("/experiments/shop/shadows")


@files
def test_it_reads_slow_clients_itself_and_closes_idle_connections_first(file: str) -> None:
    assert values(file, "proxy_request_buffering") == values(file, "proxy_buffering") == ["on"]
    assert values(file, "proxy_http_version") == ["1.1"]
    assert 'Connection ""' in values(file, "proxy_set_header")
    for seconds in values(file, "keepalive_timeout"):
        assert number(seconds) < Settings().keep_alive_seconds


def test_deciders_get_all_that_they_answer_and_nothing_else() -> None:
    places = re.findall(r"location ~ (\S+) \{\s+proxy_pass http://deciders;", TEXTS[DECIDERS])
    whole = re.compile("|".join(places))
    for path in (*PENDING_FACTORS, "/decisions/1f0c/activate", "/select/"):
        assert whole.search(path), path
        assert DECIDED.fullmatch(path.rstrip("/")), path
    for path in ("/decisions/1f0c", "/experiments/shop", "/selected", "/arms/select", "/metrics"):
        assert not whole.search(path), path
