"""A showdown is a replay per seed, each on an experiment of its own."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simulator_client import command
from simulator_client.journal import records

from .conftest import Serve
from .fake import FIGURES, FakeService, problem, transport

KEYS = {
    "world", "data", "world_seed", "visits", "shock_at", "remark", "waited_for_training", "seeds",
    "oracle_ctr", "uniform_ctr", "policies",
}  # fmt: skip
ASKED = ["showdown", "--policies", "linucb,random", "--seeds", "3", "--visits", "60", "--out", "s"]


def figures(folder: str) -> dict[str, Any]:
    """What a showdown came to, without the times."""
    told = json.loads(Path(folder, "showdown.json").read_text())
    for policy in told["policies"].values():
        kept = [policy[name] for name in ("mean", "interval", "worst")]
        for part in (*kept, *policy["seeds"].values()):
            for name in list(part):
                if name.endswith("_ms"):
                    del part[name]
    return told


@pytest.mark.usefixtures("painted")
def test_every_seed_has_a_run_and_an_experiment_that_is_deleted(
    serve: Serve, capsys: pytest.CaptureFixture[str]
) -> None:
    service = FakeService()
    serve(transport(service))
    assert command.main([*ASKED, "--shock-at", "30", "--json", "j/all.json"]) == 0
    assert not service.experiments
    assert len(set(service.deleted)) == 3
    told = json.loads(Path("j/all.json").read_text())
    assert set(told) == KEYS
    assert (told["seeds"], told["shock_at"]) == ([1, 2, 3], 30)
    for policy in ("linucb", "random"):
        found = told["policies"][policy]
        assert set(found) == {"mean", "interval", "worst", "seeds"}
        assert set(found["seeds"]) == {"1", "2", "3"}
        for part in ("mean", "interval", "worst"):
            assert set(found[part]) == FIGURES
        ctrs = [found["seeds"][seed]["expected_ctr"] for seed in "123"]
        assert found["mean"]["expected_ctr"] == pytest.approx(np.mean(ctrs))
        assert found["worst"]["expected_ctr"] == min(ctrs)
        low, high = found["interval"]["expected_ctr"]
        assert (low + high) / 2 == pytest.approx(np.mean(ctrs))
        # Student's t with two degrees of freedom
        assert high - low == pytest.approx(2 * 4.302653 * np.std(ctrs, ddof=1) / 3**0.5)
        assert found["worst"]["expected_regret"] == max(
            found["seeds"][seed]["expected_regret"] for seed in "123"
        )
        assert found["mean"]["recovery_visits"] is None, "no window of 500 visits"
    page = Path("s/showdown.html").read_text()
    assert page.count("data:image/png;base64,") == len(list(Path("s").glob("*.png"))) == 4
    assert "http" not in re.sub(r"base64,[^\"]+", "", page), "nothing is fetched"
    out = capsys.readouterr().out
    assert re.search(r"^linucb +0\.\d{4} ±0\.\d{4} +0\.\d{4} \([123]\)", out, re.MULTILINE)
    assert "never in 3 of 3" in out


def test_figures_follow_from_the_journals(serve: Serve) -> None:
    serve(transport(FakeService()))
    assert command.main([*ASKED, "--shock-at", "30"]) == 0
    told = figures("s")["policies"]["linucb"]["seeds"]["2"]
    visits = list(records(Path("s/seed-2"), "linucb"))
    regret = sum(visit.best - visit.expected for visit in visits)
    by_uniform = sum(visit.best - visit.uniform for visit in visits)
    assert told["relative_regret"] == pytest.approx(100 * regret / by_uniform)
    assert told["share_of_optimal"] == pytest.approx(
        sum(visit.expected for visit in visits) / sum(visit.best for visit in visits)
    )
    assert told["best_arm_share"] == np.mean([visit.best == visit.expected for visit in visits])
    assert told["expected_ctr_before_shock"] == pytest.approx(
        np.mean([visit.expected for visit in visits[:30]])
    )
    assert told["expected_ctr_after_shock"] == pytest.approx(
        np.mean([visit.expected for visit in visits[30:]])
    )


def test_a_showdown_continues_with_the_seeds_that_are_not_done(
    serve: Serve, capsys: pytest.CaptureFixture[str]
) -> None:
    """Stopped in the middle of the second seed: 240 calls are a seed."""
    whole, broken = FakeService(), FakeService()
    serve(transport(whole))
    assert command.main([*ASKED[:-1], "whole"]) == 0
    serve(transport(broken, [None] * 360 + [lambda r, a: problem(500, "Internal error")]))
    assert command.main(ASKED) == 1
    assert "Continue with: forage-sim showdown ... --out s" in capsys.readouterr().err
    assert Path("s/seed-1/summary.json").exists()
    assert not Path("s/seed-2/summary.json").exists()
    first = Path("s/seed-1/visits-linucb.jsonl").read_bytes()
    serve(transport(broken))
    assert command.main(ASKED) == 0
    assert Path("s/seed-1/visits-linucb.jsonl").read_bytes() == first
    assert len(broken.defined) == 4, "the second seed twice"
    assert not broken.experiments
    assert figures("s") == figures("whole")
    assert command.main(ASKED) == 0, "done: nothing is played, the page is written"
    assert len(broken.defined) == 4
    assert command.main([*ASKED, "--seeds", "4"]) == 0, "one more seed"
    assert len(broken.defined) == 5


def test_one_seed_has_no_interval(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    serve(transport(FakeService()))
    assert command.main([*ASKED, "--seeds", "1", "--first-seed", "7"]) == 0
    told = figures("s")
    assert told["seeds"] == [7]
    assert set(told["policies"]["linucb"]["interval"].values()) == {None}
    assert "±" not in capsys.readouterr().out


def test_policies_of_a_file_are_played_and_keep_leaves_the_experiment(serve: Serve) -> None:
    service = FakeService()
    serve(transport(service))
    Path("mine.json").write_text('{"mine": {"kind": "linucb", "alpha": 0.5}}')
    assert command.main(["showdown", "--policy-file", "mine.json", "--seeds", "1", "--visits", "5",
                         "--keep", "--out", "s"]) == 0  # fmt: skip
    (experiment,) = service.experiments.values()
    assert experiment["policies"] == {"mine": {"kind": "linucb", "alpha": 0.5}}


FAULTS_OF_USE = {
    "--visits 70": "was played with visits 60, not 70; give another --out",
    "--shock-at 20": "was played with shock-at None, not 20",
    "--policies random": "was played with policies",
    "--policies linucb,bogus": "unknown policy 'bogus'",
    "--world logged": "needs --data",
    "--world ranking --shock-at 5": "no market shock",
    "--data x.csv": "reads no data",
    "--policy-file no.json": "No such file",
}
"""What is asked for after a showdown, and what is said of it."""


def test_a_fault_of_use_is_one_line(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    serve(transport(FakeService()))
    assert command.main(ASKED) == 0
    capsys.readouterr()
    for asked, said in FAULTS_OF_USE.items():
        assert command.main([*ASKED, *asked.split()]) == 1, asked
        err = capsys.readouterr().err
        assert said in err
        assert len(err.splitlines()) == 1


def test_a_log_is_not_played_beyond_its_end(
    serve: Serve, capsys: pytest.CaptureFixture[str]
) -> None:
    serve(transport(FakeService(choice=lambda definition: min(definition["arms"]))))
    rows = [f"{k % 2},{k % 3 == 0:d},0.5,{k % 2}\n" for k in range(12)]
    Path("log.csv").write_text("item_id,click,propensity_score,user_feature_0\n" + "".join(rows))
    asked = ["showdown", "--world", "logged", "--data", "log.csv", "--policies", "lints", "--seeds",
             "2", "--out", "s"]  # fmt: skip
    assert command.main([*asked, "--visits", "13"]) == 1
    assert "has 12 rows; --visits is more" in capsys.readouterr().err
    assert command.main(asked) == 0
    told = figures("s")
    assert told["visits"] == 12
    found = told["policies"]["lints"]
    assert found["mean"]["matched_visits"] == 6
    assert found["mean"]["relative_regret"] is None
    assert "matched" in capsys.readouterr().out
