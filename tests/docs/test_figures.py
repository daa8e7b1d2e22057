"""The pages with measurements show the figures of benchmarks/results."""

import json
import re
from collections.abc import Callable

from benchmarks import recovery, scoring
from benchmarks.http import __main__ as http
from benchmarks.http import callers, overload
from benchmarks.learning import publish
from benchmarks.tables import PERFORMANCE, RESULTS, Cells, Json, markdown, rewritten

PUBLISHED: dict[str, Callable[[Json], dict[str, Cells]]] = {
    "scoring": scoring.tables,
    "recovery": recovery.tables,
    "http": http.tables,
    "callers": callers.tables,
    "overload": overload.tables,
}


def names_of_tables(text: str) -> list[str]:
    return sorted(re.findall("<!-- figures (.+) -->", text))


def test_the_page_on_performance_has_the_kept_figures() -> None:
    text = PERFORMANCE.read_text()
    found: list[str] = []
    for benchmark, tables in PUBLISHED.items():
        for name, cells in tables(json.loads((RESULTS / f"{benchmark}.json").read_text())).items():
            assert rewritten(text, name, markdown(cells)) == text
            found.append(name)
    assert sorted(found) == names_of_tables(text)


def test_the_page_on_learning_has_the_kept_figures() -> None:
    text = publish.PAGE.read_text()
    tables = publish.page_tables()
    for name, table in tables.items():
        assert rewritten(text, name, table) == text
    assert sorted(tables) == names_of_tables(text)
