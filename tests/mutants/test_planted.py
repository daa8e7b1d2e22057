"""Every bug can be planted in the source as it is."""

import shutil
from pathlib import Path

import pytest

from tests.mutants.planted import MUTANTS, Edit, Mutant, NotThere

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_bug_can_be_planted(mutant: Mutant, tmp_path: Path) -> None:
    for file in {edit.file for edit in mutant.edits}:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / file, tmp_path / file)
    mutant.plant(tmp_path)
    for edit in mutant.edits:
        compile((tmp_path / edit.file).read_text(), edit.file, "exec")
    for test in mutant.tests:
        assert (ROOT / test).exists()


def test_a_text_that_is_not_there_once_is_told(tmp_path: Path) -> None:
    (tmp_path / "source.py").write_text("a = 1\na = 1\n")
    for old in ("a = 1", "b = 1"):
        with pytest.raises(NotThere):
            Edit("source.py", old, "").plant(tmp_path)
