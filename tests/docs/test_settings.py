"""The tables of the settings of policies are what the kinds say of themselves."""

from pathlib import Path

import pytest

from tests.docs.settings import POLICIES, TABLES, rewritten


@pytest.mark.parametrize("page", TABLES, ids=lambda page: page.name)
def test_a_page_has_the_tables_that_the_kinds_give(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert rewritten(text, TABLES[page]) == text, "`make settings` writes the tables anew"


def test_a_page_without_a_place_for_a_table_is_refused() -> None:
    with pytest.raises(ValueError, match="no settings 'policies' on the page"):
        rewritten("# Policies", TABLES[POLICIES])
