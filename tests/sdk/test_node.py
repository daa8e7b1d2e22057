"""The SDK in Node: it decides, is rewarded and keeps its budget; and what replaces an answer where
there is none. The checks are JavaScript, in the files beside this one."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.forage import Serving, serving

pytestmark = pytest.mark.process

HERE = Path(__file__).parent
ENDS_S = 60.0


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """One for all: each check asks for decisions of its own."""
    with serving(tmp_path_factory.mktemp("service")) as running:
        yield running


def check(node: str, script: str, **settings: str) -> None:
    """Run a file of checks, which also has to end by itself; what it says where one fails."""
    ended = subprocess.run(
        [node, "--test-reporter=tap", HERE / script],
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        timeout=ENDS_S,
        check=False,
    )
    assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr}"
    assert "\n# pass " in ended.stdout, "it ran"
    assert "\n# skipped 0" in ended.stdout


def test_it_decides_and_is_rewarded(node: str, service: Serving) -> None:
    arms = [each["id"] for each in service.get("/arms")["arms"]]
    check(node, "decides.mjs", URL=service.url, ARMS=json.dumps(arms))


def test_it_falls_back_within_its_budget(node: str) -> None:
    check(node, "falls_back.mjs")


def test_the_loader_does_without_the_sdk(node: str) -> None:
    check(node, "loads.mjs")
