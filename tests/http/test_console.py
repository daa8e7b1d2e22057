"""Routes of the console: figures that agree with each other and with the requests."""

import re
from pathlib import Path

import pytest

from service.log.stores.memory import MemoryStore
from service.state.events import TrafficChanged, decode_event
from service.telemetry.history import STEPS
from tests.support.clock import run_virtual
from tests.support.service import Json, Wire, expect_problem, paths, serving

WEB = Path(__file__).parents[2] / "service" / "http" / "static" / "console"
HOSTILE = "<img src=x onerror=alert(1)>"
SHOP = "/experiments/shop"
SAME = (
    *("kind", "share", "decisions", "mean_reward", "mean_reward_interval", "rewards"),
    *("entropy_mean", "propensity_mean", "version", "staged", "training_due"),
)


def asked(wire: Wire, path: str, **query: object) -> Json:
    answer = wire.get(f"{SHOP}/{path}", params=query)
    assert answer.status_code == 200, answer.text
    found: Json = answer.json()
    return found


def figures(wire: Wire, policy: str) -> Json:
    found: Json = {each["name"]: each for each in asked(wire, "status")["figures"]}[policy]
    return found


def arms(wire: Wire, **query: object) -> Json:
    return asked(wire, "arm-figures", **query)


def ids(found: Json) -> list[str]:
    return [each["arm"] for each in found["arms"]]


# -- the process -----------------------------------------------------------------------------------


def test_the_status_tells_the_process_its_log_and_each_experiment(wire: Wire) -> None:
    wire.teach()
    found = wire.get("/status").json()
    assert (found["store"], found["degraded"], found["behind"]) == ("memory", False, False)
    assert found["durability"] == wire.get("/healthz").json()["durability"]
    assert found["started"] <= found["now"]
    assert (found["lag_seconds"], found["waiting_decisions"]) == (None, 0)
    [shop] = found["experiments"]
    assert (shop["name"], shop["position"], shop["recovered"]) == ("shop", 2, True)
    assert (shop["arms"], shop["settled"], shop["mean_reward"]) == (3, 1, 1.0)
    assert (shop["policies"], shop["control"]) == (["linucb", "lints", "named_only"], None)
    net = {"kind": "neural_linear_ts", "hidden": [4], "embedding": 2, "training": {"first": 1}}
    wire.redefine(policies={"net": net, "linucb": {"kind": "linucb"}})
    wire.teach(1, "net")
    [shop] = wire.get("/status").json()["experiments"]
    assert shop["training_due"] == ["net"]
    wire.redefine(control="linucb")
    assert asked(wire, "status")["control"] == "linucb"


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
    assert asked(wire, "status")["mean_reward"] == 0.375


def test_samples_over_time_end_at_the_sums_of_now(wire: Wire) -> None:
    history = wire.services.history
    begin = history.started
    for second, reward in enumerate((1.0, 0.0, 1.0), 1):
        wire.reward(wire.select(policy="linucb"), reward)
        history.sample(begin + 10.0 * second, wire.services.telemetry.decision_statistics)
    found = asked(wire, "history", after=begin + 1.0)
    assert found["step_seconds"] == 5
    columns = {each["name"]: each for each in found["policies"]}
    assert columns["linucb"]["count"] == [1, 2, 3]
    assert columns["linucb"]["total"] == [1.0, 1.0, 2.0]
    assert columns["linucb"]["decisions"] == [1, 2, 3]
    assert columns["linucb"]["total"][-1] == figures(wire, "linucb")["total"]
    assert columns["lints"]["entropy"] == [None] * 3
    assert {len(values) for values in columns["lints"].values()} == {3, len("lints")}
    later = asked(wire, "history", after=begin + 20.0)["policies"]
    assert [each["count"] for each in later] == [[3], [0], [0]]
    for step in STEPS:
        assert asked(wire, "history", step=step)["step_seconds"] == step


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
    for arm, reward in (("Arm 07", 0.5), ("Arm 03", 1.0)):
        wire.reward(wire.select(policy="linucb", arms=[arm]), reward)
    assert ids(arms(wire, order="mean", limit=2)) == ["Arm 03", "Arm 07"]
    assert ids(arms(wire, order="mean", descending=False, limit=2)) == ["Arm 07", "Arm 03"]
    assert ids(arms(wire, order="arm", descending=False, limit=1)) == ["Arm 00"]
    found = arms(wire, match="arm 1", order="arm", descending=False, offset=8, limit=5)
    assert (found["found"], ids(found)) == (10, ["Arm 18", "Arm 19"])
    found = arms(wire, match="nothing")
    assert (found["found"], found["impressions"], found["arms"]) == (0, 2, [])
    answer = wire.get(f"{SHOP}/arm-figures", params={"policy": "nobody"})
    assert paths(expect_problem(answer, 404)) == ["policy"]


def test_a_retired_arm_is_told_as_long_as_it_was_shown(wire: Wire) -> None:
    wire.reward(wire.select(policy="linucb", arms=["ball"]), 1.0)
    for arm in ("ball", "mouse"):
        wire.delete(f"{SHOP}/arms/{arm}")
    assert [(each["arm"], each["active"]) for each in arms(wire)["arms"]] == [
        ("ball", False),
        ("kibble", True),
    ]


# -- decisions -------------------------------------------------------------------------------------


def test_the_last_decisions_are_told_newest_first(wire: Wire) -> None:
    wire.post(f"{SHOP}/arms", {"arms": {HOSTILE: {"category": "toy"}}})
    made = [wire.select(policy="lints", arms=[HOSTILE, "ball"])]
    for _ in range(60):
        wire.clock.skip(1.0)
        made.append(wire.select(policy="linucb", arms=[HOSTILE]))
    found = asked(wire, "decisions", limit=500)["decisions"]
    assert len(found) == 51  # of each policy at most 50 are kept
    for each, decision in zip(found, [*reversed(made[-50:]), made[0]], strict=True):
        for key in ("id", "policy", "arm", "propensity", "model_version"):
            assert each[key] == decision[key]
        assert (each["candidates"], each["shown"]) == (1 + (each["policy"] == "lints"), 1)
    own = asked(wire, "decisions", policy="lints", limit=1)["decisions"]
    assert [each["id"] for each in own] == [made[0]["id"]]
    assert ids(arms(wire, match=HOSTILE)) == [HOSTILE]


def test_a_decision_says_what_moved_each_candidate(wire: Wire) -> None:
    for arm, reward in (("kibble", 1.0), ("ball", 0.0)):
        wire.reward(wire.select(policy="linucb", arms=[arm]), reward)
    for policy, part, level in (("linucb", "bonus", 0.5), ("lints", "draw_share", 0.0)):
        decision = wire.select(policy=policy)
        told = wire.get(f"/decisions/{decision['id']}").json()["candidates"]
        assert all(isinstance(each[part], float) for each in told)
        for each in told:
            moved = {part["feature"]: part["contribution"] for part in each["moved"]}
            assert level + sum(moved.values()) == pytest.approx(each["mean"], abs=1e-9)
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


def test_a_share_is_logged_without_the_catalogue_and_with_its_reason() -> None:
    store = MemoryStore()
    body = {"share": 0.5, "reason": "too few clicks"}
    with serving(store) as wire:
        wire.put(f"{SHOP}/policies/lints/share", body)
    [*_, record] = run_virtual(store.read("shop", 0, 100))
    event = decode_event(record.payload)
    assert isinstance(event, TrafficChanged)
    assert (event.shares, event.revision, event.reason) == ({"lints": 0.5}, 2, "too few clicks")


def test_a_paused_policy_gets_no_traffic_and_the_last_one_is_not_paused(wire: Wire) -> None:
    wire.put(f"{SHOP}/arms/bone", {"features": {"category": "food"}})
    wire.put(f"{SHOP}/policies/lints/share", {"share": 0})
    assert {wire.select()["policy"] for _ in range(20)} == {"linucb"}
    assert "bone" in ids(arms(wire))
    answer = wire.put(f"{SHOP}/policies/linucb/share", {"share": 0})
    assert paths(expect_problem(answer, 422)) == ["share"]


@pytest.mark.parametrize(
    ("policy", "body", "match", "refused"),
    [
        *(("lints", body, None, 422) for body in ({"share": -1}, {"share": "1"}, {})),
        ("lints", {"share": 1, "reason": 1}, None, 422),
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


# -- the page --------------------------------------------------------------------------------------


def test_no_script_of_the_page_writes_markup() -> None:
    """Names of arms are nobody's markup."""
    for path in WEB.rglob("*"):
        if path.suffix in (".js", ".html") and "vendor" not in path.parts:
            text = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
            assert not re.search(r"https?://", text), path.name
            written = re.search(
                r"(inner|outer)HTML|insertAdjacentHTML|document\.write|eval\(", text
            )
            assert not written, path.name
    vendored = WEB / "console" / "vendor"
    for path in vendored.glob("*.js"):
        licence = (vendored / f"{path.stem}.LICENSE.txt").read_text()
        assert "Permission is hereby granted" in licence
