"""Figures of a course, runs on disk, and peers: those that play and those that cannot."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.learning.__main__ import compare, parser
from benchmarks.learning.course import Course, figures, play
from benchmarks.learning.peers import PEERS, Entry, LeftOut, guest
from benchmarks.learning.peers.base import Problem
from benchmarks.learning.peers.linear import DisjointLinUcb, Uniform
from benchmarks.learning.pictures import write
from benchmarks.learning.runs import Case, Run
from benchmarks.learning.tables import text
from simulator_client.worlds import Reference, make_world

OWN = [name for name, entry in PEERS.items() if entry.package is None]


def test_figures_of_a_course_made_by_hand() -> None:
    """Best 1, uniform .2. For 1,000 visits .8; from the shock on 300 visits nothing, then 1: a
    window of 500 holds .95 when 25 of the bad visits are left, 300 + 475 after the shock."""
    expected = np.concatenate([np.full(1000, 0.8), np.zeros(300), np.ones(700)])
    course = Course(expected, np.ones(2000), np.full(2000, 0.2), np.ones(2000), seconds=2.0)
    said = figures(course, [Reference(0, 1.0, 0.2), Reference(1000, 1.0, 0.2)], shock_at=1000)
    assert said == {
        "visits": 2000,
        "clicks": 2000.0,
        "expected_ctr": pytest.approx(0.75),
        "expected_ctr_before": pytest.approx(0.8),
        "expected_ctr_after": pytest.approx(0.7),
        "expected_regret": pytest.approx(500.0),
        "relative_regret": pytest.approx(100 * 500 / 1600),
        "share_of_optimal": pytest.approx(0.75),
        "recovery_visits": 775,
        "seconds": 2.0,
    }
    assert figures(course, [Reference(0, 1.0, 0.2)])["recovery_visits"] is None


@pytest.mark.slow
@pytest.mark.parametrize("name", OWN)
def test_baselines_beat_chance_and_repeat_themselves(name: str) -> None:
    world = make_world("zooplus", 42)
    courses = [play(world, guest(world, name, 1), 1, 400) for _ in range(2)]
    assert courses[0].expected.tobytes() == courses[1].expected.tobytes()
    mean, uniform = courses[0].expected.mean(), courses[0].uniform.mean()
    assert mean == pytest.approx(uniform, abs=0.02) if name == "uniform" else mean > uniform + 0.03


def test_disjoint_linucb_by_hand() -> None:
    """Ridge 1, context [1]: after reward 1 the arm has A 2, b 1, mean .5."""
    peer = DisjointLinUcb(Problem("zooplus", ("a", "b"), np.eye(2), 1, (0.0, 1.0), 1))
    peer.learn(np.ones(1), [(1, 1.0)])
    assert peer._inverse.ravel().tolist() == [1.0, 0.5]
    assert peer._theta.ravel().tolist() == [0.0, 0.5]


def test_a_peer_that_is_not_installed_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(PEERS, "stranger", Entry(Uniform, "forage-no-such-library"))
    asked = Run(Case("zooplus", 10), "stranger", 1, None)
    with pytest.raises(LeftOut, match=r"forage-no-such-library is not installed: pip install"):
        asked.play(tmp_path)
    assert asked.found(tmp_path) is None


def test_a_run_is_known_again_with_the_same_settings_alone(tmp_path: Path) -> None:
    case = Case("zooplus", 10)
    asked = Run(case, "linucb", 1, {"kind": "linucb"})
    record = asked.play(tmp_path)
    assert asked.found(tmp_path) == record
    assert Run(case, "linucb", 2, {"kind": "linucb"}).found(tmp_path) is None
    assert Run(case, "linucb", 1, {"kind": "linucb", "alpha": 1.0}).found(tmp_path) is None


@pytest.mark.slow
def test_a_comparison_goes_on_where_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--visits", "600", "--shock-at", "50", "--jobs", "1", "--out", str(tmp_path)]
    words += ["--policies", "linucb,nobody", "--peers", "uniform"]
    words += ["--seeds", "2"]
    (first,) = compare(parser().parse_args(words))
    (standing,) = compare(parser().parse_args(words))
    assert "4 of 4 runs" in capsys.readouterr().out
    assert standing.runs == first.runs
    assert standing.verdict.startswith("best of ours: linucb")
    assert "left out: nobody: unknown policy" in text(standing)
    page = write([standing], tmp_path / "report.html").read_text()
    assert page.count("data:image/png;base64,") == 1
