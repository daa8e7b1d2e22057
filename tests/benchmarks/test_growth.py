"""What grows is measured along its axes, and a step says how many times dearer twice as much is."""

import json
from pathlib import Path

import pytest

from benchmarks.command import RESULTS
from benchmarks.growth.__main__ import MEASURES, main, sizes_of
from benchmarks.growth.axes import AXES, when_doubled
from benchmarks.growth.catalogue import NAMED, changed, engine, named, shop
from benchmarks.growth.log import EXPERIMENT, Batches
from benchmarks.growth.pictures import picture
from service.log.stores.base import Append, DecisionRow


def test_a_cost_that_grows_with_the_size_doubles_with_it() -> None:
    """Flat, linear and square, over steps of 2 and 8."""
    sizes = [10, 20, 160]
    assert when_doubled(sizes, [5.0, 5.0, 5.0]) == pytest.approx([1, 1])
    assert when_doubled(sizes, [1.0, 2.0, 16.0]) == pytest.approx([2, 2])
    assert when_doubled(sizes, [1.0, 4.0, 256.0]) == pytest.approx([4, 4])


def test_every_axis_is_measured_and_no_size_is_above_the_most() -> None:
    assert list(MEASURES) == list(AXES)
    assert sizes_of("log", 300_000) == (10_000, 100_000, 300_000)
    assert sizes_of("log", 100_000) == (10_000, 100_000)
    assert sizes_of("arms", None) == AXES["arms"].sizes
    with pytest.raises(SystemExit, match="log: growth needs a size above 10,000"):
        sizes_of("log", 10_000)


def test_a_change_of_the_catalogue_is_met_by_the_decision_after_it() -> None:
    state = shop(NAMED + 10)
    position, arms = state.position, len(state.rows)
    work = changed(engine(), state)
    work()
    work()
    assert (state.position, len(state.rows)) == (position + 2, arms)
    named(engine(), state)()
    assert state.position == position + 2


def test_what_fills_a_log_are_decisions_and_a_reward_for_every_fifth() -> None:
    entries, ids = Batches().next(10)
    rows = [entry for entry in entries if isinstance(entry, DecisionRow)]
    rewards = [entry for entry in entries if isinstance(entry, Append)]
    assert [row.id for row in rows] == ids
    assert [one.settles for one in rewards] == [ids[0], ids[5]]
    assert {entry.experiment for entry in entries} == {EXPERIMENT}
    assert all(one.encode() in row.payload for one, row in zip(ids, rows, strict=True))


@pytest.mark.slow
def test_a_quick_run_measures_and_draws_every_axis(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["--quick", "--out", str(tmp_path / "growth.json")])
    found = json.loads((tmp_path / "growth.json").read_text())
    assert list(found["axes"]) == list(AXES)
    for name, axis in found["axes"].items():
        assert axis["sizes"] == list(AXES[name].quick)
        for series in axis["series"].values():
            assert min(series["us"]) > 0
            assert len(series["times_when_doubled"]) == 1
    said = capsys.readouterr()
    assert AXES["log"].title in said.out
    assert "log: round 1 of 1" in said.err
    assert picture(found).startswith(b"\x89PNG")


def test_kept_steps_are_those_of_the_kept_costs() -> None:
    found = json.loads((RESULTS / "growth.json").read_text())
    assert list(found["axes"]) == list(AXES)
    assert found["rounds"] >= 5
    for axis in found["axes"].values():
        for series in axis["series"].values():
            steps = when_doubled(axis["sizes"], series["us"])
            assert series["times_when_doubled"] == pytest.approx(steps)
