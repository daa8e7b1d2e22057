"""README and docs have the figures of the runs that are kept."""

import re
from pathlib import Path

import pytest

from benchmarks.learning.document import PAGES, RESULTS, TABLE, kept, rewritten


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_tables_are_those_of_the_kept_runs(path: Path) -> None:
    text = path.read_text()
    assert len(TABLE.findall(text)) == text.count("<!-- table ")
    assert rewritten(text, kept(RESULTS)) == text


def test_a_figure_that_is_not_that_of_the_runs_is_written_anew() -> None:
    (path, _) = PAGES
    text = path.read_text()
    changed = re.sub(r"0\.5073 ±", "0.6073 ±", text)
    assert changed != text
    assert rewritten(changed, kept(RESULTS)) == text


def test_a_case_without_runs_is_an_error() -> None:
    with pytest.raises(KeyError, match="nowhere"):
        rewritten("<!-- table nowhere -->\n<!-- /table -->", {})
