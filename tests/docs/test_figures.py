"""The pages with measurements show the figures of benchmarks/results."""

import json
import re
from collections.abc import Callable

from benchmarks import deciders, following, recovery, scoring, sharing
from benchmarks.http import __main__ as http
from benchmarks.http import callers, overload
from benchmarks.learning import publish
from benchmarks.tables import PERFORMANCE, RESULTS, Cells, Json, measured, rewritten
from tests.docs.page import ROOT

PUBLISHED: dict[str, Callable[[Json], dict[str, Cells]]] = {
    "scoring": scoring.tables,
    "following": following.tables,
    "deciders": deciders.tables,
    "sharing": sharing.tables,
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
        results = json.loads((RESULTS / f"{benchmark}.json").read_text())
        for name, cells in tables(results).items():
            assert rewritten(text, name, measured(cells, results["commit"])) == text
            found.append(name)
    assert sorted(found) == names_of_tables(text)


def test_the_page_on_learning_has_the_kept_figures() -> None:
    text = publish.PAGE.read_text()
    tables = publish.page_tables()
    for name, table in tables.items():
        assert rewritten(text, name, table) == text
    assert sorted(tables) == names_of_tables(text)


def test_the_readme_quotes_the_page_on_learning() -> None:
    _, _, *rows = (line.split("|") for line in publish.page_tables()["regret"].splitlines())
    # A mark that did not play every world has no mean.
    mean = {row[1].strip(): float(row[2]) for row in rows if row[2].strip() != "-"}
    linucb = min(mean[name] for name in mean if name.startswith("linucb_alpha"))
    vowpal_wabbit = min(mean[name] for name in mean if name.startswith("vw_"))
    text = (ROOT / "README.md").read_text()
    assert f"loses {mean['`auto`']} percent of what random choice loses" in text
    assert f"loses {linucb}, and the best explorer of Vowpal Wabbit {vowpal_wabbit} " in text
