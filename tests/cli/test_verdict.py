"""forage verdict: a sentence and figures, from a log that a service wrote."""

import json
from pathlib import Path

import pytest

from service.log.stores import open_store
from tests.cli.forage import expect_refusal, forage
from tests.support.archived import SHOP, Shop
from tests.support.assigned import Traffic
from tests.support.clock import run_virtual

RATES = {"auto": 0.5, "control": 0.2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("judged")

    async def write() -> None:
        store = open_store(f"sqlite:///{folder}/forage.db")
        await store.open()
        traffic = Traffic(Shop(store))
        await traffic.define({"auto": 1.0, "control": 1.0})
        await traffic.visits(600, RATES)
        other = Traffic(Shop(store, "mall"))
        await other.define({"auto": 1.0, "control": 1.0}, control=None)
        await store.close()

    run_virtual(write())
    return folder


def test_it_says_a_sentence_and_then_figures(folder: Path) -> None:
    ended = forage("verdict", "--experiment", SHOP, folder=folder)
    assert (ended.returncode, ended.stderr) == (0, "")
    sentence, _, head, auto, control, _, over, uplift, _, fits = ended.stdout.splitlines()
    assert sentence.startswith("`auto` earns ")
    assert head.split() == [
        *["policy", "decisions", "reward", "95%,", "at", "any", "time", "at", "one", "look", "best"]
    ]
    assert [line.split()[0] for line in (auto, control, uplift)] == ["auto", "control", "auto"]
    assert over.startswith("over the control  difference")
    assert " since " in uplift
    assert fits.startswith("Shown arms fit their propensities")


def test_json_holds_the_same_sentence(folder: Path) -> None:
    ended = forage("verdict", "--experiment", SHOP, "--json", folder=folder)
    found = json.loads(ended.stdout)
    assert (found["state"], found["decisions"]) == ("better", 600)
    assert found["sentence"] in forage("verdict", "--experiment", SHOP, folder=folder).stdout


def test_where_nothing_can_be_told_the_status_is_1(folder: Path) -> None:
    ended = forage("verdict", "--experiment", "mall", folder=folder)
    assert (ended.returncode, ended.stderr) == (1, "")
    assert ended.stdout.startswith("Nothing can be told: the experiment names no control.")
    assert "name the experiment" in expect_refusal(forage("verdict", folder=folder))
    assert "did you mean" in expect_refusal(
        forage("verdict", "--experiment", "shopp", folder=folder)
    )
