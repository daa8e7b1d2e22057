"""forage evaluate: beside a service and after it, as a table and as JSON, and what it refuses."""

import json
from pathlib import Path

import pytest

from service.analysis.estimators import ESTIMATORS
from tests.cli.forage import forage, serving, started

pytestmark = pytest.mark.process

VISITS = 60


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a service that was stopped; it was evaluated while it served."""
    folder = tmp_path_factory.mktemp("evaluated")
    with serving(folder) as running:
        for number in range(VISITS):
            running.visit("random", reward=float(number % 3 == 0))
        beside = started("evaluate", "--policies", "random", folder=folder)
        assert (beside.returncode, beside.stderr) == (0, ""), beside.stderr
        running.visit("linucb")
        assert running.stop() == 0
    (folder / "ideas.toml").write_text('[policies.idea]\nkind = "random"\nshare = 3\n')
    (folder / "sure.toml").write_text('[policies.sure]\nkind = "linucb"\n')
    return folder


def test_a_policy_is_worth_on_its_own_log_what_it_earned(folder: Path) -> None:
    asked = ["evaluate", "--policies", "random", "--policy-logged", "random"]
    ended = forage(*asked, "--all", folder=folder)
    assert (ended.returncode, ended.stderr) == (0, "")
    sentence, _, head, earned, learned, _, columns, *rows = ended.stdout.splitlines()
    assert sentence.startswith("`random` would have earned between ")
    assert head.startswith(f"zooplus: {VISITS} decisions from ")
    assert earned.startswith("The log itself earned 0.3333 [")
    assert learned == "random does not learn."
    assert columns.split() == [*["policy", "estimator", "reward", "95%", "ESS", "weight"]]
    rows[0] = rows[0].removeprefix("random")
    listed = [row.split() for row in rows]
    assert listed[0][-2:] == ["60", "1.0"]
    titles = [each.title for each in ESTIMATORS.values()]
    assert [row[0] for row in listed] == [*titles, "DM"]
    assert next(row[1] for row in listed if row[0] == "IPS") == "0.3333"
    *_, columns, row = forage(*asked, folder=folder).stdout.splitlines()
    assert columns.split()[:5] == ["policy", "reward", "95%", "over", "what"]
    assert (row.split()[0], row.split()[-3:]) == ("random", ["does", "not", "learn"])


def test_shadows_are_evaluated_without_being_named(folder: Path) -> None:
    """Of this experiment there are none: it says what to do."""
    ended = forage("evaluate", "--shadows", folder=folder)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith("No policy is a shadow. Give one `shadow = true`")


def test_json_takes_the_place_of_the_table_or_goes_to_a_file(folder: Path) -> None:
    ended = forage("evaluate", "--policies", "random", "--json", "-", folder=folder)
    printed = json.loads(ended.stdout)
    assert printed["decisions"] == VISITS + 1
    written = forage("evaluate", "--policies", "random", "--json", "found.json", folder=folder)
    assert written.stdout.startswith(f"{printed['sentence']}\n\nzooplus: ")
    assert json.loads((folder / "found.json").read_text()) == printed
    [random] = printed["policies"]
    assert random["estimates"]["snips"]["interval"][0] < random["estimates"]["snips"]["value"]


def test_what_the_log_cannot_tell_is_said_and_the_status_is_1(folder: Path) -> None:
    """Of 50 arms that chance showed, a policy that is sure would have shown few of the same."""
    ended = forage("evaluate", "--policies", "random", "--definition", "sure.toml", folder=folder)
    assert ended.returncode == 1
    assert "sure: no estimate. " in ended.stdout
    assert "random  " in ended.stdout


def test_a_definition_that_never_ran_is_evaluated(folder: Path) -> None:
    ended = forage("evaluate", "--definition", "ideas.toml", "--json", "-", folder=folder)
    assert (ended.returncode, ended.stderr) == (0, "")
    [idea] = json.loads(ended.stdout)["policies"]
    assert (idea["policy"], idea["never_ran"], idea["refused"]) == ("idea", True, None)


def test_frozen_policies_are_evaluated_on_the_second_half(folder: Path) -> None:
    ended = forage(
        *["evaluate", "--policies", "random", "--frozen", "--least-effective", "5", "--json", "-"],
        folder=folder,
    )
    found = json.loads(ended.stdout)
    assert (found["decisions"], found["frozen"]) == ((VISITS + 1) // 2, True)
