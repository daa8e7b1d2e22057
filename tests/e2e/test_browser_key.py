"""A service that asks for keys, and pages with a public one: shop, SDK and beacons."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.cli.forage import serving, started
from tests.support.ports import free_port

from .test_sdk import PAGE, answering, connect, pages_of

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from .conftest import Console

pytestmark = pytest.mark.browser


def browser_key(folder: Path, origin: str, *profile: str) -> str:
    """A key for pages of `origin`, in the folder's keys.json."""
    made = started(
        "keys", "add", "--keys", str(folder / "keys.json"), "--name", "shop-web",
        "--scopes", "select,reward", "--experiments", "zooplus", "--origins", origin, *profile,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    [key] = [word for word in made.stdout.split() if word.startswith("fk_")]
    return key


def keyed(folder: Path) -> dict[str, str]:
    return {"FORAGE_KEYS": str(folder / "keys.json")}


def test_the_shop_asks_for_a_key_and_goes_on_with_it(
    tmp_path: Path, page: "Page", console: "Console", shots: Path
) -> None:
    console.expected = ["401"]
    port = free_port()
    key = browser_key(tmp_path, f"http://127.0.0.1:{port}", "--policies", "named")
    with serving(tmp_path, "--port", str(port), **keyed(tmp_path)) as service:
        page.goto(f"{service.url}/demo")
        assert "wants a key" in page.get_by_role("alert").inner_text()
        page.screenshot(path=shots / "shop-key.png", full_page=True)
        page.get_by_label("Browser key").fill(key)
        page.get_by_role("button", name="Use it").click()
        page.get_by_role("alert").wait_for(state="hidden")
        assert "auto" in page.locator("#decision").inner_text()


def test_a_page_with_its_key_decides_rewards_and_leaves(
    tmp_path: Path, page: "Page", console: "Console"
) -> None:
    console.expected = ["net::ERR_FAILED"]
    with answering(pages_of(lambda: PAGE)) as origin:
        key = browser_key(tmp_path, origin)
        settings = {**keyed(tmp_path), "FORAGE_CORS_ORIGINS": origin}
        with serving(tmp_path, **settings) as service:
            page.goto(origin)
            connect(page, service.url, key=key, policy=None, experiment="zooplus", deferred=True)
            decision = page.evaluate("sdk.select()")
            assert decision["fallback"] is False, decision
            assert page.evaluate("(d) => sdk.reward(d, 1)", decision) == "accepted"
            late = page.evaluate("sdk.select()")
            page.route(f"{service.url}/decisions/**", lambda route: route.abort())
            page.evaluate("(d) => { sdk.reward(d, 1) }", late)
            page.wait_for_function("sdk.pending() === 2")
            page.goto(f"{origin}/elsewhere")
            page.unroute(f"{service.url}/decisions/**")
            page.wait_for_timeout(1_000)  # a beacon brings no answer
            connect(page, service.url, key=key, policy=None, experiment="zooplus")
            assert page.evaluate("(d) => sdk.reward(d, 1)", late) == "duplicate"
