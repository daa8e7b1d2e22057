"""forage plan: the parts of a decision, from the definition, and what it refuses."""

import json
from pathlib import Path
from typing import Any

import pytest

from service.app import EXAMPLE
from service.cli.program import main
from tests.cli.forage import expect_refusal, forage
from tests.cli.test_check import GOOD

MEASURED = {"sqlite": 1_059, "redis": 1_097, "postgresql": 1_421}
"""Bytes a decision of the pet shop, as `python -m benchmarks.log_size` found them: of PostgreSQL
with free space in the table of decisions that wait, which the plan leaves out."""


ARMS = """[arms]
kibble = { category = "food" }
ball = { category = "toy" }
"""


def planned(*arguments: str) -> Any:
    ended = forage("plan", *arguments, "--json")
    assert (ended.returncode, ended.stderr) == (0, "")
    return json.loads(ended.stdout)


@pytest.mark.parametrize("store", MEASURED)
def test_the_plan_of_the_pet_shop_is_what_was_measured(store: str) -> None:
    found = planned(str(EXAMPLE), "--selects", "100", "--store", store)
    assert found["decision_bytes"] == pytest.approx(MEASURED[store], rel=0.18)


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    file = tmp_path / "shop.toml"
    file.write_text(GOOD)
    return file


def test_bytes_follow_the_definition_and_the_total_the_rate_and_the_time(shop: Path) -> None:
    few = planned(str(shop), "--selects", "10", "--days", "30")
    for part in few["parts"].values():
        per_decision = part["content_bytes"] + part["overhead_bytes"]
        total = 10 * part["kept_seconds"] * per_decision
        assert part["total_bytes"] == pytest.approx(total, rel=0.01)
    assert few["total_bytes"] == pytest.approx(
        sum(part["total_bytes"] for part in few["parts"].values()), abs=3
    )
    more = planned(str(shop), "--selects", "20", "--days", "30")
    assert more["total_bytes"] == pytest.approx(2 * few["total_bytes"], rel=0.01)

    arms = "".join(f"arm-{n:03} = {{ category = 'toy' }}\n" for n in range(100))
    shop.write_text(GOOD.replace(ARMS, ARMS + arms))
    many = planned(str(shop), "--selects", "10")
    grown = many["parts"]["rows"]["content_bytes"] - few["parts"]["rows"]["content_bytes"]
    assert 100 * (len("arm-000") + 4) <= grown <= 100 * (len("arm-000") + 8)


def test_clicks_leave_other_events_than_defaults(shop: Path) -> None:
    marks = [
        planned(str(shop), "--selects", "1", "--rewards", share)["parts"]["marks"]["content_bytes"]
        for share in ("0", "0.5", "1")
    ]
    assert marks[0] < marks[2]
    assert marks[1] == pytest.approx((marks[0] + marks[2]) / 2, abs=1)
    shop.write_text(GOOD.replace("default = 0.0", "default = 'none'"))
    assert planned(str(shop), "--selects", "1", "--rewards", "0")["parts"]["events"] == {
        "content_bytes": 0,
        "overhead_bytes": 0,
        "kept_seconds": 30 * 86_400,
        "total_bytes": 0,
    }


def test_what_can_be_rewarded_is_kept_longer_than_the_days(shop: Path) -> None:
    ended = forage("plan", str(shop), "--selects", "1", "--days", "1", "--store", "redis")
    assert ended.returncode == 0
    assert "kept 7.01 days" in ended.stdout
    assert "Decisions stay for 7.01 days, not 1" in ended.stdout
    assert [line.split()[0] for line in ended.stdout.splitlines()[3:7]] == [
        "rows",
        "events",
        "marks",
        "total",
    ]


def test_a_net_keeps_events(shop: Path) -> None:
    shop.write_text(GOOD.replace('kind = "lints"', 'kind = "neural_linear_ts"'))
    assert "Events stay as long as a net may train on them (main)" in str(
        planned(str(shop), "--selects", "1")["notes"]
    )


def test_a_file_that_cannot_be_served_is_refused(shop: Path) -> None:
    shop.write_text(GOOD.replace("lints", "lint"))
    assert "policies.main.kind" in forage("plan", str(shop), "--selects", "1").stderr
    shop.write_text(GOOD.replace(ARMS, ""))
    assert "lists no arms" in expect_refusal(forage("plan", str(shop), "--selects", "1"))
    gone = expect_refusal(forage("plan", "nowhere.toml", "--selects", "1", folder=shop.parent))
    assert "nowhere.toml" in gone


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "Missing option '--selects'"),
        (["--selects", "0"], "give a number above 0"),
        (["--selects", "nan"], "give a number above 0"),
        (["--selects", "inf"], "give a number above 0"),
        (["--selects", "1", "--days", "-1"], "give a number above 0"),
        (["--selects", "1", "--rewards", "1.5"], "no more decisions can be rewarded"),
        (["--selects", "1", "--arms", "0"], "greater than or equal to 1"),
        (["--selects", "1", "--store", "redis://host"], "'sqlite', 'redis', 'postgresql'"),
    ],
)
def test_a_wrong_option_is_refused_with_what_is_allowed(
    arguments: list[str], said: str, shop: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", str(shop), *arguments]) == 2
    assert said in capsys.readouterr().err


def test_without_a_file_the_arms_are_those_asked_for() -> None:
    few, many = (
        planned("--selects", "9", "--arms", str(arms))["parts"]["rows"]["content_bytes"]
        for arms in (10, 110)
    )
    assert 100 * (len("10") + 4) <= many - few <= 100 * (len("100") + 6)


def test_processes_cores_and_what_ends_first_follow(shop: Path) -> None:
    found = planned(
        *("--selects", "5000", "--rewards", "1000", "--kind", "linucb", "--store", "redis")
    )
    scaled = found["scale"]
    assert scaled["load"] == {"selects": 5_000.0, "rewards": 1_000.0, "defaults": 4_000.0}
    assert scaled["bytes_a_day"] == pytest.approx(5_000 * 86_400 * found["decision_bytes"], 1e-3)
    assert scaled["cores"] > 0
    shown = forage("plan", "--selects", "5000", "--rewards", "1000", "--kind", "linucb").stdout
    assert "processes that all fold" in shown
    assert "What works: " in shown
    assert "First to end, at " in shown
    shop.write_text(GOOD.replace("default = 0.0", "default = 'none'"))
    assert planned(str(shop), "--selects", "9")["scale"]["load"]["defaults"] == 0
