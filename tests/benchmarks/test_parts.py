"""What a service does beside answering is measured, and what it is held against does the same."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.command import RESULTS
from benchmarks.decision import learner
from benchmarks.parts.__main__ import main
from benchmarks.parts.folding import FLOOR_OF, REWARDS, floors, fold, policy_of, rewards
from benchmarks.parts.snapshots import CASES, Heads, state_of
from benchmarks.parts.tables import TABLES
from service.state.fold import State
from tests.unit.test_policy_settings import KINDS


def test_every_kind_that_learns_from_a_reward_is_folded() -> None:
    assert set(FLOOR_OF) == {kind for kind in KINDS if learner(kind, 9).policy.has_head}


@pytest.mark.parametrize("kind", FLOOR_OF)
def test_a_fold_is_of_a_reward_that_the_policy_learns_from(kind: str) -> None:
    policy = policy_of(kind, 4)
    work = fold(policy, 4)
    assert policy.rewards == REWARDS
    work()
    assert policy.rewards == REWARDS + 1
    assert policy.active.settled == REWARDS + 1


def test_every_floor_runs_and_rewards_are_the_same_for_both() -> None:
    for work in floors(4).values():
        for _ in range(REWARDS):
            work()
    arms, rows, values = zip(*rewards(4), strict=True)
    assert np.array(rows).shape == (REWARDS, 4)
    assert set(values) == {0.0, 1.0}
    assert len(set(arms)) == 50


def test_a_state_has_the_heads_that_its_case_says() -> None:
    one, many = state_of(Heads(3)), state_of(Heads(3, 5))
    assert one.learners["p"].rewards == 1
    assert many.learners["p"].rewards == 5
    shapes = [
        {array.shape for array in state.learners["p"].dump()[1].values() if array.ndim > 1}
        for state in (one, many)
    ]
    assert (3, 3) in shapes[0]
    assert any(shape[-2:] == (3, 3) and shape[0] >= 5 for shape in shapes[1])
    assert State.restore(many.snapshot()).snapshot().payload == many.snapshot().payload


def test_a_quick_run_measures_every_part(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["--quick", "--out", str(tmp_path / "parts.json")])
    found = json.loads((tmp_path / "parts.json").read_text())["parts"]
    assert list(found) == list(TABLES)
    assert found["recovery"]["events"] == 200
    assert found["training"]["300"]["steps"] == 4 * found["training"]["300"]["passes"]
    assert all(row["bytes"] > 0 for row in found["snapshots"].values())
    said = capsys.readouterr()
    assert "neural_linear_ts" in said.out
    assert "training: round 1 of 1" in said.err


def test_a_part_that_is_none_is_a_fault_of_use() -> None:
    with pytest.raises(SystemExit, match="no part cooking; there are: folding, snapshots"):
        main(["--parts", "cooking"])


def test_kept_figures_are_of_every_kind_and_case() -> None:
    found = json.loads((RESULTS / "parts.json").read_text())
    assert found["rounds"] >= 5
    assert set(found["parts"]["folding"]["policies"]) == set(FLOOR_OF)
    assert list(found["parts"]["snapshots"]) == list(CASES)
    for told in found["parts"]["folding"]["policies"].values():
        for row in told["by_columns"].values():
            assert row["ratio"] == pytest.approx(row["forage_us"] / row["floor_us"])
            assert row["events_per_second"] == pytest.approx(1e6 / row["forage_us"])
