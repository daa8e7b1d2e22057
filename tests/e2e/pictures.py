"""Take the screenshots of README and docs from a running service: `make pictures`.

Three policies learn a pet shop for two minutes (the console), while a shopper clicks in the demo
shop. Each image stays small enough for git.
"""

import io
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from PIL import Image
from playwright.sync_api import sync_playwright

from tests.cli.forage import Serving, environment, serving
from tests.e2e.conftest import BROWSERS, NONE, OPTIONS
from tests.e2e.test_shop import Shopper

if TYPE_CHECKING:
    from playwright.sync_api import Page

PICTURES: Final = Path(__file__).parents[2] / "docs" / "pictures"
CONSOLE_SIZE: Final = (1440, 927)
SHOP_SIZE: Final = (1320, 850)
MOST_BYTES: Final = 300_000
EXPERIMENT: Final = "petshop"
POLICIES: Final = ("linucb", "lints", "random")
VISITS, RATE = 1_440, 12  # of each policy, a second
REPLAY_S: Final = 240.0
SETTLE_MS: Final = 6_000  # one sample of the console, and one more
PRODUCTS: Final = 80  # that the shopper of the demo judges
PERSONA: Final = "cat_connoisseur"


def replay(service: Serving, folder: Path) -> "subprocess.Popen[bytes]":
    """Visitors of the console's experiment, until they are through."""
    command = [sys.executable, "-m", "simulator_client", "replay", "--url", service.url]
    command += ["--experiment", EXPERIMENT, "--policies", ",".join(POLICIES)]
    command += ["--visits", str(VISITS), "--rate", str(RATE), "--out", str(folder / "replay")]
    return subprocess.Popen(
        command, cwd=folder, env=environment(), stdout=subprocess.DEVNULL, stderr=sys.stderr
    )


def shop(page: "Page", service: Serving) -> None:
    """The demo shop once it knows its shopper."""
    page.goto(f"{service.url}/demo")
    shopper = Shopper(page, PERSONA)
    while shopper.judged < PRODUCTS:
        shopper.look()
    page.mouse.move(0, 0)
    page.wait_for_selector("#offers[aria-busy=false] .offer.seen")
    keep(page, "shop")


def console(page: "Page", service: Serving) -> None:
    """The overview of an experiment whose policies have learned."""
    page.goto(f"{service.url}/#/{EXPERIMENT}/overview")
    page.locator(".plot canvas").first.wait_for(timeout=60_000)
    page.wait_for_timeout(SETTLE_MS)
    keep(page, "console")


def keep(page: "Page", name: str) -> None:
    """Write the viewport as docs/pictures/NAME.png."""
    image = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    path = PICTURES / f"{name}.png"
    image.save(path, optimize=True)
    size = path.stat().st_size
    assert size < MOST_BYTES, f"{path} has {size:,} bytes"


def main() -> None:
    """Serve, play, take both."""
    browser_path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser_path is None:
        raise SystemExit(NONE)
    with tempfile.TemporaryDirectory() as place, sync_playwright() as playwright:
        folder = Path(place)
        with serving(folder) as service:
            visitors = replay(service, folder)
            try:
                browser = playwright.chromium.launch(executable_path=browser_path, args=OPTIONS)
                width, height = SHOP_SIZE
                shop(browser.new_page(viewport={"width": width, "height": height}), service)
                if visitors.wait(REPLAY_S):
                    raise SystemExit("the visitors of the console ended with an error")
                width, height = CONSOLE_SIZE
                console(browser.new_page(viewport={"width": width, "height": height}), service)
                browser.close()
            finally:
                visitors.kill()
                visitors.wait()


if __name__ == "__main__":
    main()
