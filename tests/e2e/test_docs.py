"""The description of the API in a real browser: whole, from the service alone, and of use."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.cli.forage import Serving

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [pytest.mark.browser, pytest.mark.timeout(420)]


def test_swagger_ui_shows_every_route_and_asks_no_other_host(
    service: Serving, page: "Page", shots: Path
) -> None:
    """The browser's console stays free of errors: the policy of the page's content allows all."""
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"{service.url}/docs")
    page.get_by_role("heading", name="Forage").wait_for()
    document = service.get("/openapi.json")
    operations = [method for methods in document["paths"].values() for method in methods]
    page.locator(".opblock").nth(len(operations) - 1).wait_for()
    page.locator("#operations-decide-select .opblock-summary-control").click()
    page.get_by_role("button", name="Try it out").click()
    page.locator("textarea").fill(json.dumps({"context": {"persona": "cat_connoisseur"}}))
    page.get_by_role("button", name="Execute").click()
    answer = page.locator(".live-responses-table .response-col_description .microlight").first
    answer.wait_for()
    assert '"decision_id"' in answer.inner_text()
    page.screenshot(path=shots / "docs.png")
    assert {url.partition("/docs")[0] for url in asked if url.startswith("http")} <= {
        service.url,
        f"{service.url}/select",
        f"{service.url}/openapi.json",
        f"{service.url}/console/icon.svg",
    }
