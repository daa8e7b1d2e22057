"""The containers of docker-compose.yml reach each other by names that they answer for."""

import re
from urllib.parse import urlsplit

import yaml

from service.security.hosts import Hosts
from service.settings import Settings
from tests.support.metrics import ROOT

COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
ALERTMANAGER = yaml.safe_load(
    (ROOT / "deploy/alertmanager/alertmanager.yml").read_text(encoding="utf-8")
)
PROMETHEUS = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text(encoding="utf-8"))


def named() -> set[str]:
    """Hosts and ports of the service, as the other containers write them."""
    urls = re.findall(r"http://[^\s\"',]+:8000", str(COMPOSE["services"]))
    return {urlsplit(url).netloc for url in urls}


def test_the_service_answers_for_the_names_that_containers_give_it() -> None:
    environment = COMPOSE["services"]["service"]["environment"]
    settings = Settings(
        host=environment["FORAGE_HOST"], allowed_hosts=environment["FORAGE_ALLOWED_HOSTS"]
    )
    hosts = Hosts(settings.host, settings.allowed_hosts)
    assert "service:8000" in named()
    # Prometheus asks each replica by its address; the last is the image's health check.
    for name in named() | {"172.18.0.5:8000", "127.0.0.1:8000"}:
        assert hosts.serves([name.encode()]), name
    assert not hosts.serves([b"evil.example"])


def test_prometheus_finds_every_replica_and_the_alertmanager() -> None:
    [job] = PROMETHEUS["scrape_configs"]
    [found] = job["dns_sd_configs"]
    assert (found["names"], found["type"], found["port"]) == (["service"], "A", 8_000)
    [manager] = PROMETHEUS["alerting"]["alertmanagers"]
    assert manager["static_configs"] == [{"targets": ["alertmanager:9093"]}]
    assert "alertmanager" in COMPOSE["services"]
    route, receivers = ALERTMANAGER["route"], ALERTMANAGER["receivers"]
    assert route["receiver"] in {each["name"] for each in receivers}


def test_replicas_do_not_share_a_port_of_the_host() -> None:
    [port] = COMPOSE["services"]["service"]["ports"]
    assert port == "127.0.0.1:8000-8009:8000"
