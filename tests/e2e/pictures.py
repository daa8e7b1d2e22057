"""Take the screenshots of README and docs from a running service: `make pictures`.

Visitors come to a pet shop for two minutes, where two policies learn beside a control (the
console), while a shopper clicks in the demo shop. Each image stays small enough for git.
"""

import io
import shutil
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Final

from PIL import Image
from playwright.sync_api import sync_playwright

from benchmarks import pictured
from simulator_client.worlds.zooplus import Zooplus
from tests.cli.forage import Serving, serving
from tests.e2e.conftest import BROWSERS, NONE, OPTIONS
from tests.e2e.test_shop import Shopper

if TYPE_CHECKING:
    from playwright.sync_api import Page

CONSOLE_SIZE: Final = (1440, 927)
SHOP_SIZE: Final = (1320, 850)
MOST_BYTES: Final = 300_000
EXPERIMENT: Final = "petshop"
CONTROL: Final = "random"
POLICIES: Final = ("linucb", "lints", CONTROL)
VISITS, RATE = 4_800, 40  # a second
SEED: Final = 1
VERDICT_MS: Final = 60_000
SETTLE_MS: Final = 6_000  # one sample of the console, and one more
PRODUCTS: Final = 80  # that the shopper of the demo judges
PERSONA: Final = "cat_connoisseur"


def visit(service: Serving) -> None:
    """Play visitors whose policy the service draws, as a verdict needs it."""
    world = Zooplus()
    definition = world.definition(POLICIES) | {"control": CONTROL}
    service.client.put(f"/experiments/{EXPERIMENT}", json=definition).raise_for_status()
    stream, began = world.stream(SEED), time.monotonic()
    for number in range(VISITS):
        time.sleep(max(began + number / RATE - time.monotonic(), 0))
        visitor = stream.visit(number)
        question = {"experiment": EXPERIMENT, "unit": f"visitor-{visitor.user}"}
        decision = service.post("/select", question | world.request(visitor))
        outcome = world.outcome(visitor, [decision["arm"]])
        service.post(
            "/reward", {"decision_id": decision["decision_id"], **(outcome.feedback or {})}
        )


def shop(page: "Page", service: Serving) -> None:
    """The demo shop once it knows its shopper."""
    page.goto(f"{service.url}/demo")
    shopper = Shopper(page, PERSONA)
    while shopper.judged < PRODUCTS:
        shopper.look()
    page.mouse.move(0, 0)
    page.wait_for_selector("#offers[aria-busy=false] .offer.seen")
    shoot(page, "shop")


def console(page: "Page", service: Serving) -> None:
    """The overview of an experiment whose policies earn more than the control."""
    page.goto(f"{service.url}/#/{EXPERIMENT}/overview")
    page.locator(".verdict[data-state=better] .plot canvas").wait_for(timeout=VERDICT_MS)
    page.wait_for_timeout(SETTLE_MS)
    shoot(page, "console")


def shoot(page: "Page", name: str) -> None:
    """Write the viewport as docs/pictures/NAME.png."""
    image = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    path = pictured.PICTURES / f"{name}.png"
    pictured.keep(image, path)
    size = path.stat().st_size
    assert size < MOST_BYTES, f"{path} has {size:,} bytes"


def main() -> None:
    """Serve, let visitors come, take both."""
    browser_path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser_path is None:
        raise SystemExit(NONE)
    with (
        tempfile.TemporaryDirectory() as folder,
        sync_playwright() as playwright,
        serving(Path(folder)) as service,
        ThreadPoolExecutor(1) as street,
    ):
        visits = street.submit(visit, service)
        browser = playwright.chromium.launch(executable_path=browser_path, args=OPTIONS)
        width, height = SHOP_SIZE
        shop(browser.new_page(viewport={"width": width, "height": height}), service)
        visits.result()
        width, height = CONSOLE_SIZE
        console(browser.new_page(viewport={"width": width, "height": height}), service)
        browser.close()


if __name__ == "__main__":
    main()
