"""The code gives the rows of docs/learning.md again: their first visits, played once more."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.learning.publish import LEARNING, fault, publish
from benchmarks.learning.runs import OPENING, Case, Run, origin_of
from benchmarks.learning.standing import Entry, Standing, read
from simulator_client.errors import UsageError

COMMIT = "0123456789"


def published() -> Iterator[tuple[Case, str, Entry]]:
    for path in sorted(LEARNING.glob("*.json")):
        standing = read(path)
        for agent, entry in standing.entries.items():
            yield standing.case, agent, entry


def replayable() -> Iterator[object]:
    """Rows of worlds that are made up, and of data sets in the folder FORAGE_TEST_DATA_SETS."""
    folder = os.environ.get("FORAGE_TEST_DATA_SETS")
    for case, agent, entry in published():
        name = f"{case.name}: {agent}"
        if case.data is None:
            yield pytest.param(case, agent, entry, id=name)
        elif folder is not None:
            found = replace(case, data=Path(folder) / case.data)
            yield pytest.param(found, agent, entry, id=name)


@pytest.mark.statistics
@pytest.mark.parametrize(("case", "agent", "entry"), list(replayable()))
def test_the_code_gives_the_first_digits_of_a_published_row(
    case: Case, agent: str, entry: Entry
) -> None:
    assert fault(case, agent, entry) is None


def test_every_published_row_has_its_commit() -> None:
    for case, agent, entry in published():
        assert entry.commit, f"{case.name}: {agent}"


def played(folder: Path, commit: str | None = COMMIT) -> Standing:
    """`random` between two arms, a little longer than its short replay."""
    case = Case("two_arms", OPENING + 10)
    run = Run(case, "random", 1, origin_of(case.make(), "random", {}))
    standing = Standing(case)
    standing.add([run.play(folder) | {"commit": commit}])
    return standing


def test_the_short_replay_of_a_run_is_its_beginning(tmp_path: Path) -> None:
    standing = played(tmp_path)
    entry = standing.entries["random"]
    # 500 arms of .45 or .50
    assert entry.opening == pytest.approx(237.5, abs=5)
    assert fault(standing.case, "random", entry) is None


def test_a_row_that_the_code_does_not_give_is_not_published(tmp_path: Path) -> None:
    standing = played(tmp_path)
    entry = standing.entries["random"]
    right = entry.opening
    entry.opening += 0.05
    with pytest.raises(UsageError) as error:
        publish([standing])
    said = str(error.value)
    assert "two_arms-w42-v510: random: " in said
    assert f"the code gives {right} " in said
    assert f"the record has {entry.opening}" in said
    assert not (LEARNING / "two_arms-w42-v510.json").exists()


def test_a_row_of_uncommitted_code_is_not_published(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="two_arms-w42-v510: random: no commit has the code"):
        publish([played(tmp_path, commit=None)])


def test_a_row_of_settings_without_a_name_is_not_published(tmp_path: Path) -> None:
    standing = played(tmp_path)
    standing.entries["mine"] = standing.entries.pop("random")
    with pytest.raises(UsageError, match="nobody can play it again by this name: unknown policy"):
        publish([standing])
