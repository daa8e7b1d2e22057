"""The versions of Node that the SDK is tested in: those that `make sdk` names, or the one on the
PATH, or the newest that `make sdk` has installed."""

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

INSTALLED = Path(__file__).parents[2] / "out" / "node"
NONE = "no Node was found: `apt-get install nodejs`, or `make sdk` where there is npm"


@cache
def nodes() -> dict[str, str]:
    """Paths by version."""
    paths = os.environ.get("NODES", "").split()
    if not paths:
        installed = sorted(map(str, INSTALLED.glob("*/node_modules/node-*/bin/node")))
        paths = [found] if (found := shutil.which("node")) else installed[-1:]
    return {_version(path): path for path in paths}


def _version(path: str) -> str:
    told = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout
    return told.strip().removeprefix("v")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "node" in metafunc.fixturenames:
        metafunc.parametrize("node", nodes() or ["none"], ids="node-{}".format, indirect=True)


@pytest.fixture
def node(request: pytest.FixtureRequest) -> str:
    """The path of one."""
    found = nodes().get(request.param)
    if found is None:
        pytest.fail(NONE)
    return found
