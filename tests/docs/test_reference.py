"""docs/experiment.md is what the models say, and says something of each setting."""

import re

from service.definition.reference import reference
from service.maintenance.checking import check
from tests.docs.page import DOCS, blocks

PAGE = DOCS / "experiment.md"


def test_the_page_is_that_of_the_models() -> None:
    """Where it is not: make reference."""
    assert PAGE.read_text(encoding="utf-8") == reference()


def test_every_setting_has_a_meaning() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.*) \| (.*) \| (.*) \|$", reference(), re.MULTILINE)
    assert len(rows) > 80
    assert [name for name, *told in rows if not all(told)] == []


def test_its_example_is_valid() -> None:
    [example] = [block for block in blocks(PAGE) if block.language == "toml"]
    assert check(example.text, "shop.toml", "shop").findings == []
