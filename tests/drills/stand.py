"""Everything that a deployment runs, on this machine: Redis, a service, a trainer, Prometheus."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.support.ports import free_port
from tests.support.redis_server import RedisServer

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "prometheus" / "rules.yml"
CONFIG = ROOT / "deploy" / "prometheus" / "prometheus.yml"
START_S = 90.0


class Stand:
    """The parts and how to reach them. Each may be killed."""

    def __init__(self, folder: Path) -> None:
        self._folder, self.ends = folder, ExitStack()
        self.redis = RedisServer(folder)
        self.url = f"http://127.0.0.1:{free_port()}"
        self.prometheus = f"http://127.0.0.1:{free_port()}"
        self.service: subprocess.Popen[bytes]
        self.trainer: subprocess.Popen[bytes]
        self.service_log = folder / "service.log"

    def start(self) -> None:
        self.ends.callback(self.redis.kill)
        self.redis.start()
        experiment, port = (
            str(Path(__file__).parent / "experiment.toml"),
            self.url.rpartition(":")[2],
        )
        serve = ["serve", "--port", port, "--experiment", experiment, "--trainer", "off"]
        self.service = self._run(
            "service", [sys.executable, "-m", "tests.drills.breakable", *serve]
        )
        _wait_for(f"{self.url}/readyz", self.service)
        train = [sys.executable, "-m", "service", "train", "--follow"]
        self.trainer = self._run("trainer", train)
        self._start_prometheus()

    def _run(self, name: str, command: list[str]) -> subprocess.Popen[bytes]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith("FORAGE_")}
        own = {"FORAGE_STORE": self.redis.url, "FORAGE_URL": self.url, "PYTHONPATH": str(ROOT)}
        with (self._folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                command, env={**kept, **own}, stdout=log, stderr=log, cwd=self._folder
            )
        self.ends.callback(kill, process)
        return process

    def _start_prometheus(self) -> None:
        """With the configuration and the rules that are deployed, but for target and key."""
        program = shutil.which("prometheus")
        if program is None:
            raise SystemExit("the drills need prometheus on the PATH: apt-get install prometheus")
        config = yaml.safe_load(CONFIG.read_text(encoding="utf-8"))
        targets = [self.url.removeprefix("http://")]
        config["scrape_configs"][0]["static_configs"] = [{"targets": targets}]
        del config["scrape_configs"][0]["authorization"]  # the service asks for no keys
        (self._folder / "prometheus.yml").write_text(yaml.safe_dump(config), encoding="utf-8")
        shutil.copy(RULES, self._folder)
        options = [f"--config.file={self._folder / 'prometheus.yml'}"]
        options += [f"--storage.tsdb.path={self._folder / 'tsdb'}"]
        options += [f"--web.listen-address={self.prometheus.removeprefix('http://')}"]
        process = self._run("prometheus", [program, *options])
        _wait_for(f"{self.prometheus}/-/ready", process)

    def break_head(self) -> None:
        self.service.send_signal(signal.SIGUSR1)

    def fallback_decisions(self, policy: str) -> float:
        """Return how many decisions of a policy the service says that the fallback made."""
        text = httpx.get(f"{self.url}/metrics", timeout=10).text
        return sum(
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == "forage_fallback_decisions_total"
            and sample.labels["policy"] == policy
        )

    def said(self, text: str) -> bool:
        """Whether a line of the service's log holds a text."""
        return text in self.service_log.read_text(encoding="utf-8")

    def firing(self) -> set[tuple[str, str]]:
        """(alert, policy or ''), of those that fire."""
        answer = httpx.get(f"{self.prometheus}/api/v1/alerts", timeout=10).json()
        return {
            (alert["labels"]["alertname"], alert["labels"].get("policy", ""))
            for alert in answer["data"]["alerts"]
            if alert["state"] == "firing"
        }


def kill(process: subprocess.Popen[bytes]) -> None:
    """As kill -9 does it."""
    if process.poll() is None:
        process.send_signal(signal.SIGKILL)
    process.wait()


def _wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_S
    while True:
        try:
            if httpx.get(url, timeout=2).status_code == 200:
                return
        except httpx.TransportError:
            pass
        if process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"{url} does not answer")
        time.sleep(0.2)


@contextmanager
def stand(folder: Path) -> Iterator[Stand]:
    """Start one; kill everything at the end."""
    found = Stand(folder)
    with found.ends:
        found.start()
        yield found
