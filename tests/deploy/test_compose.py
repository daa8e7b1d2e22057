"""The containers of docker-compose.yml reach the service by a name that it answers for."""

import re
from urllib.parse import urlsplit

import yaml

from service.security.hosts import Hosts
from service.settings import Settings
from tests.support.metrics import ROOT

COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
PROMETHEUS = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text(encoding="utf-8"))


def named() -> set[str]:
    """Hosts and ports of the service, as the other containers write them."""
    urls = re.findall(r"http://[^\s\"',]+:8000", str(COMPOSE["services"]))
    targets = [
        target
        for job in PROMETHEUS["scrape_configs"]
        for one in job["static_configs"]
        for target in one["targets"]
    ]
    return {urlsplit(url).netloc for url in urls} | set(targets)


def test_the_service_answers_for_the_names_that_containers_give_it() -> None:
    environment = COMPOSE["services"]["service"]["environment"]
    settings = Settings(
        host=environment["FORAGE_HOST"], allowed_hosts=environment["FORAGE_ALLOWED_HOSTS"]
    )
    hosts = Hosts(settings.host, settings.allowed_hosts)
    assert "service:8000" in named()
    for name in named() | {"127.0.0.1:8000"}:  # the published port, and the image's health check
        assert hosts.serves([name.encode()]), name
    assert not hosts.serves([b"evil.example"])
