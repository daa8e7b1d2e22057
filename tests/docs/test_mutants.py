"""The bugs that `make mutants` plants: their texts are those of the source as it is."""

from pathlib import Path

import pytest

from tests.mutants.planted import MUTANTS, Edit

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "edit", [pytest.param(edit, id=each.name) for each in MUTANTS for edit in each.edits]
)
def test_a_bug_can_be_planted(edit: Edit) -> None:
    assert (ROOT / edit.file).read_text().count(edit.old) == 1
