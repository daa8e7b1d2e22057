"""A log is replayed by rejection: what did not match is not sent and does not count."""

from pathlib import Path

import numpy as np
import pytest

from simulator_client.errors import UsageError
from simulator_client.worlds.logged import Logged, Visit

HEADER = ",item_id,position,click,propensity_score,user_feature_0,user-item_affinity_0\n"
ITEMS = """\
,item_id,item_feature_0,item_feature_1
0,0,-0.5,x
1,1,0.5,y
2,2,0.1,x
"""

Row = tuple[int, int, int, float, str]  # item, position, click, propensity, user


def log_of(folder: Path, rows: list[Row], items: str | None = ITEMS) -> Path:
    path = folder / "log.csv"
    lines = [
        f"{k},{item},{position},{click},{p},{user},0.0\n"
        for k, (item, position, click, p, user) in enumerate(rows)
    ]
    path.write_text(HEADER + "".join(lines))
    if items is not None:
        (folder / "item_context.csv").write_text(items)
    return path


UNIFORM = [(0, 1, 0, 0.5, "a"), (1, 2, 1, 0.5, "b"), (0, 3, 1, 0.5, "a")]


def test_definition_is_of_users_position_and_items(tmp_path: Path) -> None:
    definition = Logged(log_of(tmp_path, UNIFORM)).definition(["linucb", "random"])
    assert definition["features"]["context"] == {
        "position": {"type": "categorical", "values": ["place 1", "place 2", "place 3"]},
        "user_feature_0": {"type": "categorical", "values": ["a", "b"]},
    }
    arm = definition["features"]["arm"]
    assert arm["arm"] == {"type": "categorical", "values": ["0", "1", "2"]}
    assert arm["item_feature_0"] == {"type": "numeric"}
    assert arm["item_feature_1"] == {"type": "categorical", "values": ["x", "y"]}
    assert definition["arms"]["1"] == {"arm": "1", "item_feature_0": 0.5, "item_feature_1": "y"}
    assert definition["reward"] == {"range": [0.0, 1.0], "default": None}


def test_a_match_counts_and_nothing_else_does(tmp_path: Path) -> None:
    world = Logged(log_of(tmp_path, UNIFORM))
    visit = world.stream(0).visit(1)
    assert (visit.number, visit.row) == (1, 1)
    assert world.request(visit) == {"context": {"position": "place 2", "user_feature_0": "b"}}
    assert world.outcome(visit, ["1"]) == ({"reward": 1.0}, 1.0, 1.0, None, None, "matched")
    assert world.outcome(visit, ["0"]) == (None, 0.0, 0.0, None, None, "rejected")
    assert world.references(3) == []
    assert "min(p)" not in world.remark


def test_a_row_of_another_log_is_kept_with_chance_min_p_over_p(tmp_path: Path) -> None:
    """p 0.1 is the smallest: rows of 0.1 are kept for sure, of 0.4 with chance 1/4."""
    rows = [(0, 1, 0, 0.1, "a"), (1, 2, 1, 0.4, "b")]
    world = Logged(log_of(tmp_path, rows))
    assert not world.is_uniform
    assert "min(p)/p, min(p) being 0.1" in world.remark
    assert world.outcome(Visit(0, 0, 0.999), ["0"]).feedback == {"reward": 0.0}
    assert world.outcome(Visit(1, 1, 0.249), ["1"]).feedback == {"reward": 1.0}
    assert world.outcome(Visit(1, 1, 0.251), ["1"]).feedback is None


def test_rejection_is_unbiased_over_a_log_that_is_not_uniform(tmp_path: Path) -> None:
    """Item 0 is clicked by half of the users a and none of b, and a log shows it to a three times
    as often: always choosing it has a CTR of 1/4, which its matches alone would put at 3/8."""
    rng = np.random.default_rng(0)
    rows = []
    for _ in range(8_000):
        user = "ab"[int(rng.integers(2))]
        p = {"a": 0.75, "b": 0.25}[user]
        item = 0 if rng.random() < p else 1
        click = int(user == "a" and item == 0 and rng.random() < 0.5)
        rows.append((item, 1, click, p if item == 0 else 1 - p, user))
    world = Logged(log_of(tmp_path, rows))
    stream = world.stream(1)
    outcomes = [world.outcome(stream.visit(k), ["0"]) for k in range(8_000)]
    matched = [outcome.clicks for outcome in outcomes if outcome.feedback is not None]
    assert len(matched) / 8_000 == pytest.approx(0.25, abs=0.02), "the smallest propensity"
    assert np.mean(matched) == pytest.approx(0.25, abs=4 * 0.43 / len(matched) ** 0.5)


def test_rows_come_once_in_file_order_or_permuted(tmp_path: Path) -> None:
    world = Logged(log_of(tmp_path, UNIFORM))
    assert world.longest == 3
    assert [world.stream(0).visit(k).row for k in range(3)] == [0, 1, 2]
    order = np.random.default_rng(5).permutation(3)
    assert [world.stream(5).visit(k).row for k in range(3)] == order.tolist()
    with pytest.raises(UsageError, match="3 rows"):
        world.stream(0).visit(3)


@pytest.mark.parametrize(
    ("rows", "items", "said"),
    [
        ([(7, 1, 0, 0.5, "a")], ITEMS, "has not the item '7'"),
        ([(0, 1, 0, 0.0, "a")], ITEMS, r"not in \(0, 1\]"),
        ([(0, 1, 2, 0.5, "a")], ITEMS, r"click is not in \[0, 1\]"),
        (UNIFORM, "id\n1\n", "has no column 'item_id'"),
        (UNIFORM, ITEMS + "3,2,0.1,x\n", "an item twice"),
    ],
)
def test_a_log_that_does_not_hang_together_is_said(
    tmp_path: Path, rows: list[Row], items: str, said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        Logged(log_of(tmp_path, rows, items))


def test_a_table_that_is_no_log_is_said(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("item_id,click\n1,0\n")
    with pytest.raises(UsageError, match="no column 'propensity_score'"):
        Logged(path)
    path.write_text("item_id,click,propensity_score\n1,maybe,0.5\n")
    with pytest.raises(UsageError, match="'click' has values that are no numbers"):
        Logged(path)
