"""The demo shop in a real browser: what a kind of shopper clicks is what the shop comes to show."""

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from simulator_client.worlds.zooplus import CLICK_CHANCE, PERSONAS
from tests.cli.forage import Serving, serving

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from .conftest import Console

pytestmark = pytest.mark.browser

CATALOGUE = Path(__file__).parents[2] / "service" / "http" / "static" / "demo" / "catalogue.json"
PRODUCTS = 300
LAST_PAGES = 30
ON = "#offers[aria-busy=false]"
LEFT = f"{ON} .offer:not(.passed):not(.taken)"


class Shopper:
    """Looks at products from the first down and clicks at a persona's rates, but without luck: so
    often and evenly, that what the shop learns depends on the service alone."""

    def __init__(self, page: "Page", persona: str) -> None:
        self._page, self._rates = page, CLICK_CHANCE[persona]
        self._due = dict.fromkeys(self._rates, 0.0)
        self.firsts: list[str] = []
        self.judged = 0
        page.get_by_role("radio", name=persona.replace("_", " ")).check()
        self._next_page(-1)

    def _next_page(self, shown: int) -> None:
        self._page.wait_for_function(
            "shown => { const o = document.querySelector('#offers');"
            " return o.ariaBusy === 'false' && Number(o.dataset.page) > shown }",
            arg=shown,
        )

    def look(self) -> None:
        """One page of recommendations, down to the first product that is taken."""
        shown = int(self._page.get_attribute("#offers", "data-page") or 0)
        offers = self._page.locator(".offer")
        kinds = offers.evaluate_all("all => all.map(each => each.dataset.category)")
        self.firsts.append(kinds[0])
        for place, kind in enumerate(kinds):
            self.judged += 1
            self._due[kind] += self._rates[kind]
            taken = self._due[kind] >= 1
            name = "Add to basket" if taken else "Not for me"
            offers.nth(place).get_by_role("button", name=name).click()
            if taken:
                self._due[kind] -= 1
                break
        self._next_page(shown)


@pytest.mark.timeout(900)
def test_each_persona_is_shown_its_favourite_after_300_products(
    service: Serving, page: "Page", shots: Path
) -> None:
    page.goto(f"{service.url}/demo")
    for persona in PERSONAS:
        shopper = Shopper(page, persona)
        while shopper.judged < PRODUCTS:
            shopper.look()
        best = max(CLICK_CHANCE[persona], key=lambda kind: CLICK_CHANCE[persona][kind])
        [(most, pages), *_] = Counter(shopper.firsts[-LAST_PAGES:]).most_common(1)
        assert most == best, shopper.firsts
        assert pages > LAST_PAGES / 2, shopper.firsts
        shown = page.locator(f"#shares tr[data-category='{best}']").get_attribute("data-share")
        assert float(shown or 0) > 0.5, "the page's own figures say so too"
        page.screenshot(path=shots / f"shop-{persona}.png", full_page=True)
    position = service.get("/readyz")["positions"]["zooplus"]
    assert position >= 4 * PRODUCTS / 4, "pages were rewarded at the service"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_the_shop_fits_and_says_who_decided(
    service: Serving, page: "Page", shots: Path, scheme: str, width: int
) -> None:
    page.set_viewport_size({"width": width, "height": 844})
    page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    page.goto(f"{service.url}/demo")
    page.wait_for_selector(f"{ON} .offer.seen")
    for _ in range(6):
        shown = int(page.get_attribute("#offers", "data-page") or 0)
        page.locator(LEFT).nth(1).get_by_role("button", name="Add to basket").click()
        page.wait_for_selector(f"{ON}[data-page='{shown + 1}'] .offer")
    facts = page.locator("#decision").inner_text()
    assert "auto/0@" in facts
    assert "%" in page.locator(".offer .chance").first.inner_text()
    page.wait_for_selector(f"{ON} .offer.seen")
    page.screenshot(path=shots / f"shop-{width}-{scheme}.png", full_page=True)
    long_visit = "all => all.forEach(each => (each.textContent = '1234/5678'))"
    page.locator("#shares td:nth-child(3)").evaluate_all(long_visit)
    wide = page.evaluate("document.documentElement.scrollWidth")
    assert wide <= width, "nothing to scroll sideways"
    inside = "one => one.scrollWidth <= one.clientWidth"
    assert page.locator("aside").evaluate(inside), "the table stays in its column"


def test_a_keyboard_is_enough(service: Serving, page: "Page") -> None:
    page.goto(f"{service.url}/demo")
    page.wait_for_selector(f"{ON} .offer")
    page.get_by_role("radio", name="new puppy parent").focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_selector(f"{ON}[data-page='2'] .offer")
    assert page.get_by_role("radio", name="cat connoisseur").is_checked()
    page.locator(".offer button").first.focus()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert page.locator(".offer.passed").count() == 1
    focused = "document.activeElement.closest('.offer:not(.passed)') !== null"
    assert page.evaluate(focused), "the focus goes to the next product"
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Enter")
    page.wait_for_selector(f"{ON}[data-page='3'] .offer")
    assert page.locator("#basket").inner_text() == "1"
    assert page.evaluate(focused), "and stays among the products on the next page"


def test_a_shopper_clicks_by_itself_until_it_is_stopped(service: Serving, page: "Page") -> None:
    page.goto(f"{service.url}/demo")
    page.wait_for_selector(f"{ON} .offer")  # before, nothing listens to the button
    page.get_by_role("button", name="Let a shopper click").click()
    page.wait_for_function(
        "() => Number(document.querySelector('#offers').dataset.page) >= 4", timeout=60_000
    )
    page.get_by_role("button", name="Stop the shopper").click()
    page.wait_for_timeout(1_500)
    before = page.get_attribute("#offers", "data-page")
    page.wait_for_timeout(1_000)
    assert page.get_attribute("#offers", "data-page") == before


def test_with_the_service_down_the_shop_shows_bestsellers_and_comes_back(
    tmp_path: Path, page: "Page", console: "Console", shots: Path
) -> None:
    console.expected = ["net::ERR_CONNECTION_REFUSED", "503"]  # while it starts
    with serving(tmp_path) as first:
        page.goto(f"{first.url}/demo")
        page.wait_for_selector(f"{ON} .offer")
        assert first.stop() == 0
        port = first.url.rpartition(":")[2]
        page.get_by_role("radio", name="fish hobbyist").check()
        page.get_by_role("alert").wait_for()
        assert "cannot be reached" in page.get_by_role("alert").inner_text()
        arms = page.locator(".offer").evaluate_all("all => all.map(each => each.dataset.arm)")
        assert arms == json.loads(CATALOGUE.read_text())["bestsellers"]
        page.screenshot(path=shots / "shop-down.png", full_page=True)
        page.locator(".offer button").first.click()
    with serving(tmp_path, "--port", port):
        page.get_by_role("alert").wait_for(state="hidden")
        assert "auto" in page.locator("#decision").inner_text()
