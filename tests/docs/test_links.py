"""Every relative link of the documentation leads to a file, every anchor to a heading."""

from pathlib import Path

import pytest

from tests.docs.page import DOCS, ROOT, anchors, links

PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
SDK = ROOT / "service" / "http" / "static" / "sdk" / "README.md"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    lost = []
    for link in links(page):
        target, _, anchor = link.partition("#")
        if "://" in target or target.startswith("mailto:"):
            continue
        file = (page.parent / target).resolve() if target else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            lost.append(link)
    assert lost == []


def test_the_index_names_every_page() -> None:
    named = {(DOCS / link).resolve() for link in links(DOCS / "README.md")}
    pages = {page.resolve() for page in DOCS.glob("*.md") if page.name != "README.md"}
    assert pages - named == set()
