"""Marks of what there is to learn: one fixed arm, and classifiers that are told every label."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.learning import overview
from benchmarks.learning.course import chance, play
from benchmarks.learning.peers import PEERS, LeftOut
from benchmarks.learning.peers.marks import FixedArm, Labels, Skyline
from benchmarks.learning.runs import Case, Run, origin_of
from benchmarks.learning.standing import Entry, Standing
from benchmarks.learning.worlds import world_of
from service.features.schema import Array
from simulator_client.worlds.classification import Classification

VISITS = 40


class Recalling:
    """Gives a row the label of the nearest row that it was fitted to, the latest of several.

    calls   notes fits and rows

    wrong   gives the next label instead
    """

    def __init__(self, calls: list[tuple[int, int]], *, wrong: bool) -> None:
        self.calls, self.wrong = calls, wrong

    def fit(self, x: Array, labels: Labels) -> None:
        self.classes_, self.own = np.unique(labels[::-1], return_inverse=True)
        self.x = x[::-1]

    def predict_proba(self, x: Array) -> Array:
        self.calls.append((len(self.x), len(x)))
        nearest = np.abs(x[:, None] - self.x).sum(axis=2).argmin(axis=1)
        return np.eye(len(self.classes_))[self.own[nearest] - self.wrong]


def squares(folder: Path, rows: int = VISITS) -> Classification:
    """Three classes, which the number next to them tells."""
    path = folder / "squares.csv"
    path.write_text("x,label\n" + "".join(f"{k % 3},c{k % 3}\n" for k in range(rows)))
    return Classification(path)


def earned(world: Any, agent: Any, visits: int) -> list[float]:
    expected: list[float] = play(world, agent, 1, visits).expected.tolist()
    return expected


def test_the_fixed_arm_is_the_best_one_of_the_visits_in_hindsight() -> None:
    world = world_of("zooplus", 42)
    stream = world.stream(3)
    users = [stream.visit(number).user for number in range(VISITS)]
    sums = [
        sum(world.click_probability(user, arm) for user in users)  # type: ignore[attr-defined]
        for arm in map(str, range(50))
    ]
    course = play(world, FixedArm(world, 3, VISITS), 3, VISITS)
    assert course.expected.sum() == pytest.approx(max(sums))
    assert course.expected.sum() < course.best.sum()


@pytest.mark.parametrize("seed", [1, 2])
def test_the_fixed_arm_follows_the_seed_of_two_arms(seed: int) -> None:
    world = world_of("two_arms", 42)
    assert set(play(world, FixedArm(world, seed, 5), seed, 5).expected) == {0.5}


def test_no_arm_is_fixed_where_each_request_names_its_own() -> None:
    with pytest.raises(LeftOut, match="names arms of its own"):
        FixedArm(world_of("ranking", 42), 1, 5)


def test_the_skyline_is_fitted_at_powers_of_two_to_the_rows_before(tmp_path: Path) -> None:
    world, calls = squares(tmp_path), list[tuple[int, int]]()
    skyline = Skyline(world, 1, VISITS, lambda _: [Recalling(calls, wrong=False)])
    rewards = earned(world, skyline, VISITS)
    labels = [world.labels[world.stream(1).visit(n).row] for n in range(VISITS)]
    fits = [n for n in (1, 2, 4, 8, 16, 32) if len(set(labels[:n])) > 1]
    assert calls == [(n, min(n, VISITS - n)) for n in fits]
    for number in range(1, VISITS):
        fitted = 2 ** (number.bit_length() - 1)
        assert rewards[number] == (labels[number] in labels[:fitted]), number


def test_the_skyline_knows_no_label_of_its_own_visit_or_later(tmp_path: Path) -> None:
    """Labels after visit 20 are others: the choices up to visit 31 stay, as the last fit is that to
    16 visits."""
    worlds = [squares(tmp_path), squares(tmp_path)]
    stream = worlds[0].stream(1)
    for number in range(20, VISITS):
        worlds[1].labels[stream.visit(number).row] = "c0"
    shown = []
    for world in worlds:
        skyline = Skyline(world, 1, VISITS, lambda _: [Recalling([], wrong=False)])
        shown.append([skyline.show({}, chance(1, number)) for number in range(VISITS)])
    assert shown[0][:32] == shown[1][:32]
    assert shown[0] != shown[1]


@pytest.mark.parametrize("order", [(False, True), (True, False)])
def test_the_skyline_asks_the_classifier_that_earned_more(
    tmp_path: Path, order: Sequence[bool]
) -> None:
    world = squares(tmp_path)
    agent = Skyline(world, 1, VISITS, lambda _: [Recalling([], wrong=each) for each in order])
    assert earned(world, agent, VISITS)[16:] == [1.0] * (VISITS - 16)


def test_the_skyline_weighs_what_labels_pay(tmp_path: Path) -> None:
    """Eating pays 5 or on average -15: at a chance of .3 of poison the skyline passes."""
    path = tmp_path / "mushroom.csv"
    path.write_text("x,label\n" + "".join(f"{k},edible\n{-k},poisonous\n" for k in range(20)))

    class Unsure(Recalling):
        def predict_proba(self, x: Array) -> Array:
            return np.tile([1 - self.poison, self.poison], (len(x), 1))

        poison = 0.3

    world = Classification(path)
    for poison, arm in ((0.3, "pass"), (0.2, "eat")):
        Unsure.poison = poison
        skyline = Skyline(world, 1, VISITS, lambda _: [Unsure([], wrong=False)])
        shown = [skyline.show({}, chance(1, number)) for number in range(VISITS)]
        assert shown[16:] == [[arm]] * (VISITS - 16)


def test_the_skyline_is_left_out_where_the_best_choice_is_known() -> None:
    with pytest.raises(LeftOut, match="the best choice is known"):
        Skyline(world_of("drift", 42), 1, 5)


@pytest.mark.statistics
def test_the_skyline_of_scikit_learn_learns_what_its_forest_or_its_regression_can(
    tmp_path: Path,
) -> None:
    path = tmp_path / "ring.csv"
    x = np.random.default_rng(0).uniform(-1, 1, (400, 2)).round(3)
    rows = (f"{a},{b},{'in' if a * a + b * b < 0.6 else 'out'}\n" for a, b in x)
    path.write_text("x,y,label\n" + "".join(rows))
    case = Case("classification", 400, data=path)
    world = case.make()
    run = Run(case, "skyline", 1, origin_of(world, "skyline", {}))
    rewards = earned(world, run._agent(world), 400)
    assert np.mean(rewards[256:]) > 0.85  # a straight line has .6
    assert run.replay() == sum(rewards)


# -- their rows ------------------------------------------------------------------------------------


def standing(case: Case, regrets: dict[str, float]) -> Standing:
    entries = {
        agent: Entry("somebody", f"commit of {agent}", 0.0, {"relative_regret": 2 * [regret]}, {})
        for agent, regret in regrets.items()
    }
    return Standing(case, entries)


def test_marks_stand_first_and_last_and_are_no_competitors() -> None:
    found = standing(Case("drift", 10), {"auto": 9.0, "skyline": 1.0, "uniform": 100.0})
    found.entries["fixed_arm"] = replace(found.entries["uniform"])
    assert found.ranked == ["fixed_arm", "auto", "uniform", "skyline"]
    assert found.peers == ["uniform"]


def test_marks_are_in_the_table_of_all_worlds_where_they_played() -> None:
    both = {"auto": 9.0, "uniform": 100.0, "fixed_arm": 70.0}
    tables = overview.tables(
        [
            standing(Case("drift", 10), both),
            standing(Case("payments", 10), both | {"skyline": 4.0, "vw_bag5": 1.0}),
        ]
    )
    head, *rows = tables["regret"]
    assert head == ["agent", "mean", "drift", "payments", "commit"]
    assert rows == [
        ["fixed_arm", "70.0", "70.0", "70.0", "commit of fixed_arm"],
        ["`auto`", "9.0", "9.0", "9.0", "commit of auto"],
        ["uniform", "100.0", "100.0", "100.0", "commit of uniform"],
        ["skyline", "-", "-", "4.0", "commit of skyline"],
    ]
    assert [row[3] for row in tables["auto"][1:]] == ["`auto`", "`auto`"]
    assert PEERS["skyline"].informed
