"""The containers of docker-compose.yml: names that they answer for, limits, secrets, images."""

import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from service.security.hosts import Hosts
from service.security.keys import read_keys
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


SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OPEN = {"FORAGE_OPEN", "FORAGE_STORE", "FORAGE_TOKEN_KEYS", "FORAGE_KEY"}
"""Variables that let everybody in, or hold a secret themselves."""
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", SERVICES)
def test_a_container_has_limits_and_no_rights(name: str) -> None:
    container = SERVICES[name]
    assert container["mem_limit"]
    assert container["cpus"]
    assert container["cap_drop"] == ["ALL"]
    assert container["security_opt"] == ["no-new-privileges:true"]
    assert container["logging"]["driver"] == "json-file"
    assert container["logging"]["options"].keys() == {"max-size", "max-file"}
    for port in container.get("ports", []):
        assert port.startswith("127.0.0.1:")


def test_images_have_exact_versions() -> None:
    images = [each["image"] for each in SERVICES.values() if "image" in each]
    images += re.findall(r"^ARG BASE_IMAGE=(.*)", DOCKERFILE, re.MULTILINE)
    assert len(images) == 5
    for image in images:
        assert re.fullmatch(r"[\w./]+:v?\d+\.\d+\.\d+(-[\w.-]+)?", image), image


def test_only_the_image_of_the_trainer_has_torch() -> None:
    stages = re.split(r"^FROM ", DOCKERFILE, flags=re.MULTILINE)[1:]
    extras: dict[str, str] = {}
    for stage in stages:
        base, name = re.match(r"(\S+) AS (\S+)", stage).groups()  # type: ignore[union-attr]
        copied = re.findall(r"--from=(installed\S*)", stage)
        own = re.findall(r"EXTRAS='([^']*)'", stage)
        extras[name] = " ".join([extras.get(base, ""), *own, *(extras[each] for each in copied)])
    assert name == "service"  # the last stage is what `docker build .` makes
    assert extras["service"].split() == ["archive", "postgres"]
    assert {"train", "sim"} <= set(extras["trainer"].split())
    targets = {name: each["build"]["target"] for name, each in SERVICES.items() if "build" in each}
    assert targets == {"service": "service", "trainer": "trainer", "simulate": "trainer"}


def test_redis_is_closed_and_bounded() -> None:
    redis = SERVICES["redis"]
    assert (redis["read_only"], redis["user"]) == (True, "redis")
    program, config, *options = redis["command"]
    given = dict(zip(options[::2], options[1::2], strict=True))
    assert (program, config) == ("redis-server", "/run/secrets/redis.conf")
    assert given["--maxmemory-policy"] == "noeviction"
    most, limit = (
        re.fullmatch(r"\$\{\w+:-(\d+)gb?\}", text)
        for text in (given["--maxmemory"], redis["mem_limit"])
    )
    assert most
    assert limit
    assert int(most[1]) * 2 <= int(limit[1])  # its fork for a new append-only file
    assert "ports" not in redis


def test_secrets_are_files_and_are_made(tmp_path: Path) -> None:
    """`make secrets` makes each file that a container mounts; what it made, the service takes."""
    for name in (".ci", "deploy"):
        (tmp_path / name).mkdir()
    script = tmp_path / ".ci/secrets"
    script.write_text((ROOT / ".ci/secrets").read_text(encoding="utf-8"))
    environment = os.environ | {"BIN": str(Path(sys.executable).parent)}
    run = partial(subprocess.run, ["sh", script], cwd=tmp_path, env=environment, check=True)
    run()
    folder = tmp_path / "deploy/secrets"
    made = {file.name: file.read_text() for file in folder.iterdir() if file.is_file()}
    run()
    assert made == {file.name: file.read_text() for file in folder.iterdir() if file.is_file()}
    assert folder.stat().st_mode & 0o777 == 0o700

    mounted = {name: Path(each["file"]).name for name, each in COMPOSE["secrets"].items()}
    assert made.keys() == {*mounted.values(), "ops_key"}
    for each in SERVICES.values():
        environment = each.get("environment", {})
        assert not OPEN & set(environment)
        files = [value for value in environment.values() if value.startswith("/run/secrets/")]
        assert {Path(file).name for file in files} <= set(each.get("secrets", []))
    password = made["redis.conf"].removeprefix("requirepass ").strip()
    assert made["store"].strip() == f"redis://:{password}@redis:6379/0"
    scopes = {key.name: set(key.scopes) for key in read_keys(folder / "keys/keys.json")}
    assert scopes["trainer"] == {"admin"}
    assert scopes["prometheus"] == {"metrics"}
    [job] = PROMETHEUS["scrape_configs"]
    assert job["authorization"]["credentials_file"] == "/run/secrets/prometheus_key"
    assert SERVICES["prometheus"]["secrets"] == ["prometheus_key"]


def test_the_log_is_trimmed() -> None:
    environment = SERVICES["service"]["environment"]
    assert environment["FORAGE_RETENTION_DAYS"] == "${FORAGE_RETENTION_DAYS:-7}"
