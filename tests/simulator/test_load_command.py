"""`forage-sim load` as a person uses it: against a fake, and against the service itself."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from simulator_client import command, load_command
from tests.support.service_process import service

from .load_server import LoadServer, refusal

pytestmark = pytest.mark.process

KEYS = {
    "schema", "urls", "experiment", "policy", "arms_listed", "fresh_contexts",
    "rewards_per_select", "rewards_alone", "rate_asked", "connections", "warmup_s", "counted_s",
    "timeout_s", "seed", "rate_reached", "rewards_a_second", "latency_ms", "errors",
    "errors_in_all", "unlogged", "client", "throughput", "hdr", "remarks", "missed",
}  # fmt: skip
QUICK = ["--seconds", "0.5", "--warm-up", "0.1"]


@pytest.fixture(autouse=True)
def _folder(unpainted: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def run(server: LoadServer, *asked: str) -> int:
    return command.main(["load", "--url", server.url, *QUICK, "--out", "x", *asked])


@pytest.mark.usefixtures("painted")
def test_a_test_prints_a_table_and_writes_summary_and_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with LoadServer().running() as server:
        asked = ["--rate", "200", "--policy", "linucb", "--arms", "ids", "--json", "s/sum.json"]
        assert run(server, *asked) == 0
    found = json.loads((tmp_path / "s" / "sum.json").read_text())
    assert set(found) == KEYS
    assert json.loads((tmp_path / "x" / "summary.json").read_text()) == found
    assert found["experiment"] == "shop"
    assert found["rate_reached"] == pytest.approx(200, abs=80)
    assert found["errors_in_all"] == 0
    told = found["latency_ms"]["select"]
    assert told["p50"] <= told["p90"] <= told["p99"] <= told["p99_9"] <= told["max"] * 1.001
    sent = {"policy": "linucb", "arms": ["ball", "bone"]}
    assert all(sent.items() <= each.items() for each in server.selects)
    out = capsys.readouterr().out
    assert re.search(r"^POST /select +\d+ +[\d.]+", out, re.MULTILINE)
    assert "200 selects due per second" in out
    page = (tmp_path / "x" / "report.html").read_text()
    assert page.count("data:image/png;base64,") == 2
    assert "http" not in re.sub(r"base64,[^\"]+|http://127.0.0.1:\d+", "", page), "is complete"


@pytest.mark.parametrize(
    ("limits", "status", "said"),
    [
        (("0.001", "0"), 1, ["p99 of selects is", "errors, more than 0"]),
        (("60000", "100000"), 0, []),
    ],
)
def test_a_limit_that_is_missed_is_status_1(
    capsys: pytest.CaptureFixture[str], limits: tuple[str, str], status: int, said: list[str]
) -> None:
    """At a rate: what fell due is sent, however busy the machine is."""

    def refused(path: str, number: int) -> bytes | None:
        return refusal(503) if number % 5 == 0 else None

    p99_ms, errors = limits
    with LoadServer(refused).running() as server:
        assert run(server, "--rate", "50", "--p99-ms", p99_ms, "--errors", errors) == status
    out, err = capsys.readouterr()
    assert all(text in err for text in said)
    assert ("Missed: " in err) == (status == 1)
    assert re.search(r"Errors: [\d,]+ selects 503", out)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["--policy", "nobody"], "no policy 'nobody': linucb, random"),
        (["--experiment", "other"], "no experiment 'other'"),
        (["--rewards-alone", "--rate", "5"], "--rewards-alone goes as fast as it can"),
        (["--rewards-alone", "--warm-up", "0"], "decides during --warm-up, which is 0"),
    ],
)
def test_a_fault_of_use_is_one_line_and_status_2(
    capsys: pytest.CaptureFixture[str], asked: list[str], said: str, tmp_path: Path
) -> None:
    with LoadServer().running() as server:
        assert run(server, *asked) == 2
    err = capsys.readouterr().err
    assert said in err
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "x").exists()


def test_a_request_that_the_service_refuses_is_told_before_the_test(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with LoadServer(lambda path, number: refusal(422)).running() as server:
        assert run(server) == 1
    assert len(server.selects) == 1
    assert capsys.readouterr().err == (
        "forage-sim: the service refuses such a request: 422 Not now: no\n"
    )


def test_the_service_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rewards reach it, each once; its log has every decision, and its counts are the client's."""
    store = f"sqlite:///{tmp_path / 'forage.db'}"
    quiet = {
        "FORAGE_TRAINER": "off",
        "FORAGE_LOG_LEVEL": "error",
        "FORAGE_SELECT_LOG_SECONDS": "60",
    }
    with service(tmp_path, store, **quiet) as serving:
        asked = ["load", "--url", serving.url, "--policy", "linucb", "--arms", "ids"]
        asked += ["--rate", "50", "--seconds", "1", "--warm-up", "0.5", "--errors", "0"]
        assert command.main([*asked, "--rewards-per-select", "0.5", "--out", "x"]) == 0
        status: Any = serving.get("/policies/linucb")
    found = json.loads((tmp_path / "x" / "summary.json").read_text())
    selects, rewards = (sum(found["throughput"][kind]) for kind in ("select", "reward"))
    assert status["decisions"] == selects + 1, "one is asked before the test"
    assert status["rewards"] == rewards > 10
    assert (found["arms_listed"], found["unlogged"]) == (True, 0)


def test_ctrl_c_says_that_nothing_was_kept(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def interrupted(*asked: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(load_command, "run", interrupted)
    with LoadServer().running() as server:
        assert run(server) == 130
    assert "Stopped. Nothing was kept." in capsys.readouterr().err
    assert not (tmp_path / "x").exists()
