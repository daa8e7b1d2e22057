"""Who changed what, and what held at an instant."""

from dataclasses import replace

import pytest

from service.log.stores.base import Trim
from service.log.stores.memory import MemoryStore
from service.state.changelog import CHANGE_KINDS, KINDS_BY_NAME, NOTABLE_KINDS
from service.state.events import TrafficChanged
from tests.support.keys import Keys
from tests.support.service import Json, Wire, expect_problem, paths

CHANGES = "/experiments/shop/changes"
TOY = {"category": "toy"}


@pytest.fixture
def wire(signed: Wire) -> Wire:
    return signed


def listed(wire: Wire, **asked: object) -> Json:
    answer = wire.get(CHANGES, params=asked)
    assert answer.status_code == 200, answer.text
    found: Json = answer.json()
    return found


def sentences(wire: Wire, **asked: object) -> list[str]:
    return [change["sentence"] for change in listed(wire, **asked)["changes"]]


def share(wire: Wire, value: float) -> None:
    wire.put("/experiments/shop/policies/linucb/share", {"share": value})


def rule(wire: Wire, share: float) -> None:
    wire.redefine(rules={"cap": {"cap": {"arm": "kibble", "share": share}}})


def test_the_newest_change_comes_first_in_a_plain_sentence(wire: Wire) -> None:
    wire.select(unit="ann")
    share(wire, 0.2)
    wire.post("/experiments/shop/policies/linucb/reset")
    wire.put("/experiments/shop/arms/rope", {"features": TOY})
    wire.delete("/experiments/shop/arms/rope")
    wire.delete("/units/ann")
    found = listed(wire)["changes"]
    assert [(each["kind"], each["revision"], each["by"]) for each in found] == [
        ("erased", None, "shop team"),
        ("arm_removed", None, "shop team"),
        ("arm_set", None, "shop team"),
        ("reset", 3, "shop team"),
        ("shares_set", 2, "shop team"),
        ("defined", 1, "forage serve"),
    ]
    assert [each["sentence"] for each in found] == [
        "'shop team' erased 1 decision",
        "'shop team' removed arm 'rope'",
        "'shop team' set arm 'rope'",
        "'shop team' reset policy 'linucb'",
        "'shop team' set the share of 'linucb' to 0.2",
        "'forage serve' defined the experiment",
    ]


def test_a_rule_is_compared_value_by_value(wire: Wire) -> None:
    rule(wire, 0.3)
    rule(wire, 0.2)
    assert sentences(wire, limit=2) == [
        "'shop team' changed rule 'cap': cap.share 0.3 -> 0.2",
        "'shop team' added rule 'cap'",
    ]


def test_arms_that_changed_by_themselves_are_not_said_of_a_definition(wire: Wire) -> None:
    wire.put("/experiments/shop/arms/rope", {"features": TOY})
    wire.redefine(arms=wire.definition()["arms"])
    assert sentences(wire, limit=1) == [
        "'shop team' defined the experiment again, with nothing changed but arms at most"
    ]
    wire.redefine(arms={**wire.definition()["arms"], "ring": TOY})
    assert sentences(wire, limit=1) == ["'shop team' added arm 'ring'"]


def test_pages_follow_each_other_to_the_first_change(wire: Wire) -> None:
    for value in (0.1, 0.2, 0.3, 0.4):
        share(wire, value)
    whole, found, before = listed(wire)["changes"], list[Json](), {}
    while True:
        page = listed(wire, limit=2, **before)
        found += page["changes"]
        if page["next"] is None:
            break
        before = {"before": page["next"]}
    assert [each["position"] for each in found] == [5, 4, 3, 2, 1]
    assert found == whole


def test_notable_changes_alone_are_those_of_what_visitors_are_served(wire: Wire) -> None:
    share(wire, 0.1)
    for arm in ("rope", "ring"):
        wire.put(f"/experiments/shop/arms/{arm}", {"features": TOY})
    share(wire, 0.2)
    first = listed(wire, notable=True, limit=2)
    assert [each["position"] for each in first["changes"]] == [5, 2]
    rest = listed(wire, notable=True, limit=2, before=first["next"])
    assert [each["position"] for each in rest["changes"]] == [1]
    assert wire.get("/experiments/shop/status").json()["last_change"] == 5


def test_every_notable_kind_is_a_kind_of_change() -> None:
    assert KINDS_BY_NAME.keys() >= NOTABLE_KINDS


def test_a_sentence_has_the_reason(wire: Wire) -> None:
    body = {"share": 0.5, "reason": "too few clicks"}
    wire.put("/experiments/shop/policies/linucb/share", body)
    said = "'shop team' set the share of 'linucb' to 0.5: 'too few clicks'"
    assert sentences(wire, limit=1) == [said]


def test_of_shares_that_are_no_longer_listed_nothing_is_said(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The definition before them has others."""
    few = replace(CHANGE_KINDS[TrafficChanged], kept=1)
    monkeypatch.setitem(KINDS_BY_NAME, few.name, few)
    share(wire, 0.1)
    wire.sleep(10.0)
    wire.put("/experiments/shop/arms/rope", {"features": TOY})
    then = wire.clock.time()
    wire.sleep(10.0)
    assert listed(wire, at=str(then))["then"]["shares"]["linucb"] == 0.1
    share(wire, 0.2)
    held = listed(wire, at=str(then))["then"]
    assert (held["shares"], held["versions"], held["revision"]) == (None, None, None)
    assert listed(wire, revision=3)["then"]["shares"]["linucb"] == 0.2


def test_an_instant_has_the_definition_shares_and_versions_of_then(wire: Wire) -> None:
    before = wire.clock.time()
    wire.sleep(10.0)
    share(wire, 0.2)
    wire.sleep(10.0)
    share(wire, 0.4)
    then = listed(wire, at=str(before + 15.0))
    assert [each["revision"] for each in then["changes"]] == [2, 1]
    held = then["then"]
    assert (held["revision"], held["shares"]["linucb"], held["gone"]) == (2, 0.2, None)
    assert held["definition"]["policies"]["linucb"]["share"] == 0.2
    assert held["versions"] == dict.fromkeys(held["shares"], 0)
    assert listed(wire, revision=2)["then"] == held
    assert listed(wire, at=str(before + 1e6))["then"]["shares"]["linucb"] == 0.4
    iso = listed(wire, at="2999-01-31T12:00:00+01:00")
    assert iso["then"]["revision"] == 3
    problem = expect_problem(wire.get(f"{CHANGES}?at=1"), 404)
    assert problem["detail"] == "the experiment did not exist then"


def test_a_deleted_experiment_keeps_its_history(wire: Wire) -> None:
    share(wire, 0.2)
    wire.delete("/experiments/shop")
    found = listed(wire)
    assert found["deleted"]
    assert found["changes"][0]["sentence"] == "'shop team' deleted the experiment"
    gone = listed(wire, revision=3)["then"]
    assert (gone["definition"], gone["gone"]) == (None, "revision 3 deleted the experiment")
    held = listed(wire, revision=2)["then"]["definition"]
    wire.put("/experiments/shop", held)
    assert not listed(wire)["deleted"]
    assert sentences(wire, limit=1) == ["'shop team' defined the experiment"]
    assert listed(wire)["changes"][0]["revision"] == 4


@pytest.mark.parametrize(
    "query",
    [
        *("at=NaN", "at=inf", "at=-inf", "at=1e999", "at=", "at=yesterday", "at=2026-01-31"),
        *("at=2026-01-31T12:00:00", "at=2026-01-31T12:00:00+01:00", "at=" + "9" * 65),
        *("revision=0", "revision=-1", "revision=x", "revision=" + "9" * 30),
        *("before=0", "limit=0", "limit=101", "at=1&revision=1"),
    ],
)
def test_a_faulty_question_is_refused(wire: Wire, query: str) -> None:
    problem = expect_problem(wire.get(f"{CHANGES}?{query}"), 422)
    assert paths(problem)


def test_an_unknown_revision_and_an_unknown_experiment_are_not_found(wire: Wire) -> None:
    problem = expect_problem(wire.get(f"{CHANGES}?revision=9"), 404)
    assert problem["detail"] == "revision 9 was never made"
    expect_problem(wire.get("/experiments/nowhere/changes"), 404)


def test_an_event_that_was_trimmed_is_said_to_be_gone(wire: Wire, store: MemoryStore) -> None:
    rule(wire, 0.2)
    rule(wire, 0.4)
    [live] = wire.services.log.replicas.by_name.values()
    wire.run(wire.services.log.snapshots.save_origin(live))
    wire.run(store.trim("shop", Trim(2, 0, 0.0), 100))
    found = listed(wire)["changes"]
    assert found[1]["sentence"] == "defined by 'shop team': the log no longer holds the details"
    held = listed(wire, revision=2)["then"]
    assert held["definition"] is None
    assert held["gone"] == "the log no longer holds the definition of revision 2"
    held = listed(wire, revision=3)["then"]
    assert held["definition"]["rules"]["cap"]["cap"]["share"] == 0.4


@pytest.mark.parametrize("name", ["admin", "bound", "elsewhere", "select", "metrics", "expired"])
def test_who_reads_the_definition_reads_its_changes(guarded: Wire, keys: Keys, name: str) -> None:
    definition = guarded.get("/experiments/shop", headers=keys.headers(name))
    found = guarded.get(CHANGES, headers=keys.headers(name))
    assert found.status_code == definition.status_code
    assert (found.status_code == 200) == (name in ("admin", "bound"))
