"""README and docs have the figures of the runs that are kept."""

from pathlib import Path

import pytest

from benchmarks.learning.document import PAGES, RESULTS, TABLE, kept, rewritten


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_tables_are_those_of_the_kept_runs(path: Path) -> None:
    text = path.read_text()
    assert len(TABLE.findall(text)) == text.count("<!-- table ")
    assert rewritten(text, kept(RESULTS)) == text
