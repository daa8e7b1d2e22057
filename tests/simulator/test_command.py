"""The command as a person uses it: one line for a fault, a table, a summary, a page."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from simulator_client import command
from simulator_client import replay as running

from .conftest import Serve
from .fake import FIGURES, FakeService, problem, transport

SUMMARY_KEYS = {
    "world", "data", "remark", "seed", "world_seed", "visits", "shock_at", "run", "experiment",
    "waited_for_training", "training_timeouts", "oracle_ctr", "uniform_ctr", "policies",
    "reporting", "wait_seconds", "rate_asked",
}  # fmt: skip


def the_run(root: Path) -> Path:
    (folder,) = (root / "out").iterdir()
    return folder


@pytest.mark.usefixtures("painted")
def test_replay_prints_a_table_and_writes_summary_and_report(
    serve: Serve, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    service = FakeService()
    serve(transport(service))
    asked = "replay --policies linucb,neural_ucb --visits 100 --shock-at 50 --json s/sum.json"
    assert command.main(asked.split()) == 0
    summed = json.loads((tmp_path / "s" / "sum.json").read_text())
    assert set(summed) == SUMMARY_KEYS
    assert set(summed["policies"]) == {"linucb", "neural_ucb"}
    assert all(set(told) == FIGURES for told in summed["policies"].values())
    assert summed["oracle_ctr"] == pytest.approx((0.51105 + 0.53655) / 2)
    assert summed["experiment"] == f"zooplus-{summed['run']}"
    assert list(service.experiments) == [summed["experiment"]]
    folder = the_run(tmp_path)
    assert folder.name == summed["run"]
    assert json.loads((folder / "summary.json").read_text()) == summed
    told = capsys.readouterr()
    assert re.search(r"^linucb +100 +0\.\d{4}", told.out, re.MULTILINE)
    assert "waited for training" in told.out
    assert "linucb 100/100 CTR" in told.err
    page = (folder / "report.html").read_text()
    assert page.count("data:image/png;base64,") == 5
    assert len(list(folder.glob("*.png"))) == 5
    assert all(word in page for word in ("linucb", "neural_ucb", "shock at visit 50"))
    assert "http" not in re.sub(r"base64,[^\"]+", "", page), "nothing is fetched"


def test_a_report_of_two_runs_has_both(
    serve: Serve, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    serve(transport(FakeService()))
    asked = ["replay", "--policies", "random", "--visits", "30", "--out"]
    assert command.main([*asked, "waited"]) == 0
    assert command.main([*asked, "free", "--no-wait-for-training"]) == 0
    capsys.readouterr()
    request.getfixturevalue("painted")
    assert command.main(["report", "waited", "free", "--out", "both"]) == 0
    page = Path("both/report.html").read_text()
    assert "<h2>Waited for training</h2>" in page
    assert "<h2>Free-running</h2>" in page
    assert "Report: both/report.html" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("--policies bogus", "unknown policy 'bogus'"),
        ("--policies random,random", "named twice"),
        ("--out done", "holds a run already"),
        ("--url nonsense", "not a service's URL"),
        ("--clicks-only --wait-for-training", "a run at a rate never does"),
        ("--rate 5 --wait-for-training", "a run at a rate never does"),
        ("--rate 5 --wait-seconds 1", "--wait-seconds is for --clicks-only"),
    ],
)
def test_a_fault_of_use_is_one_line(
    serve: Serve, capsys: pytest.CaptureFixture[str], asked: str, said: str
) -> None:
    serve(transport(FakeService()))
    assert command.main(["replay", "--policies", "random", "--visits", "5", "--out", "done"]) == 0
    capsys.readouterr()
    assert command.main(["replay", *asked.split()]) == 1
    err = capsys.readouterr().err
    assert said in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    "asked",
    ["replay --visits 0", "replay --visits 1.5", "replay --seed -1", "replay --ready-within x",
     "replay --policies ,", "replay --rate 0", "replay --wait-seconds 0",
     "replay --misses-late --clicks-only", "load --rate 0", "load --seconds 0",
     "load --rewards-per-select 2", "load --connections 0", "load --arms some", "load --errors -1",
     "load --p99-ms x", "replay --key schl\u00fcssel"],
)  # fmt: skip
def test_a_bad_option_is_refused_by_the_parser(
    capsys: pytest.CaptureFixture[str], asked: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(asked.split())
    assert ended.value.code == 2
    assert asked.split()[1] in capsys.readouterr().err


@pytest.mark.parametrize("package", ["forage_client", "hdrh"])
def test_a_missing_package_is_one_line_that_says_what_to_install(package: str) -> None:
    run = "from simulator_client.__main__ import main; sys.exit(main(['load']))"
    ended = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.modules[{package!r}] = None; {run}"],
        capture_output=True,
        text=True,
        check=False,
    )
    say = f"{package} is not installed; pip install 'forage-bandits[sim]'"
    assert (ended.returncode, ended.stderr) == (1, f"forage-sim: {say}\n")


def test_no_service_is_one_line(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("Connection refused")

    serve(httpx.MockTransport(refuse))
    assert command.main(["replay", "--ready-within", "0"]) == 1
    assert capsys.readouterr().err == (
        "forage-sim: no ready Forage service at http://127.0.0.1:8000: Connection refused\n"
    )
    assert not Path("out").exists()


def test_a_replay_of_clicks_alone_says_how_it_was_played(
    serve: Serve, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    service = FakeService()
    serve(transport(service))
    asked = "replay --clicks-only --rate 2000 --wait-seconds 0.05 --policies linucb --visits 40"
    assert command.main([*asked.split(), "--out", "x", "--json", "sum.json"]) == 0
    out = capsys.readouterr().out
    said = "clicks only, misses by default after 0.05 s, 2000 visits/s"
    assert said in out
    assert "visits/s  select" in out
    summed = json.loads((tmp_path / "sum.json").read_text())
    told = {name: summed[name] for name in ("reporting", "wait_seconds", "rate_asked")}
    assert told == {"reporting": "clicks-only", "wait_seconds": 0.05, "rate_asked": 2000.0}
    assert summed["waited_for_training"] is False
    assert said.capitalize() in (tmp_path / "x" / "report.html").read_text()
    assert len(service.values("linucb")) == 40


def test_a_stopped_run_says_how_to_report_it(
    serve: Serve, capsys: pytest.CaptureFixture[str]
) -> None:
    serve(transport(FakeService(), [None] * 8 + [lambda r, a: problem(500, "Internal error")]))
    assert command.main(["replay", "--policies", "random", "--visits", "10", "--out", "x"]) == 1
    err = capsys.readouterr().err
    assert "Stopped. Continue with: forage-sim report x" in err
    assert err.splitlines()[-1] == "forage-sim: 500 Internal error"
    assert command.main(["report", "x"]) == 0
    assert "Unfinished: random." in Path("x/report.html").read_text()


def test_ctrl_c_is_status_130(
    serve: Serve, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    async def interrupted(*args: Any, **more: Any) -> None:
        raise KeyboardInterrupt

    serve(transport(FakeService()))
    monkeypatch.setattr(running, "replay", interrupted)
    assert command.main(["replay", "--policies", "random", "--visits", "20"]) == 130
    folder = the_run(tmp_path).relative_to(tmp_path)
    assert f"Stopped. Continue with: forage-sim report {folder}" in capsys.readouterr().err
