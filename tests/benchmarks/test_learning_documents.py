"""The page on policies has the published figures, and these are those of raw runs."""

from pathlib import Path

import pytest

from benchmarks.learning import published
from benchmarks.learning.document import PAGES, RESULTS, TABLE, rewritten
from benchmarks.learning.pictures import bands_of
from benchmarks.learning.runs import Case, Run
from benchmarks.learning.tables import Standing


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_tables_are_those_of_the_published_figures(path: Path) -> None:
    text = path.read_text()
    assert len(TABLE.findall(text)) == text.count("<!-- table ")
    assert rewritten(text, published.read(RESULTS)) == text


def test_what_is_published_of_runs_is_read_as_it_was(tmp_path: Path) -> None:
    case = Case("zooplus", 120)
    for seed in (1, 2):
        Run(case, "linucb", seed, {"kind": "linucb"}).play(tmp_path / "raw")
        Run(case, "uniform", seed, None).play(tmp_path / "raw")
    played: dict[str, Standing] = {}
    published.replace(played, tmp_path / "raw")
    published.write(played, tmp_path / "kept", {case.name})
    assert [path.name for path in (tmp_path / "kept").iterdir()] == [f"{case.name}.json"]
    (read,) = published.read(tmp_path / "kept").values()
    for agent in ("linucb", "uniform"):
        assert read.figure(agent, "expected_ctr") == (
            played[case.name].figure(agent, "expected_ctr")
        )
        assert read.bands[agent] == bands_of(played[case.name], agent)


def test_raw_runs_replace_an_agent_whole(tmp_path: Path) -> None:
    case = Case("zooplus", 40)
    played: dict[str, Standing] = {}
    for seed in (1, 2):
        Run(case, "uniform", seed, None).play(tmp_path / "first")
    published.replace(played, tmp_path / "first")
    Run(case, "uniform", 3, None).play(tmp_path / "second")
    published.replace(played, tmp_path / "second")
    assert [run["seed"] for run in played[case.name].runs["uniform"]] == [3]
