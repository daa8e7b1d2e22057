"""forage rollout: over a running service."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.forage import Ended, Serving, expect_refusal, forage, serving
from tests.recovery.serving import eventually

SHOP = {
    "arms": {"kibble": {}, "ball": {}},
    "policies": {"main": {"kind": "random"}, "new": {"kind": "random", "share": 0.0}},
    "reward": {"range": [0, 1], "wait_seconds": 1.0},
}
PATH = "/experiments/shop"

pytestmark = pytest.mark.process


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Serving]:
    with serving(tmp_path) as running:
        running.client.put(PATH, json=SHOP).raise_for_status()
        yield running


def run(running: Serving, folder: Path, command: str, *options: str) -> Ended:
    return forage("rollout", command, "shop", *options, "--url", running.url, folder=folder)


def test_a_rollout_from_start_to_end(running: Serving, tmp_path: Path) -> None:
    assert run(running, tmp_path, "status").stdout == "shop: no rollout\n"
    told = run(running, tmp_path, "forecast", "new", "--over", "main")
    assert (told.returncode, told.stdout.splitlines()) == (
        0,
        [
            "no forecast: the baseline has too few settled decisions",
            "",
            "The log cannot tell what 'new' would have earned: no decision was made and settled "
            "since 'new' and 'main' are as they are.",
        ],
    )
    begun = run(
        running, tmp_path, "start", "new", "--over", "main", "--stages", "10%,50,100",
        "--margin", "5%", "--ask", "--reason", "to see",
    )  # fmt: skip
    assert begun.returncode == 0, begun.stderr
    assert begun.stdout.splitlines()[0] == "new over main: running, [10%] 50% 100%"
    assert "It cannot advance without data." in begun.stdout
    table = [line.split() for line in begun.stdout.splitlines()[-7:]]
    assert table[0] == ["guardrail", "state", "value", "bound", "decisions"]
    assert table[1] == ["fallbacks", "no", "data", "0.01", "0"]
    assert table[4] == ["entropy", "off", "0"]
    told = run(running, tmp_path, "advance", "new", "--reason", "enough seen")
    assert told.stdout.splitlines()[0] == "new over main: running, 10% [50%] 100%"
    assert run(running, tmp_path, "hold", "new").stdout.startswith("new over main: held")
    assert run(running, tmp_path, "resume", "new").stdout.startswith("new over main: running")
    ended = run(running, tmp_path, "back", "new")
    assert ended.stdout.startswith("new over main: rolled back, 10% [50%] 100%")
    [found] = json.loads(run(running, tmp_path, "status", "--json").stdout)["rollouts"]
    assert (found["state"], found["margin"], found["ask"]) == ("rolled_back", 0.05, True)
    refused = run(running, tmp_path, "back", "new")
    assert "the rollout of 'new' is rolled back" in expect_refusal(refused)
    history = forage("history", "shop", "--url", running.url, folder=tmp_path).stdout
    assert "advanced the rollout of 'new': 'enough seen': There is no data" in history


def test_the_status_has_the_loss_budget(running: Serving, tmp_path: Path) -> None:
    definition = {**SHOP, "never_below": {"policy": "main", "by": 0.02}}
    running.client.put(PATH, json=definition).raise_for_status()
    told = run(running, tmp_path, "status")
    assert told.stdout.splitlines() == [
        "never below main by more than 2%: the others may have 2%",
        "  Too few decisions are settled to compare with 'main'. The others may have 2 percent of "
        "the traffic.",
    ]
    found = json.loads(run(running, tmp_path, "status", "--json").stdout)["budget"]
    assert (found["policy"], found["share"], found["moves"]) == ("main", 0.02, 0)


def test_a_forecast_says_days_and_whether_it_can_end(running: Serving, tmp_path: Path) -> None:
    for number in range(200):
        chosen = running.post("/select", {"experiment": "shop"})
        if number % 2:
            running.post("/reward", {"decision_id": chosen["decision_id"], "reward": 1.0})
    running.client.put(f"{PATH}/policies/new/share", json={"share": 0.0}).raise_for_status()

    def told() -> str:
        return run(running, tmp_path, "forecast", "new", "--over", "main").stdout

    eventually(lambda: "\n200 decisions" in told())  # once the default rewards are there
    lines = told().splitlines()
    assert lines[0].split("  ")[0] == "share"
    assert [line.split()[0] for line in lines[1:4]] == ["5%", "20%", "50%"]
    assert "24 hours" in lines[1]
    assert lines[-2].startswith("On the log, 'new' would have earned ")
    assert lines[-1] == (
        "200 decisions, which tell as much as 200 of its own; the log could have shown 100% of "
        "what it would show"
    )


def test_the_start_of_one_that_would_have_lost_warns(running: Serving, tmp_path: Path) -> None:
    policies = {
        "main": {"kind": "popularity", "epsilon": 0.3},
        "new": {"kind": "random", "share": 0.0},
    }
    running.client.put(PATH, json={**SHOP, "policies": policies}).raise_for_status()
    for _ in range(200):
        chosen = running.post("/select", {"experiment": "shop"})
        reward = float(chosen["arm"] == "kibble")
        running.post("/reward", {"decision_id": chosen["decision_id"], "reward": reward})
    run(running, tmp_path, "forecast", "new", "--over", "main")  # the start need not wait for it
    told = run(running, tmp_path, "start", "new", "--over", "main")
    warning = next(line for line in told.stdout.splitlines() if "Warning" in line)
    assert warning.startswith("  Warning: On the log, 'new' would have earned 0.")
    assert warning.endswith(": the loss is beyond the margin of 10 percent.")


def test_what_is_wrong_is_said(running: Serving, tmp_path: Path) -> None:
    for options, says in (
        (("new", "--over", "main", "--stages", "5,many"), "write percentages that ascend to 100"),
        (("new", "--over", "main", "--margin", "much"), "write a percentage with its sign, as 10%"),
        (("new", "--over", "main", "--stages", "50,20,100"), "that ascend to 100"),
        (("newer", "--over", "main"), "no policy 'newer'"),
        (("main", "--over", "new"), "set it to 0 first"),
    ):
        ended = run(running, tmp_path, "start", *options)
        assert ended.returncode in (1, 2)
        assert says in ended.stderr
