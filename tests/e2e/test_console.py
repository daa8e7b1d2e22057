"""The console in a real browser: live figures beside a replay's report, why a decision was made,
changes, keys, a service that goes away, and names that are nobody's markup."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from service.definition.experiment import RewardRules
from service.state.reward_statistics import RewardTotals, interval
from tests.cli.forage import Serving, environment, serving, started
from tests.e2e.conftest import Console
from tests.support.evaluated import stop, workers

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page, ViewportSize

pytestmark = [pytest.mark.browser, pytest.mark.timeout(420)]

HOSTILE = "<img src=x onerror=alert(1)>"
QUESTION = {"context": {"persona": "cat_connoisseur"}}
PHONE: "ViewportSize" = {"width": 390, "height": 844}
DESK: "ViewportSize" = {"width": 1440, "height": 900}
POLICIES = ("linucb", "lints")
VISITS = 250
RATE = 10  # a second: it goes on for as long on any machine
REPLAY_MS = 240_000
WORKER_S = 60.0


@pytest.fixture
def playing(service: Serving, tmp_path: Path) -> "Iterator[subprocess.Popen[bytes]]":
    """A replay that goes on while the console is looked at; its summary is in replay.json."""
    command = [sys.executable, "-m", "simulator_client", "replay", "--url", service.url]
    own = ["--policies", ",".join(POLICIES), "--visits", str(VISITS), "--experiment", "live"]
    own += ["--rate", str(RATE)]
    kept = ["--out", str(tmp_path / "replay"), "--json", str(tmp_path / "replay.json")]
    with (tmp_path / "replay.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, *own, *kept], cwd=tmp_path, env=environment(), stdout=log, stderr=log
        )
        yield process
        process.kill()
        process.wait()


def go(page: "Page", service: Serving, view: str = "overview", experiment: str = "zooplus") -> None:
    page.goto(f"{service.url}/#/{experiment}/{view}")
    page.get_by_role("tab", name=view.capitalize(), selected=True).wait_for()
    page.locator("main:not([aria-busy])").wait_for()


def row(page: "Page", name: str) -> "Locator":
    return page.get_by_role("row").filter(has=page.get_by_text(name, exact=True)).first


def cell(page: "Page", name: str, column: str) -> str:
    found: str = row(page, name).locator(f'td[data-label="{column}"]').inner_text()
    return found.strip()


def shoot(page: "Page", shots: Path, name: str) -> None:
    """At a desk and on a phone, light and dark; nothing is wider than the screen."""
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme)
        for device, size in (("desk", DESK), ("phone", PHONE)):
            page.set_viewport_size(size)
            page.wait_for_timeout(300)
            assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]
            page.screenshot(path=shots / f"console-{name}-{device}-{theme}.png", full_page=True)
    page.emulate_media(color_scheme="light")
    page.set_viewport_size(DESK)


def test_the_console_reads_the_ctr_of_the_replays_report(
    service: Serving, page: "Page", shots: Path, playing: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    page.goto(service.url)
    page.get_by_role("heading", name="No decision yet").wait_for()  # of the one experiment there
    commands = page.locator("figure pre").all_inner_texts()
    assert len(commands) == 2
    for path, said in zip(("select", "reward"), commands, strict=True):
        assert f"curl -s {service.url}/{path}" in said
    shoot(page, shots, "empty")
    page.locator('#experiment option[value="live"]').wait_for(state="attached", timeout=60_000)
    page.get_by_role("combobox", name="Experiment").select_option("live")
    page.locator(".plot canvas").first.wait_for(timeout=60_000)
    half = cell(page, "lints", "Rewards")
    page.wait_for_timeout(5_000)
    assert int(cell(page, "lints", "Rewards")) > int(half)  # it is live
    page.locator(".plot .u-over").first.hover()
    assert "lints" in page.locator(".tip").first.inner_text()
    assert playing.wait(REPLAY_MS / 1_000) == 0, (tmp_path / "replay.log").read_text()
    told = json.loads((tmp_path / "replay.json").read_text())["policies"]
    report = re.sub(r"\s+", " ", (tmp_path / "replay.log").read_text())
    for policy in POLICIES:
        ctr = told[policy]["ctr"]
        assert f"{policy} {VISITS} {ctr:.4f}" in report
        mean = row(page, policy).locator('td[data-label="Mean reward"]')
        mean.filter(has_text=f"{ctr:.3f}").wait_for(timeout=10_000)
        assert cell(page, policy, "Rewards") == str(VISITS)
        assert cell(page, policy, "Decisions") == str(VISITS)
    page.wait_for_timeout(6_000)  # one more sample
    shoot(page, shots, "overview")
    for view in ("arms", "health"):
        page.get_by_role("tab", name=view.capitalize()).click()
        page.get_by_role("table").first.wait_for()
        page.wait_for_timeout(1_000)
        shoot(page, shots, view)


def test_the_browsers_interval_is_the_services(service: Serving, page: "Page") -> None:
    page.goto(service.url)
    for tally, rules in (
        (RewardTotals(0, 1, 1.0, 1.0), RewardRules()),
        (RewardTotals(0, 40, 12.5, 9.25), RewardRules()),
        (RewardTotals(0, 40, 12.5, 900.0), RewardRules(range=(-2.0, 6.0))),
        (RewardTotals(0, 40, 125.0, 900.0), RewardRules(aggregation="sum")),
    ):
        scale = {"low": rules.range[0], "high": rules.range[1], "aggregation": rules.aggregation}
        found = page.evaluate(
            "async ([count, total, squares, scale]) => "
            "(await import('/console/series.js')).interval(count, total, squares, scale)",
            [tally.count, tally.total, tally.squares, scale],
        )
        assert found == pytest.approx(interval(tally, rules), rel=1e-12)


def test_a_decision_tells_why(service: Serving, page: "Page", shots: Path) -> None:
    for number in range(6):
        service.visit("linucb", reward=float(number % 2))
        service.visit("neural_linear_ts")
    go(page, service, "decisions")
    page.locator("tr", has_text="linucb").get_by_role("button", name="Why").first.click()
    why = page.locator(".why[tabindex]")
    why.get_by_role("heading", name="Candidates").wait_for()
    candidates = why.get_by_role("table", name="Candidates")
    shown = candidates.get_by_role("row").nth(1)
    assert "shown" in shown.inner_text()
    assert "persona=cat_connoisseur" in shown.inner_text()
    assert re.search(r"[+\u2212]\d\.\d{4}", shown.locator('td[data-label="Bonus"]').inner_text())
    assert candidates.get_by_role("row").count() == 13
    why.get_by_role("button", name="Show all 50").click()
    assert candidates.get_by_role("row").count() == 51
    decision = service.post("/select", QUESTION | {"policy": "lints", "exclude": ["5"]})
    page.get_by_label("Id of a decision").fill(decision["id"])
    page.get_by_role("button", name="Explain").click()
    why.get_by_text("lints showed").wait_for()
    why.get_by_role("heading", name="Rules").wait_for()
    why.get_by_text("the request excluded arms").wait_for()
    assert "Draws won" in candidates.get_by_role("row").first.inner_text()
    shoot(page, shots, "decision")


def test_traffic_and_arms_are_changed_and_a_refusal_says_why(
    service: Serving, page: "Page", console: Console, shots: Path
) -> None:
    console.expected = ["412", "422"]
    service.visit()
    go(page, service)
    dialog = page.get_by_role("dialog")
    page.get_by_role("button", name="Share linucb", exact=True).click()
    dialog.get_by_label("Share").fill("7")
    assert "46.7 % of the traffic" in dialog.inner_text()
    shoot(page, shots, "dialog")
    dialog.get_by_role("button", name="Change the share").click()
    row(page, "linucb").get_by_text("46.7 %").wait_for()
    assert service.get("/policies/linucb")["share"] == 7
    page.get_by_role("button", name="Pause lints").click()
    service.client.put("/experiments/zooplus/policies/random/share", json={"share": 2})
    dialog.get_by_role("button", name="Pause it").click()
    dialog.get_by_role("alert").get_by_text("another revision").wait_for()
    page.keyboard.press("Escape")
    assert dialog.count() == 0
    page.wait_for_timeout(2_500)
    page.get_by_role("button", name="Pause lints").click()
    dialog.get_by_role("button", name="Pause it").click()
    row(page, "lints").get_by_text("paused").wait_for()
    page.get_by_role("button", name="Reset linucb", exact=True).click()
    dialog.get_by_label("Write linucb").fill("linucb_disjoint")
    dialog.get_by_role("button", name="Reset it").click()
    dialog.get_by_role("alert").wait_for()
    assert service.get("/policies/linucb")["rewards"] == 1
    dialog.get_by_label("Write linucb").fill("linucb")
    dialog.get_by_role("button", name="Reset it").click()
    page.get_by_text("linucb starts anew.").wait_for()
    assert service.get("/policies/linucb")["rewards"] == 0

    page.get_by_role("tab", name="Arms").click()
    page.get_by_role("button", name="Add an arm").click()
    dialog.get_by_label("Id").fill("new toy")
    dialog.get_by_role("button", name="Add it").click()
    page.get_by_text("new toy can be chosen.").wait_for()
    assert service.client.get("/arms/new toy").status_code == 200
    page.get_by_label("Filter by id").fill("NEW")
    page.get_by_role("button", name="Retire new toy").click()
    dialog.get_by_role("button", name="Retire it").click()
    page.get_by_text("No arm matches.").wait_for()
    assert service.client.get("/arms/new toy").status_code == 404


def test_changes_are_listed_and_flagged_in_the_charts(
    service: Serving, page: "Page", shots: Path
) -> None:
    service.visit()
    go(page, service)
    chart = page.locator('.plot[aria-label^="Mean reward"]')
    chart.locator("canvas").wait_for(timeout=60_000)
    share = "/experiments/zooplus/policies/random/share"
    for weight in (2, 3):
        body = {"share": weight, "reason": "a try"}
        service.client.put(share, json=body).raise_for_status()
    service.client.put("/arms/rope", json={"features": service.get("/arms/1")["features"]})
    changes = page.get_by_role("table", name="Changes")
    changes.get_by_text("Set the share of 'random' to 3: 'a try'").wait_for()
    assert changes.locator("tbody tr").count() == 3
    chart.scroll_into_view_if_needed()
    chart.locator(".flag").first.wait_for(state="attached")
    counts = [int(text or "1") for text in chart.locator(".pin").all_inner_texts()]
    assert sum(counts) == 3
    flag = chart.locator(".flag").last.bounding_box()
    assert flag is not None
    page.mouse.move(flag["x"], flag["y"] + flag["height"] / 2)
    chart.locator(".tip").get_by_text("somebody set the share of 'random' to 3").wait_for()
    shoot(page, shots, "changes")
    page.get_by_text("All", exact=True).click()
    changes.get_by_text("Set arm 'rope'").wait_for()
    assert changes.locator("tbody tr").count() == 4


def test_a_rollout_is_shown_and_taken_back(service: Serving, page: "Page", shots: Path) -> None:
    share = "/experiments/zooplus/policies/lints/share"
    service.client.put(share, json={"share": 0}).raise_for_status()
    plan = {"policy": "lints", "baseline": "linucb", "stages": [0.125, 1.0]}
    service.client.post("/experiments/zooplus/rollouts", json=plan).raise_for_status()
    service.visit()
    go(page, service)
    card = page.locator(".rollout")
    card.get_by_role("heading", name="lints in place of linucb").wait_for(timeout=60_000)
    assert card.locator(".head .pill").inner_text() == "Running"
    assert card.locator("[aria-current=step]").inner_text().startswith("12.5 %")
    assert card.locator(".guardrails li").count() == 6
    shoot(page, shots, "rollout")
    dialog = page.get_by_role("dialog")
    for button, action, state in (
        ("Hold", "Hold it", "Held"),
        ("Resume", "Resume it", "Running"),
        ("Roll back", "Roll it back", "Rolled back"),
    ):
        card.get_by_role("button", name=button).click()
        dialog.get_by_label("Why").fill("a try")
        dialog.get_by_role("button", name=action).click()
        card.locator(".head .pill").get_by_text(state).wait_for()
        page.wait_for_timeout(2_500)  # the revision of now
    assert card.get_by_role("button").count() == 0
    page.get_by_role("table", name="Changes").get_by_text("'a try'").first.wait_for()


def test_changes_that_are_close_share_a_flag(service: Serving, page: "Page") -> None:
    page.goto(service.url)
    found = page.evaluate(
        "async (times) => (await import('/console/chart.js'))"
        ".clusters(times.map((at) => ({ at })), (at) => at)"
        ".map(({ x, all }) => [x, all.length])",
        [25, 0, 10, 19.5, 50, 44],
    )
    assert found == [[0, 3], [25, 2], [50, 1]]


def test_the_control_is_dashed_and_a_band_is_drawn_for_what_is_chosen(
    service: Serving, page: "Page"
) -> None:
    """The band is of the best policy, until the pointer or the focus is on another's name."""
    for number in range(400):
        decision = service.post("/select", QUESTION | {"unit": f"visitor-{number}"})
        body = {"decision_id": decision["decision_id"], "reward": number % 2}
        service.post("/reward", body)
    go(page, service)
    swatches = page.locator(".legend button:has(.swatch.dashed)")
    assert swatches.all_inner_texts() == ["random"]
    page.locator(".verdict .plot canvas").wait_for(timeout=60_000)
    looks = page.evaluate(
        """async () => {
          const names = [...document.querySelectorAll(".legend button")];
          const image = () => document.querySelector(".verdict .plot canvas").toDataURL();
          const drawn = () => new Promise((done) => setTimeout(() => done(image())));
          const point = async (name, what) => {
            names.find((each) => each.textContent === name).dispatchEvent(new Event(what));
            return await drawn();
          };
          const looks = [await drawn()];
          for (const name of ["popularity", "epsilon_greedy"]) {
            looks.push(await point(name, "pointerenter"));
          }
          looks.push(await point("epsilon_greedy", "pointerleave"));
          return [...looks, await point("epsilon_greedy", "click")];
        }"""
    )
    *bands, left, hidden = looks
    assert len(set(bands)) >= 2, "another band for another policy"
    assert left == bands[0]
    assert hidden != left, "a name that is clicked turns its line off here, too"


@pytest.mark.parametrize("width", [390, 1_000, 1_440])
def test_no_word_of_an_arms_id_is_broken(service: Serving, page: "Page", width: int) -> None:
    arm = "transcontinental waterproofedgumboots"
    features = service.get("/arms/1")["features"]
    service.client.put(f"/arms/{arm}", json={"features": features}).raise_for_status()
    decision = service.post("/select", QUESTION | {"policy": "linucb", "arms": [arm]})
    service.post("/reward", {"decision_id": decision["decision_id"], "reward": 1})
    page.set_viewport_size({"width": width, "height": 900})
    for view, table in (
        ("arms", "Arms"),
        ("decisions", "Last decisions"),
        ("decisions", "Candidates"),
    ):
        go(page, service, view)
        if view == "arms":
            page.get_by_label("Filter by id").fill("gumboots")
        if table == "Candidates":
            page.get_by_role("button", name="Why").first.click()
        shown = page.get_by_role("table", name=table).locator(".arm", has_text=arm).first
        shown.wait_for()
        lines = shown.evaluate(
            """node => [...node.firstChild.data.matchAll(/[a-z]+/g)].map((word) => {
              const range = document.createRange();
              range.setStart(node.firstChild, word.index);
              range.setEnd(node.firstChild, word.index + word[0].length);
              return range.getClientRects().length;
            })"""
        )
        assert lines == [1, 1], table


def test_names_are_text_wherever_they_stand(service: Serving, page: "Page") -> None:
    page.on("dialog", lambda dialog: pytest.fail(dialog.message))
    service.client.delete("/arms/0")
    features = service.get("/arms/1")["features"]
    service.client.put(f"/arms/{HOSTILE}", json={"features": features}).raise_for_status()
    decision = service.post("/select", QUESTION | {"policy": "linucb", "arms": [HOSTILE]})
    service.post("/reward", {"decision_id": decision["decision_id"], "reward": 1.0})
    go(page, service, "arms")
    page.get_by_text(HOSTILE).first.wait_for()
    page.get_by_role("button", name=f"Retire {HOSTILE}").click()
    assert HOSTILE in page.get_by_role("dialog").inner_text()
    page.keyboard.press("Escape")
    go(page, service, "decisions")
    page.get_by_role("button", name="Why").first.click()
    page.get_by_role("heading", name=f"Why {HOSTILE}").wait_for()
    page.goto(f"{service.url}/#/{HOSTILE}/overview")
    page.get_by_role("heading", name="Experiments").wait_for()
    assert page.locator("img[src=x]").count() == 0


def test_a_service_that_goes_away_and_comes_back(
    tmp_path: Path, page: "Page", console: Console, shots: Path
) -> None:
    gone = ["ERR_CONNECTION_REFUSED", "ERR_CONNECTION_RESET", "ERR_EMPTY_RESPONSE"]
    console.expected = [*gone, "503"]  # while it starts
    with serving(tmp_path) as first:
        first.visit()
        go(page, first)
        assert cell(page, "linucb", "Rewards") == "1"
        first.stop()
        page.get_by_role("alert").get_by_text("does not answer").wait_for()
        assert cell(page, "linucb", "Rewards") == "1"  # what was known stays
        shoot(page, shots, "gone")
        port = first.url.rpartition(":")[2]
    with serving(tmp_path, "--port", port) as second:
        page.locator("#banner").wait_for(state="hidden", timeout=40_000)
        assert page.locator("#state").inner_text() == "Live"
        second.visit()
        row(page, "linucb").locator('td[data-label="Rewards"]').get_by_text("2").wait_for()


def test_a_key_is_asked_for_and_stays_in_the_tab(
    tmp_path: Path, page: "Page", console: Console, shots: Path
) -> None:
    console.expected = ["401"]
    options = ("keys", "add", "--keys", "keys.json", "--name", "ops", "--scopes", "admin")
    [key] = re.findall(r"fk_\S+", started(*options, folder=tmp_path).stdout)
    with serving(tmp_path, FORAGE_KEYS=str(tmp_path / "keys.json")) as service:
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto(service.url)
        dialog = page.get_by_role("dialog")
        dialog.wait_for()
        shoot(page, shots, "key")
        for given in ("fk_wrong", key):
            dialog.get_by_label("Key").fill(given)
            dialog.get_by_role("button", name="Use it").click()
            if given != key:
                page.get_by_text("does not take this key").wait_for()
                dialog.wait_for()
        page.get_by_role("heading", name="No decision yet").wait_for()
        assert "Bearer $FORAGE_KEY" in page.locator("figure pre").first.inner_text()
        assert key not in "".join(asked) + page.url + page.content()
        assert page.evaluate("sessionStorage['forage.key']") == key
        assert page.evaluate("localStorage.length") == 0
        page.reload()
        page.get_by_role("heading", name="No decision yet").wait_for()


def test_it_is_worked_by_keys_alone(service: Serving, page: "Page") -> None:
    service.visit()
    go(page, service)
    page.locator("body").press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.get_by_role("tab", name="Overview").focus()
    for expected in ("Arms", "Decisions", "Health", "Evaluation", "Overview"):
        page.keyboard.press("ArrowRight")
        page.get_by_role("tab", name=expected, selected=True).wait_for()
        assert page.evaluate("document.activeElement.textContent") == expected
    page.get_by_role("button", name="lints", exact=True).focus()
    page.keyboard.press("Space")
    assert page.locator('.legend [aria-pressed="false"]').all_inner_texts() == ["lints"]
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline != "none"
    page.get_by_role("button", name="Dark theme").press("Enter")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_what_a_policy_would_have_earned_is_estimated(
    service: Serving, page: "Page", shots: Path
) -> None:
    personas = ["cat_connoisseur", "fish_hobbyist"]
    for visit in range(60):
        question = {"policy": "random", "context": {"persona": personas[visit % 2]}}
        decision = service.post("/select", question)
        service.post("/reward", {"decision_id": decision["decision_id"], "reward": visit % 3 / 2})
    go(page, service, "evaluation")
    for name in ("linucb_disjoint", "neural_linear_ts", "neural_ucb"):
        page.get_by_label(name, exact=True).uncheck()
    page.get_by_role("button", name="Evaluate").click()
    page.get_by_role("heading", name="Estimates").wait_for(timeout=120_000)
    table = page.get_by_role("table", name="Estimates")
    assert table.get_by_role("row").filter(has=page.get_by_text("random", exact=True)).count() == 1
    page.get_by_text("All estimators").click()
    table = page.get_by_role("table", name="All estimators")
    rows = table.get_by_role("row").filter(has=page.get_by_text("random", exact=True))
    assert rows.count() == 5  # DR, Switch-DR, SNIPS, IPS, DM
    mean = sum(visit % 3 / 2 for visit in range(60)) / 60
    snips = rows.filter(has=page.get_by_text("SNIPS", exact=True))
    assert snips.locator('td[data-label="Reward a decision"]').inner_text() == f"{mean:.2f}"
    shoot(page, shots, "evaluation")


def stopped(page: "Page", service: Serving) -> int:
    """Ask for an evaluation whose process never ends by itself; return the process."""
    page.get_by_role("button", name="Evaluate").click()
    deadline = time.monotonic() + WORKER_S
    while not workers(service.pid):
        assert time.monotonic() < deadline
        time.sleep(0.005)
    return stop(service.pid)


def test_an_evaluation_is_watched_and_cancelled(
    service: Serving, page: "Page", shots: Path
) -> None:
    """It goes on while the page is reloaded or shows another view."""
    service.visit()
    go(page, service, "evaluation")
    process = stopped(page, service)
    cancel = page.get_by_role("button", name="Cancel", exact=True)
    progress = page.get_by_role("progressbar", name="Progress of the evaluation")
    for come_back in (lambda: None, page.reload, lambda: away(page, service)):
        come_back()
        page.get_by_text("At work for").wait_for()
        progress.wait_for()
        cancel.wait_for()
        assert page.get_by_role("button", name="Evaluate").is_disabled()
    shoot(page, shots, "evaluation-running")
    assert workers(service.pid) == [process]
    cancel.click()
    page.get_by_text("Cancelled.").wait_for()
    assert workers(service.pid) == []
    assert not cancel.is_visible()
    assert not progress.is_visible()
    page.reload()
    page.get_by_role("button", name="Evaluate").click()
    page.get_by_text(re.compile(r"Took .*\.")).wait_for(timeout=120_000)


def away(page: "Page", service: Serving) -> None:
    """Look at another view, and come back."""
    go(page, service, "arms")
    go(page, service, "evaluation")


def test_an_evaluation_whose_process_is_killed_says_so(service: Serving, page: "Page") -> None:
    service.visit()
    go(page, service, "evaluation")
    os.kill(stopped(page, service), signal.SIGKILL)
    alert = page.get_by_role("alert").filter(has_text="The evaluation failed")
    alert.wait_for()
    assert "was ended by SIGKILL" in alert.inner_text()
    assert page.get_by_role("button", name="Evaluate").is_enabled()


def test_an_evaluation_that_a_restart_has_lost_is_told_and_can_be_asked_again(
    tmp_path: Path, page: "Page", console: Console, shots: Path
) -> None:
    gone = ["ERR_CONNECTION_REFUSED", "ERR_CONNECTION_RESET", "ERR_EMPTY_RESPONSE"]
    console.expected = [*gone, "503", "404"]
    with serving(tmp_path) as first:
        first.visit()
        go(page, first, "evaluation")
        process = stopped(page, first)
        page.get_by_text("At work for").wait_for()
        first.stop()
        assert not Path(f"/proc/{process}").exists()
        page.get_by_text("does not answer; asking again").wait_for()
        port = first.url.rpartition(":")[2]
    with serving(tmp_path, "--port", port):
        lost = page.get_by_role("alert").get_by_text("no longer knows this evaluation")
        lost.wait_for(timeout=40_000)
        shoot(page, shots, "evaluation-lost")
        page.get_by_role("button", name="Evaluate").click()
        page.get_by_text(re.compile(r"Took .*\.")).wait_for(timeout=120_000)
        assert not lost.is_visible()
