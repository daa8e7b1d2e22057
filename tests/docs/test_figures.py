"""Pages of measurements have the figures that are kept in benchmarks/results."""

import re
from pathlib import Path

import pytest

from benchmarks.http import document as http
from benchmarks.learning import document as learning
from benchmarks.learning import published


def test_the_page_on_performance_has_the_kept_figures() -> None:
    text = http.PAGE.read_text()
    assert len(http.PART.findall(text)) == text.count("<!-- figures ") > 0
    assert http.rewritten(text, http.results()) == text
    for name in re.findall(r"\(pictures/(\S+)\)", text):
        assert (http.PICTURES / name).exists()


@pytest.mark.parametrize("path", learning.PAGES, ids=lambda path: path.name)
def test_tables_of_policies_have_the_kept_figures(path: Path) -> None:
    text = path.read_text()
    assert len(learning.TABLE.findall(text)) == text.count("<!-- table ")
    assert learning.rewritten(text, published.read(learning.RESULTS)) == text
