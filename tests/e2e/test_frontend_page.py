"""docs/frontend.md: its examples run, as they stand there."""

import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.cli.forage import Serving, serving

from .test_sdk import answering, pages_of, until

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.browser

TEXT = (Path(__file__).parents[2] / "docs" / "frontend.md").read_text()
SERVICE = "http://127.0.0.1:8000"
ICON = '<link rel="icon" href="data:,">'


DEFINED = 1
"""The log's position once its experiment is defined."""


def position(service: Serving) -> int:
    return int(service.get("/readyz")["positions"]["zooplus"])


def examples(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


def test_the_page_decides_and_its_elements_reward(tmp_path: Path, page: "Page") -> None:
    [html], scripts = examples("html"), examples("js")
    assert len(scripts) == 5
    blocks = "".join(f"{{\n{script}}}\n" for script in scripts)
    content = html.replace("<script", '<ol id="slate"></ol><script')
    content = content.replace("</script>", f"{blocks}</script>").replace(
        "<title>", f"{ICON}<title>"
    )
    with (
        answering(pages_of(lambda: content)) as origin,
        serving(tmp_path, FORAGE_CORS_ORIGINS=origin) as service,
    ):
        content = content.replace(SERVICE, service.url)
        page.goto(f"{origin}/shop.html")
        page.wait_for_function("document.querySelectorAll('#slate li').length === 3")
        assert page.locator("#offer").inner_text().startswith("Product ")
        assert "undefined" not in page.content()
        page.click("#offer")
        page.locator("#slate li").nth(1).click()
        # A reward by hand, one of a tracked element, one of a ranking.
        until(lambda: position(service) == DEFINED + 3)


def test_the_backend_decides_and_rewards(service: Serving) -> None:
    [source] = examples("python")
    source += "\n\nimport asyncio\n\nprint(asyncio.run(handler()))\n"
    ended = subprocess.run(
        [sys.executable, "-c", source.replace(SERVICE, service.url)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    first, second = ended.stdout.splitlines()
    assert re.fullmatch(r"\d+ [\d.e-]+ \w+/0@\d+", first)
    assert second.isdecimal()
    assert position(service) == DEFINED + 2
