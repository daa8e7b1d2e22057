"""The SDK on a page of another origin, in a real browser.

The page comes from a server of its own, whose origin is listed at the service.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.cli.forage import Serving, serving

if TYPE_CHECKING:
    from playwright.sync_api import Page, Request

    from .conftest import Console

pytestmark = pytest.mark.browser

SDK = Path(__file__).parents[2] / "service" / "http" / "static" / "sdk"
BUDGET_MS = 300
ALLOWED_MS = 50
"""What a timer may be late, in the best of TRIES: a busy machine holds up any of them."""
TRIES = 4

PAGE = """<!doctype html><title>A shop</title><link rel="icon" href="data:,">
<style>#offer { height: 200px } #space { height: 3000px }</style>
<div id="offer">offer</div><div id="space"></div><div id="below">below</div>"""
CONTEXT = {"persona": "cat_connoisseur"}


def pages_of(content: Callable[[], str]) -> type[BaseHTTPRequestHandler]:
    """A shop's own server: one page at every path, and its copies of the SDK and of its loader."""

    class Pages(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            script = self.path in ("/forage.js", "/loader.js")
            body = (SDK / self.path[1:]).read_bytes() if script else content().encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/javascript" if script else "text/html")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: Any) -> None:
            """Nothing."""

    return Pages


@contextmanager
def answering(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """A server of `handler` on a free port; its origin."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(scope="module")
def origin() -> Iterator[str]:
    with answering(pages_of(lambda: PAGE)) as origin:
        yield origin


@pytest.fixture(scope="module")
def service(origin: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """One for all: each test asks for its own decisions."""
    with serving(tmp_path_factory.mktemp("service"), FORAGE_CORS_ORIGINS=origin) as running:
        yield running


@pytest.fixture
def shop(page: "Page", origin: str) -> "Page":
    """A page of the shop's origin; `connect` makes an SDK there, as `window.sdk`."""
    page.goto(origin)
    return page


def connect(page: "Page", url: str, **options: Any) -> None:
    given = {
        "url": url, "policy": "lints", "context": CONTEXT, "budgetMs": 5_000, "fallback": "4",
        **options,
    }  # fmt: skip
    page.evaluate(
        "async (given) => { const { createForage } = await import('/forage.js');"
        " window.sdk = createForage(given) }",
        given,
    )


def requests_to(page: "Page", path: str) -> "list[Request]":
    """Those that the page makes from now on, but preflights."""
    made: list[Request] = []
    page.on(
        "request",
        lambda asked: made.append(asked) if path in asked.url and asked.method == "POST" else None,
    )
    return made


def until(true: Callable[[], bool], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def explained(service: Serving, decision: Any) -> Any:
    return service.get(f"/decisions/{decision['id']}")


def test_calls_from_another_origin_decide_and_reward(service: Serving, shop: "Page") -> None:
    connect(shop, service.url)
    decision = shop.evaluate("sdk.select()")
    assert decision["fallback"] is False
    assert decision["arms"] == [decision["arm"]]
    assert decision["modelVersion"].startswith("lints/0@")
    twice = "async (d) => [await sdk.reward(d, 1), await sdk.reward(d, 1)]"
    assert shop.evaluate(twice, decision) == ["accepted", "duplicate"]
    assert explained(service, decision)["learned"]
    ask = "sdk.select({topK: 4, idempotencyKey: 'once'})"
    ranked, again = shop.evaluate(ask), shop.evaluate(ask)
    assert ranked["id"] == again["id"] != decision["id"]
    assert [each["arm"] for each in ranked["ranking"]] == ranked["arms"]
    second, third = ranked["arms"][1:3]
    by_arm = "([d, arm]) => sdk.reward(d, {[arm]: 0})"
    assert shop.evaluate(by_arm, [ranked, second]) == "accepted"
    assert shop.evaluate("([d, arm]) => sdk.cascade(d, arm)", [ranked, third]) == "accepted"


def test_a_seen_element_activates_and_a_clicked_one_rewards(service: Serving, shop: "Page") -> None:
    connect(shop, service.url, deferred=True)
    shop.evaluate(
        """async () => {
          window.seen = [];
          for (const id of ["offer", "below"]) {
            window[id] = await sdk.select();
            sdk.track(document.getElementById(id), window[id], { onSeen: () => seen.push(id) });
          }
        }"""
    )
    shop.wait_for_function("seen.length > 0")
    shop.wait_for_function("sdk.pending() === 0")
    offer, below = shop.evaluate("[window.offer, window.below]")
    assert shop.evaluate("seen") == ["offer"]
    assert explained(service, offer)["activated"] is True
    assert explained(service, below)["activated"] is False, "it is below the page's edge"
    shop.click("#offer")
    shop.click("#offer")
    shop.wait_for_function("sdk.pending() === 0")
    assert shop.evaluate("(d) => sdk.reward(d, 1)", offer) == "duplicate"
    shop.locator("#below").scroll_into_view_if_needed()
    shop.wait_for_function("seen.length === 2")
    shop.wait_for_function("sdk.pending() === 0")
    assert explained(service, below)["activated"] is True


def test_a_glance_is_not_an_impression(service: Serving, shop: "Page") -> None:
    connect(shop, service.url, deferred=True)
    activations = requests_to(shop, "/activate")
    shop.evaluate(
        "async () => { window.seen = 0; const d = await sdk.select();"
        " sdk.track(document.getElementById('offer'), d, { onSeen: () => seen++ }) }"
    )
    shop.wait_for_timeout(500)
    shop.evaluate("scrollTo(0, 1500)")
    shop.wait_for_timeout(1_500)
    assert shop.evaluate("seen") == 0
    assert activations == []


def test_a_reward_goes_on_through_an_outage(
    service: Serving, shop: "Page", console: "Console"
) -> None:
    console.expected = ["net::ERR_INTERNET_DISCONNECTED"]
    connect(shop, service.url)
    decision = shop.evaluate("sdk.select()")
    shop.context.set_offline(True)
    shop.evaluate("(d) => { window.told = sdk.reward(d, 1) }", decision)
    shop.wait_for_timeout(700)
    assert shop.evaluate("sdk.pending()") == 1
    shop.context.set_offline(False)
    assert shop.evaluate("told") == "accepted"


def test_what_is_unsent_when_the_page_is_left_goes_as_a_beacon(
    service: Serving, shop: "Page", console: "Console"
) -> None:
    console.expected = ["net::ERR_FAILED"]
    connect(shop, service.url, deferred=True)
    decision = shop.evaluate("sdk.select()")
    shop.route(f"{service.url}/decisions/**", lambda route: route.abort())
    shop.evaluate(
        "() => { const send = navigator.sendBeacon.bind(navigator);"
        " navigator.sendBeacon = (to, content) => {"
        " sessionStorage[to] = typeof content; return send(to, content) } }"
    )
    shop.evaluate("(d) => { sdk.reward(d, 1) }", decision)
    shop.wait_for_function("sdk.pending() === 2")
    shop.goto(shop.url + "elsewhere")
    until(lambda: explained(service, decision)["activated"] is True)
    shop.unroute(f"{service.url}/decisions/**")
    connect(shop, service.url)
    assert shop.evaluate("(d) => sdk.reward(d, 1)", decision) == "duplicate"
    sent = shop.evaluate("Object.entries(sessionStorage)")
    assert sent == [[f"{service.url}/beacon", "string"]], "plain text needs no preflight"


def test_a_kept_reward_goes_out_on_the_next_visit(
    service: Serving, shop: "Page", console: "Console"
) -> None:
    console.expected = ["net::ERR_FAILED"]
    connect(shop, service.url, persist=True)
    decision = shop.evaluate("sdk.select()")
    shop.route(f"{service.url}/reward", lambda route: route.abort())
    shop.route(f"{service.url}/beacon", lambda route: route.abort())
    shop.evaluate("(d) => { sdk.reward(d, 1) }", decision)
    shop.wait_for_function("sdk.pending() === 1")
    shop.goto(shop.url + "elsewhere")
    shop.unroute(f"{service.url}/reward")
    connect(shop, service.url, persist=True)
    shop.wait_for_function("sdk.pending() === 0")
    assert shop.evaluate("(d) => sdk.reward(d, 1)", decision) == "duplicate"
    assert shop.evaluate("Object.keys(localStorage)") == []


def test_a_refusal_falls_back_and_says_where_the_fault_is(
    service: Serving, shop: "Page", console: "Console"
) -> None:
    console.expected = ["422"]
    connect(shop, service.url)
    answer = shop.evaluate(
        "async () => { const { error, ...rest } = await sdk.select({ context: {} });"
        " const { reason, message, problem } = error;"
        " return { ...rest, reason, message, problem } }"
    )
    assert answer["arm"] == "4"
    assert (answer["fallback"], answer["reason"]) == (True, "http")
    assert "context.persona" in answer["message"]
    assert answer["problem"]["errors"][0]["path"] == "context.persona"
    assert shop.evaluate(
        "async () => { const d = await sdk.select();"
        " return Promise.all([sdk.reward(d, 7), sdk.reward(d, 1)]) }"
    ) == [None, "accepted"], "a refused reward is let go and the next is sent"


# -- the service is down, slow, or ill: the fallback within the budget ---------------------------

TIMED = """async () => {
  const began = performance.now();
  const { arm, arms, fallback, decision, error } = await sdk.select();
  const tookMs = performance.now() - began;
  const rewarded = await sdk.reward({ arm, fallback, decision }, 1);
  return { arm, arms, fallback, decision, reason: error?.reason, tookMs, rewarded };
}"""


class Ill(BaseHTTPRequestHandler):
    """Answers what `how` says: nothing, an error, a page of a proxy's, or half an answer, after
    which it closes the connection or stalls."""

    how = "silent"

    def do_OPTIONS(self) -> None:
        self.do_POST()

    def do_POST(self) -> None:
        if type(self).how == "silent":
            time.sleep(2)
            return
        broken = type(self).how in ("broken", "stalls") and self.command == "POST"
        error = type(self).how == "error" and self.command == "POST"
        self.send_response(503 if error else 200)
        self.send_header("Access-Control-Allow-Origin", "*")
        self.send_header("Access-Control-Allow-Headers", "content-type, idempotency-key")
        self.send_header("Content-Length", "6")
        self.end_headers()
        self.wfile.write(b"<html>" if not broken else b"<h")
        if type(self).how == "stalls":
            time.sleep(2)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Nothing."""


def expect_fallbacks(answers: list[Any]) -> None:
    for answer in answers:
        assert answer["fallback"] is True
        assert (answer["arm"], answer["arms"], answer["decision"]) == ("4", ["4"], None)
        assert answer["rewarded"] is None
    assert min(answer["tookMs"] for answer in answers) < BUDGET_MS + ALLOWED_MS, answers


def test_with_the_service_down_select_returns_the_fallback_within_its_budget(
    tmp_path: Path, origin: str, shop: "Page", console: "Console"
) -> None:
    console.expected = ["net::ERR_CONNECTION_REFUSED"]
    with serving(tmp_path, FORAGE_CORS_ORIGINS=origin) as running:
        connect(shop, running.url, budgetMs=BUDGET_MS)
        assert shop.evaluate("sdk.select()")["fallback"] is False
        running.stop()
        answers = [shop.evaluate(TIMED) for _ in range(TRIES)]
        expect_fallbacks(answers)
        assert {answer["reason"] for answer in answers} <= {"network", "timeout"}


@pytest.mark.parametrize(
    ("how", "reason"),
    [("silent", "timeout"), ("error", "http"), ("page", "network"), ("broken", "network"),
     ("stalls", "timeout")],
)  # fmt: skip
def test_an_ill_service_costs_no_more_than_the_budget(
    shop: "Page", console: "Console", how: str, reason: str
) -> None:
    console.expected = ["503", "net::ERR_"]
    Ill.how = how
    with answering(Ill) as ill:
        connect(shop, ill, budgetMs=BUDGET_MS)
        answers = [shop.evaluate(TIMED) for _ in range(TRIES)]
    expect_fallbacks(answers)
    assert reason in {answer["reason"] for answer in answers}
