"""The pages with measurements show the figures of benchmarks/results."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import recovery, scoring
from benchmarks.http import document as http
from benchmarks.learning import document as learning
from benchmarks.learning import published
from benchmarks.tables import PERFORMANCE, RESULTS, Cells, Json, markdown, rewritten

PUBLISHED: dict[str, Callable[[Json], dict[str, Cells]]] = {
    "scoring": scoring.tables,
    "recovery": recovery.tables,
}


def test_the_page_on_performance_has_the_kept_figures() -> None:
    text = PERFORMANCE.read_text()
    assert http.rewritten(text, http.results()) == text
    found = set(http.PARTS)
    for benchmark, tables in PUBLISHED.items():
        for name, cells in tables(json.loads((RESULTS / f"{benchmark}.json").read_text())).items():
            assert rewritten(text, name, markdown(cells)) == text
            found.add(name)
    assert found == set(re.findall("<!-- figures (.+) -->", text))


@pytest.mark.parametrize("path", learning.PAGES, ids=lambda path: path.name)
def test_tables_of_policies_have_the_kept_figures(path: Path) -> None:
    text = path.read_text()
    assert len(learning.TABLE.findall(text)) == text.count("<!-- table ")
    assert learning.rewritten(text, published.read(learning.RESULTS)) == text
