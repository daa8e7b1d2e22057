"""A real browser against a real service, each a process of its own.

`page` fails its test where the browser's console has an error that the test did not announce
(`console.expected`, parts of messages).
"""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.cli.forage import Serving, serving

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
OPTIONS = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
NONE = "no Chromium was found: apt-get install chromium, or brew install --cask chromium"
SHOTS = Path(__file__).parents[2] / "out" / "screenshots"


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Serving]:
    """`forage serve` with the pet shop on a free port, its log in a temporary folder."""
    with serving(tmp_path) as running:
        yield running


@pytest.fixture(scope="session")
def browser() -> "Iterator[Browser]":
    """Headless Chromium, the one that is installed."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="pip install 'forage-bandits[docs]'"
    )
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        pytest.fail(NONE)
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=path, args=OPTIONS)
        yield browser
        browser.close()


class Console:
    """What the browser's log said of errors. expected: parts of messages that may be in it."""

    def __init__(self, context: "BrowserContext") -> None:
        self.errors: list[str] = []
        self.expected: list[str] = []
        context.on(
            "console", lambda said: self.errors.append(said.text) if said.type == "error" else None
        )
        context.on("weberror", lambda fault: self.errors.append(str(fault.error)))

    def verify(self) -> None:
        left = [each for each in self.errors if not any(part in each for part in self.expected)]
        assert not left, left


@pytest.fixture
def context(browser: "Browser") -> "Iterator[BrowserContext]":
    """A fresh profile: nothing stored."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(15_000)
    yield context
    context.close()


@pytest.fixture
def console(context: "BrowserContext") -> Iterator[Console]:
    console = Console(context)
    yield console
    console.verify()


@pytest.fixture
def page(context: "BrowserContext", console: Console) -> "Page":
    """An empty page whose console must stay free of errors."""
    return context.new_page()


@pytest.fixture(scope="session")
def shots() -> Path:
    """Where screenshots go, to be looked at."""
    SHOTS.mkdir(parents=True, exist_ok=True)
    return SHOTS
