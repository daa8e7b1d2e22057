"""What the console reads, and the page itself: figures that agree with each other and with what was
sent, and names that are nobody's markup."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.observability.history import STEPS
from tests.support.service import Json, Wire, expect_problem, paths, serving

WEB = Path(__file__).parents[2] / "service" / "http" / "static" / "console"
HOSTILE = "<img src=x onerror=alert(1)>"
SHOP = "/experiments/shop"
SAME = (
    "kind",
    "share",
    "decisions",
    "mean_reward",
    "mean_reward_interval",
    "rewards",
    "entropy_mean",
    "propensity_mean",
    "version",
    "staged",
    "training_due",
)


def status(wire: Wire) -> Json:
    answer = wire.get(f"{SHOP}/status")
    assert answer.status_code == 200, answer.text
    found: Json = answer.json()
    return found


def figures(wire: Wire, policy: str) -> Json:
    found: Json = {each["name"]: each for each in status(wire)["figures"]}[policy]
    return found


def arms(wire: Wire, **query: object) -> Json:
    answer = wire.get(f"{SHOP}/arm-figures", params=query)
    assert answer.status_code == 200, answer.text
    found: Json = answer.json()
    return found


def ids(found: Json) -> list[str]:
    return [each["arm"] for each in found["arms"]]


# -- the process -----------------------------------------------------------------------------------


def test_the_status_tells_the_process_its_log_and_each_experiment(wire: Wire) -> None:
    wire.reward(wire.select(policy="linucb"), 1.0)
    found = wire.get("/status").json()
    assert (found["store"], found["degraded"], found["behind"]) == ("memory", False, False)
    assert found["durability"] == wire.get("/healthz").json()["durability"]
    assert found["started"] <= found["now"]
    assert (found["lag_seconds"], found["waiting_decisions"]) == (None, 0)
    [shop] = found["experiments"]
    assert (shop["name"], shop["position"], shop["recovered"]) == ("shop", 2, True)
    assert (shop["arms"], shop["settled"], shop["mean_reward"]) == (3, 1, 1.0)
    assert shop["policies"] == ["linucb", "lints", "named_only"]


def test_policies_that_wait_for_training_are_named() -> None:
    net = {"kind": "neural_linear_ts", "hidden": [4], "embedding": 2, "training": {"first": 1}}
    with serving() as wire:
        wire.redefine(policies={"net": net, "linucb": {"kind": "linucb"}})
        wire.reward(wire.select(policy="net"), 1.0)
        [shop] = wire.get("/status").json()["experiments"]
        assert shop["training_due"] == ["net"]


# -- policies --------------------------------------------------------------------------------------


def test_figures_are_those_of_the_policies_route(wire: Wire) -> None:
    for reward in (1.0, 0.0, 0.5):
        wire.reward(wire.select(policy="lints"), reward)
    wire.reward(wire.select(policy="linucb"), 0.0)
    for name in ("linucb", "lints", "named_only"):
        own, known = figures(wire, name), wire.policy(name)
        assert {key: own[key] for key in SAME} == {key: known[key] for key in SAME}
    assert figures(wire, "lints")["settled"] == 3
    assert (figures(wire, "lints")["total"], figures(wire, "lints")["squares"]) == (1.5, 1.25)
    assert figures(wire, "lints")["traffic"] == 0.75
    assert status(wire)["mean_reward"] == 0.375


def test_a_lead_is_told_once_two_policies_have_rewards(wire: Wire) -> None:
    wire.reward(wire.select(policy="lints"), 1.0)
    assert figures(wire, "lints")["lead"] is None
    wire.reward(wire.select(policy="linucb"), 0.5)
    lead = figures(wire, "lints")["lead"]
    assert (lead["over"], lead["difference"]) == ("linucb", 0.5)
    assert lead["interval"][0] < 0.5 < lead["interval"][1]
    assert figures(wire, "linucb")["lead"]["difference"] == -0.5


def test_samples_over_time_end_at_the_sums_of_now(wire: Wire) -> None:
    history = wire.services.history
    begin = history.started
    for second, reward in enumerate((1.0, 0.0, 1.0), 1):
        wire.reward(wire.select(policy="linucb"), reward)
        history.sample(begin + 10.0 * second)
    found = wire.get(f"{SHOP}/history", params={"after": begin + 1.0}).json()
    assert found["step_seconds"] == 5
    columns = {each["name"]: each for each in found["policies"]}
    assert columns["linucb"]["count"] == [1, 2, 3]
    assert columns["linucb"]["total"] == [1.0, 1.0, 2.0]
    assert columns["linucb"]["decisions"] == [1, 2, 3]
    assert columns["linucb"]["total"][-1] == figures(wire, "linucb")["total"]
    assert columns["lints"]["entropy"] == [None] * 3
    assert {len(values) for values in columns["lints"].values()} == {3, len("lints")}
    later = wire.get(f"{SHOP}/history", params={"after": begin + 20.0}).json()["policies"]
    assert [each["count"] for each in later] == [[3], [0], [0]]


@pytest.mark.parametrize("step", sorted(STEPS))
def test_each_step_is_answered(wire: Wire, step: int) -> None:
    assert wire.get(f"{SHOP}/history", params={"step": step}).json()["step_seconds"] == step


# -- arms ------------------------------------------------------------------------------------------


def test_what_came_of_an_arm_is_told_by_policy_and_of_all(wire: Wire) -> None:
    for policy, arm, reward in (
        ("linucb", "kibble", 1.0),
        ("linucb", "kibble", 0.0),
        ("lints", "kibble", 1.0),
        ("lints", "ball", 0.5),
    ):
        wire.reward(wire.select(policy=policy, arms=[arm]), reward)
    found = arms(wire)
    assert (found["found"], found["impressions"]) == (3, 4)
    kibble, ball, mouse = found["arms"]
    assert (kibble["arm"], kibble["impressions"], kibble["total"]) == ("kibble", 3, 2.0)
    assert kibble["share"] == 0.75
    assert kibble["mean_reward"] == pytest.approx(2 / 3)
    low, high = kibble["mean_reward_interval"]
    assert low < 2 / 3 < high
    assert (ball["arm"], ball["total"]) == ("ball", 0.5)
    assert (mouse["impressions"], mouse["mean_reward"], mouse["share"]) == (0, None, 0)
    own = arms(wire, policy="linucb")["arms"][0]
    assert (own["arm"], own["impressions"], own["mean_reward"]) == ("kibble", 2, 0.5)


def test_arms_are_sorted_sought_and_paged(wire: Wire) -> None:
    more = {f"Arm {place:02d}": {"category": "toy"} for place in range(20)}
    wire.post(f"{SHOP}/arms", {"arms": more})
    wire.reward(wire.select(policy="linucb", arms=["Arm 07"]), 0.5)
    wire.reward(wire.select(policy="linucb", arms=["Arm 03"]), 1.0)
    assert ids(arms(wire, order="mean", limit=2)) == ["Arm 03", "Arm 07"]
    assert ids(arms(wire, order="mean", descending=False, limit=2)) == ["Arm 07", "Arm 03"]
    assert ids(arms(wire, order="arm", descending=False, limit=1)) == ["Arm 00"]
    found = arms(wire, match="arm 1", order="arm", descending=False, offset=8, limit=5)
    assert (found["found"], ids(found)) == (10, ["Arm 18", "Arm 19"])
    assert arms(wire, match="nothing") | {"since": 1} == {
        "found": 0, "since": 1, "impressions": 2, "arms": [],
    }  # fmt: skip


def test_a_retired_arm_is_told_as_long_as_it_was_shown(wire: Wire) -> None:
    wire.reward(wire.select(policy="linucb", arms=["ball"]), 1.0)
    for arm in ("ball", "mouse"):
        wire.delete(f"{SHOP}/arms/{arm}")
    assert [(each["arm"], each["active"]) for each in arms(wire)["arms"]] == [
        ("ball", False),
        ("kibble", True),
    ]


def test_an_arms_figures_need_a_policy_that_is_there(wire: Wire) -> None:
    answer = wire.get(f"{SHOP}/arm-figures", params={"policy": "nobody"})
    assert paths(expect_problem(answer, 404)) == ["policy"]


# -- decisions -------------------------------------------------------------------------------------


def test_the_last_decisions_are_told_newest_first(wire: Wire) -> None:
    made = []
    for policy in ("linucb", "lints", "linucb"):
        made.append(wire.select(policy=policy))
        wire.clock.skip(1.0)
    found = wire.get(f"{SHOP}/decisions").json()["decisions"]
    assert [each["id"] for each in found] == [each["id"] for each in reversed(made)]
    for each, decision in zip(found, reversed(made), strict=True):
        for key in ("policy", "arm", "propensity", "model_version"):
            assert each[key] == decision[key]
        assert (each["candidates"], each["shown"]) == (3, 1)
    own = wire.get(f"{SHOP}/decisions", params={"policy": "linucb", "limit": 1}).json()
    assert [each["id"] for each in own["decisions"]] == [made[2]["id"]]


def test_so_many_decisions_of_each_policy_are_kept(wire: Wire) -> None:
    for _ in range(60):
        wire.select(policy="linucb")
    wire.select(policy="lints")
    found = wire.get(f"{SHOP}/decisions", params={"limit": 500}).json()["decisions"]
    assert len(found) == 51


def test_a_decision_says_what_moved_each_candidate(wire: Wire) -> None:
    for arm, reward in (("kibble", 1.0), ("ball", 0.0)):
        wire.reward(wire.select(policy="linucb", arms=[arm]), reward)
    for policy, part in (("linucb", "bonus"), ("lints", "draw_share")):
        decision = wire.select(policy=policy)
        told = wire.get(f"/decisions/{decision['id']}").json()["candidates"]
        assert all(isinstance(each[part], float) for each in told)
        for each in told:
            moved = {part["feature"]: part["contribution"] for part in each["moved"]}
            assert sum(moved.values()) == pytest.approx(each["mean"], abs=1e-9)
    assert "persona=cat" in moved
    random = wire.get(f"/decisions/{wire.select(policy='named_only')['id']}").json()
    assert {each["moved"] for each in random["candidates"]} == {None}


# -- changes ---------------------------------------------------------------------------------------


def test_a_share_changes_alone_and_the_head_stays(wire: Wire) -> None:
    wire.reward(wire.select(policy="lints"), 1.0)
    before, head = wire.definition(), wire.policy("lints")["head"]
    answer = wire.put(f"{SHOP}/policies/lints/share", {"share": 0.5}, headers={"If-Match": '"1"'})
    assert answer.json() == {"policy": "lints", "share": 0.5, "revision": 2}
    assert answer.headers["etag"] == '"2"'
    before["policies"]["lints"]["share"] = 0.5
    assert wire.definition() == before
    assert wire.policy("lints")["head"] == head
    assert figures(wire, "lints")["traffic"] == pytest.approx(1 / 3)


def test_a_paused_policy_gets_no_traffic_and_arms_added_meanwhile_stay(wire: Wire) -> None:
    wire.put(f"{SHOP}/arms/bone", {"features": {"category": "food"}})
    wire.put(f"{SHOP}/policies/lints/share", {"share": 0})
    assert {wire.select()["policy"] for _ in range(20)} == {"linucb"}
    assert "bone" in ids(arms(wire))


@pytest.mark.parametrize(
    ("policy", "body", "match", "refused"),
    [
        ("lints", {"share": -1}, None, 422),
        ("lints", {"share": "1"}, None, 422),
        ("lints", {}, None, 422),
        ("nobody", {"share": 1}, None, 404),
        ("lints", {"share": 1}, '"7"', 412),
        ("lints", {"share": 1}, "seven", 422),
    ],
)
def test_a_share_is_refused(
    wire: Wire, policy: str, body: Json, match: str | None, refused: int
) -> None:
    headers = {"If-Match": match} if match else {}
    answer = wire.put(f"{SHOP}/policies/{policy}/share", body, headers=headers)
    expect_problem(answer, refused)
    assert wire.policy("lints")["share"] == 3


def test_the_last_policy_with_traffic_is_not_paused(wire: Wire) -> None:
    wire.put(f"{SHOP}/policies/lints/share", {"share": 0})
    answer = wire.put(f"{SHOP}/policies/linucb/share", {"share": 0})
    assert paths(expect_problem(answer, 422)) == ["share"]


# -- the page --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def page() -> Iterator[Wire]:
    with serving() as wire:
        yield wire


def test_the_page_is_at_the_root_and_all_that_it_names_is_served(page: Wire) -> None:
    answer = page.get("/")
    assert answer.headers["content-type"].startswith("text/html")
    policy = answer.headers["content-security-policy"]
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy
    named = re.findall(r'(?:src|href)="([^"#]+)"', answer.text)
    assert len(named) > 5
    for path in named:
        assert page.get(f"/{path}").status_code == 200, path


def test_every_module_that_is_imported_is_served(page: Wire) -> None:
    for module in (WEB / "console").rglob("*.js"):
        folder = module.parent.relative_to(WEB).as_posix()
        for path in re.findall(r'\bfrom "([^"]+)"', module.read_text()):
            assert path.startswith(("./", "../"))
            answer = page.get(f"/{folder}/{path}")
            assert answer.status_code == 200, (module.name, path)
            assert answer.headers["content-type"].startswith("text/javascript")


def test_nothing_is_loaded_from_elsewhere_and_nothing_is_run_inline() -> None:
    for path in WEB.rglob("*"):
        if path.suffix not in (".js", ".css", ".html") or "vendor" in path.parts:
            continue
        text = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://", text), path.name
        for written in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
            assert written not in text, path.name
    html = (WEB / "index.html").read_text()
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\bstyle=|\bon\w+=", html)


def test_a_vendored_library_comes_with_its_licence() -> None:
    vendored = WEB / "console" / "vendor"
    for path in vendored.glob("*.js"):
        licence = (vendored / f"{path.stem}.LICENSE.txt").read_text()
        assert "Permission is hereby granted" in licence


def test_an_arm_of_any_name_comes_back_as_it_is(wire: Wire) -> None:
    wire.post(f"{SHOP}/arms", {"arms": {HOSTILE: {"category": "toy"}}})
    wire.select(policy="linucb", arms=[HOSTILE])
    answer = wire.get(f"{SHOP}/arm-figures", params={"match": HOSTILE})
    assert answer.headers["content-type"] == "application/json"
    assert ids(answer.json()) == [HOSTILE]
    assert wire.get(f"{SHOP}/decisions").json()["decisions"][0]["arm"] == HOSTILE
