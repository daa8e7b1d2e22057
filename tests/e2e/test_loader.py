"""A page that takes the SDK from a service which is down, hangs, or comes late."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.cli.forage import serving
from tests.support.ports import free_port

from .test_sdk import ALLOWED_MS, BUDGET_MS, TRIES, answering, pages_of

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route

    from .conftest import Console

pytestmark = pytest.mark.browser

PAGE = """<!doctype html><title>A shop</title><link rel="icon" href="data:,">
<div id="offer"></div>
<script type="module">
  import { loadForage } from "./loader.js";

  const began = performance.now();
  window.sdk = loadForage({
    url: "SERVICE", policy: "lints", context: { persona: "cat_connoisseur" },
    fallback: "4", budgetMs: BUDGET,
  });
  window.first = await sdk.select();
  window.tookMs = performance.now() - began;
  document.querySelector("#offer").textContent = `Product ${first.arm}`;
</script>"""


def page_of(url: str, budget_ms: float = BUDGET_MS) -> str:
    return PAGE.replace("SERVICE", url).replace("BUDGET", str(budget_ms))


class Shop:
    """A shop's own server, at `origin`; `url` is where its page looks for Forage."""

    def __init__(self) -> None:
        self.origin = self.content = ""


@pytest.fixture
def shop() -> Iterator[Shop]:
    shop = Shop()
    with answering(pages_of(lambda: shop.content)) as shop.origin:
        yield shop


def visit(page: "Page", shop: Shop, content: str) -> None:
    shop.content = content
    page.goto(shop.origin)
    page.wait_for_function("document.querySelector('#offer').textContent !== ''")


def expect_fallback(page: "Page", reason: str) -> float:
    """The page shows it; milliseconds until it did."""
    assert page.locator("#offer").inner_text() == "Product 4"
    assert page.evaluate("[first.fallback, first.error.reason]") == [True, reason]
    return float(page.evaluate("tookMs"))


def expect_decided(page: "Page", script: str) -> None:
    decision = page.evaluate(script)
    assert decision["fallback"] is False, decision
    assert 0 < decision["propensity"] <= 1
    assert decision["modelVersion"].startswith("lints/0@")
    assert page.evaluate("(d) => sdk.reward(d, 1)", decision) == "accepted"


def test_with_the_service_down_the_page_shows_its_fallback_and_decides_once_it_is_up(
    tmp_path: Path, shop: Shop, page: "Page", console: "Console"
) -> None:
    console.expected = ["net::ERR_CONNECTION_REFUSED"]
    port = free_port()
    took_ms = []
    for _ in range(TRIES):
        visit(page, shop, page_of(f"http://127.0.0.1:{port}"))
        took_ms.append(expect_fallback(page, "network"))
    assert min(took_ms) < BUDGET_MS + ALLOWED_MS
    with serving(tmp_path, "--port", str(port), FORAGE_CORS_ORIGINS=shop.origin):
        expect_decided(page, "sdk.select({ budgetMs: 15_000 })")


def test_a_script_that_comes_late_decides_from_then_on(
    tmp_path: Path, shop: Shop, page: "Page"
) -> None:
    with serving(tmp_path, FORAGE_CORS_ORIGINS=shop.origin) as service:
        held: list[Route] = []
        page.route("**/sdk/forage.js*", lambda route: held.append(route))
        visit(page, shop, page_of(service.url))
        expect_fallback(page, "timeout")
        [route] = held
        route.continue_()
        expect_decided(page, "sdk.select({ budgetMs: 15_000 })")
        page.unroute("**/sdk/forage.js*")
        visit(page, shop, page_of(service.url, 15_000))
        expect_decided(page, "first")
        assert page.locator("#offer").inner_text() == f"Product {page.evaluate('first.arm')}"
