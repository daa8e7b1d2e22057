"""forage history, diff and revert: over a running service."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.forage import Ended, Serving, expect_refusal, forage, serving

SHOP = {
    "features": {"arm": {"category": {"type": "categorical", "values": ["food", "toy"]}}},
    "arms": {"kibble": {"category": "food"}, "ball": {"category": "toy"}},
    "policies": {"main": {"kind": "lints", "share": 1.0}, "new": {"kind": "random", "share": 0.1}},
}
PATH = "/experiments/shop"

pytestmark = pytest.mark.process


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
def running(folder: Path) -> Iterator[Serving]:
    with serving(folder) as running:
        running.client.put(PATH, json=SHOP).raise_for_status()
        yield running


def share(running: Serving, value: float) -> None:
    body = {"share": value}
    running.client.put(f"{PATH}/policies/new/share", json=body).raise_for_status()


def run(running: Serving, folder: Path, command: str, *options: str) -> Ended:
    return forage(command, *options, "shop", "--url", running.url, folder=folder)


def test_history_diff_and_revert(running: Serving, folder: Path) -> None:
    share(running, 0.2)
    told = run(running, folder, "history").stdout.splitlines()
    assert [line[20:].strip() for line in told] == [
        "revision 2   somebody set the share of 'new' to 0.2",
        "revision 1   somebody defined the experiment",
    ]
    then = run(running, folder, "history", "--at", "2999-01-01T00:00:00Z").stdout.splitlines()
    assert then[2:] == [
        "then: revision 2",
        "  main: share 1, version 0",
        "  new: share 0.2, version 0",
    ]
    found = json.loads(run(running, folder, "history", "--json").stdout)
    assert [each["revision"] for each in found["changes"]] == [2, 1]

    diff = run(running, folder, "diff", "--from", "1", "--to", "2")
    assert (diff.returncode, diff.stdout) == (0, "~ policies.new.share: 0.1 -> 0.2\n")
    same = run(running, folder, "diff", "--from", "2", "--to", "2").stdout
    assert same == "shop: revisions 2 and 2 are the same\n"

    done = run(running, folder, "revert", "--revision", "1", "--yes")
    assert (done.returncode, done.stdout.splitlines()) == (
        0,
        [
            "~ policies.new.share: 0.2 -> 0.1",
            "shop: is now revision 3, with the definition of 1",
        ],
    )
    again = run(running, folder, "revert", "--revision", "1")
    assert (again.returncode, again.stdout) == (0, "shop: nothing to change\n")


def test_a_deleted_experiment_comes_back(running: Serving, folder: Path) -> None:
    running.client.delete(PATH).raise_for_status()
    refused = run(running, folder, "revert", "--revision", "2", "--yes")
    assert "revision 2 deleted the experiment" in expect_refusal(refused)
    assert run(running, folder, "revert", "--revision", "1", "--yes").returncode == 0
    assert running.get(PATH)["revision"] == 3


def test_what_is_unknown_or_at_fault_is_refused(running: Serving, folder: Path) -> None:
    unknown = run(running, folder, "diff", "--from", "1", "--to", "9")
    assert "revision 9 was never made" in unknown.stderr
    wrong = run(running, folder, "history", "--at", "NaN")
    assert (wrong.returncode, wrong.stdout) == (1, "")
    assert "is no instant" in wrong.stderr
    assert run(running, folder, "revert", "--revision", "0", "--yes").returncode == 2
    other = forage("history", "../shop", "--url", running.url, folder=folder)
    assert other.returncode == 1


def test_history_imports_nothing_that_only_a_service_needs() -> None:
    """numpy and scipy alone take longer than the service's answer in any log."""
    asked = ["history", "--at", "0", "shop", "--url", "http://127.0.0.1:1"]
    script = (
        f"import sys; from service.cli.program import main; main({asked}); "
        "print(sorted({'numpy', 'scipy', 'fastapi', 'torch'} & {*sys.modules}))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert ended.stdout.splitlines()[-1] == "[]"
