"""Rules over HTTP: what may be shown, what answers and explanations name, what is refused."""

from collections.abc import Iterator
from typing import Any

import pytest

from service.offline.audit import Audit
from tests.support.service import Json, Wire, expect_problem, serving

TOY = {"category": "toy"}
IN_STOCK = {"in_stock": {"eligible_if": "stock > 0"}}


def ruled(wire: Wire, rules: Json, **more: Any) -> None:
    """Give the shop rules; its arms have a stock: kibble 3, mouse 0, ball 5."""
    arms = wire.definition()["arms"]
    for arm, stock in (("kibble", 3), ("mouse", 0), ("ball", 5)):
        arms[arm] = {**arms[arm], "stock": stock}
    wire.redefine(attributes={"stock": "number"}, arms=arms, rules=rules, **more)


def ask(wire: Wire, key: str | None = None, **question: Any) -> Any:
    headers = {} if key is None else {"Idempotency-Key": key}
    return wire.post("/select", {"context": {"persona": "cat"}, **question}, headers=headers)


def chances(wire: Wire, decision: Json) -> dict[str, float]:
    return {each["arm"]: each["probability"] for each in wire.explain(decision)["candidates"]}


@pytest.fixture
def stocked(wire: Wire) -> Wire:
    ruled(wire, IN_STOCK)
    return wire


# -- eligibility -----------------------------------------------------------------------------------


def test_an_arm_that_is_not_eligible_is_no_candidate(stocked: Wire) -> None:
    decision = stocked.select(policy="named_only")
    assert chances(stocked, decision) == {"kibble": 0.5, "ball": 0.5}
    assert (decision["rules"], decision["relaxed"]) == (["in_stock"], [])


def test_a_patch_of_an_attribute_changes_eligibility_at_once(stocked: Wire) -> None:
    stocked.request("PATCH", "/arms/mouse", json={"attributes": {"stock": 1}})
    decision = stocked.select(policy="named_only")
    assert chances(stocked, decision).keys() == {"kibble", "mouse", "ball"}
    assert decision["rules"] == []
    stocked.request("PATCH", "/arms/ball", json={"attributes": {"stock": None}})
    assert chances(stocked, stocked.select()).keys() == {"kibble", "mouse"}


def test_where_no_arm_is_eligible_the_refusal_names_the_rule(stocked: Wire) -> None:
    problem = expect_problem(ask(stocked, arms=["mouse"]), 409)
    assert problem["type"].endswith("/no-eligible-arm")
    assert problem["detail"] == "no arm is eligible: 'in_stock' removed the last arm"
    problem = expect_problem(ask(stocked, exclude=["kibble", "ball"]), 409)
    assert "'in_stock' removed the last arm" in problem["detail"]
    problem = expect_problem(ask(stocked, only=["gone"]), 409)
    assert "'only' removed the last 3 arms" in problem["detail"]


def test_an_item_of_a_batch_is_refused_alone(stocked: Wire) -> None:
    items = [{"context": {"persona": "cat"}, "arms": [arm]} for arm in ("mouse", "ball")]
    results = stocked.post("/select/batch", {"requests": items}).json()["results"]
    assert [each["status"] for each in results] == [409, 200]
    assert results[0]["problem"]["type"].endswith("/no-eligible-arm")


def test_if_empty_is_shown_where_no_arm_is_eligible(wire: Wire) -> None:
    ruled(wire, {**IN_STOCK, "if_empty": "mouse"})
    decision = wire.select(only=["mouse"], top_k=2)
    assert [each["arm"] for each in decision["ranking"]] == ["mouse"]
    assert (decision["propensity"], decision["rules"]) == (1.0, ["if_empty"])
    told = wire.explain(decision)
    assert told["said"] == ["no arm was eligible, and 'mouse' is shown in place of them"]
    assert wire.select(arms=["ball"], exclude=["ball"])["arm"] == "mouse"
    assert wire.run(Audit(wire.services.store, "shop").run()).clean


def test_a_removed_if_empty_refuses_again(wire: Wire) -> None:
    ruled(wire, {**IN_STOCK, "if_empty": "mouse"})
    wire.delete("/arms/mouse")
    expect_problem(ask(wire, exclude=["kibble", "ball"]), 409)


def test_inline_arms_have_attributes_that_rules_read(stocked: Wire) -> None:
    arms = [
        {"id": "rope", "features": TOY, "attributes": {"stock": 2}},
        {"id": "bone", "features": TOY, "attributes": {"stock": 0}},
        {"id": "fish", "features": TOY},
        "ball",
    ]
    decision = stocked.select(policy="named_only", arms=arms)
    assert chances(stocked, decision) == {"rope": 0.5, "ball": 0.5}
    assert decision["rules"] == ["in_stock"]


@pytest.mark.parametrize("policy", ["ts", "ucb"])
def test_a_search_in_the_catalogue_never_shows_an_arm_that_is_not_eligible(
    wire: Wire, policy: str
) -> None:
    catalogue = {f"arm{number}": {**TOY, "stock": 3 * (number % 10 == 0)} for number in range(300)}
    policies = {
        "ts": {"kind": "lints", "retrieve": 3},
        "ucb": {"kind": "linucb", "retrieve": 3, "share": 0},
    }
    rules = {**IN_STOCK, "ad": {"pin": {"arm": "arm1", "share": 0.1}}}
    wire.redefine(attributes={"stock": "number"}, arms=catalogue, policies=policies, rules=rules)
    eligible = {arm for arm, values in catalogue.items() if values["stock"]}
    for _ in range(10):
        decision = wire.select(policy=policy, top_k=2)
        found = chances(wire, decision).keys()
        assert found <= eligible
        assert len(found) >= 3, "it searches among the arms that are eligible"
        assert (decision["rules"], decision["relaxed"]) == (["in_stock"], ["ad"])
        wire.reward(decision, rewards={each["arm"]: 1.0 for each in decision["ranking"]})
    few = [arm for arm in catalogue if arm not in ("arm0", "arm10")]
    assert wire.select(policy=policy, exclude=few)["arm"] in ("arm0", "arm10")
    expect_problem(ask(wire, policy=policy, only=["arm1", "arm3"]), 409)
    assert wire.run(Audit(wire.services.store, "shop").run()).clean


# -- what a request wants --------------------------------------------------------------------------


def test_a_request_excludes_arms_and_wants_some_alone(wire: Wire) -> None:
    decision = wire.select(policy="named_only", exclude=["mouse", "unheard of"])
    assert chances(wire, decision).keys() == {"kibble", "ball"}
    assert decision["rules"] == ["exclude"]
    decision = wire.select(policy="named_only", only=["mouse", "unheard of"])
    assert (decision["arm"], decision["propensity"]) == ("mouse", 1.0)
    told = wire.explain(decision)
    assert (told["rules"], told["said"]) == (
        ["only"],
        ["the request wanted none but the arms in its 'only'"],
    )


@pytest.mark.parametrize(
    "other", [{"exclude": ["ball"]}, {"exclude": []}, {"only": ["ball"], "exclude": ["mouse"]}]
)
def test_a_key_with_other_wishes_is_a_conflict(wire: Wire, other: Json) -> None:
    first = ask(wire, "once", exclude=["mouse"]).json()
    assert ask(wire, "once", exclude=["mouse"]).json()["id"] == first["id"]
    expect_problem(ask(wire, "once", **other), 409)


def test_a_ranking_is_shorter_where_fewer_arms_are_eligible(stocked: Wire) -> None:
    first = ask(stocked, "once", top_k=3).json()
    assert sorted(each["arm"] for each in first["ranking"]) == ["ball", "kibble"]
    again = ask(stocked, "once", top_k=3).json()
    assert (again["id"], again["ranking"]) == (first["id"], first["ranking"])
    expect_problem(ask(stocked, "once", top_k=1), 409)


def test_a_key_gets_its_rules_again_though_they_have_gone(stocked: Wire) -> None:
    first = ask(stocked, "once").json()
    stocked.redefine(rules={})
    assert ask(stocked, "once").json()["rules"] == first["rules"] == ["in_stock"]


# -- explanations ----------------------------------------------------------------------------------


EXPLAINED: list[tuple[Json, list[str]]] = [
    (IN_STOCK, ["'in_stock' removed arms that are not eligible"]),
    (
        {"ad": {"pin": {"arm": "ball", "share": 0.1}}},
        ["'ball' is pinned at 10 percent of slot 1"],
    ),
    (
        {"few": {"cap": {"arm": "ball", "share": 0.2}}},
        ["'ball' is at its cap of 20 percent"],
    ),
    (
        {"some": {"floor": {"arm": "ball", "share": 0.505}}},
        ["'ball' is at its floor of 50.5 percent"],
    ),
    (
        {"food": {"cap": {"of": "category", "is": "food", "share": 0.25}}},
        ["'food' is at its cap of 25 percent"],
    ),
    (
        {"half": {"floor": {"of": "category", "is": "food", "share": 0.5}}},
        ["'food' is at its floor of 50 percent"],
    ),
    (
        {"none_left": {"floor": {"of": "stock", "is": 0, "share": 0.6}}},
        ["stock = 0 is at its floor of 60 percent"],
    ),
    (
        {"two": {"cap": {"of": "arm", "share": 1 / 3}}},
        ["'kibble', 'mouse', 'ball' are at their cap of 33.3333 percent"],
    ),
    (
        {"fresh": {"floor": {"of": "new", "fewer_than": 9, "share": 1.0}}},
        ["new arms are at their floor of 100 percent"],
    ),
    (
        {"even": {"explore": {"share": 1.0}}},
        ["'even' gives arms their parts of 100 percent uniform choice"],
    ),
]


@pytest.mark.parametrize(("rules", "said"), EXPLAINED, ids=[next(iter(r)) for r, _ in EXPLAINED])
def test_an_explanation_says_what_rules_did(wire: Wire, rules: Json, said: list[str]) -> None:
    ruled(wire, rules)
    told = wire.explain(wire.select(policy="named_only"))
    assert (told["rules"], told["relaxed"], told["said"]) == ([*rules], [], said)


def test_an_explanation_reads_values_of_inline_arms_as_they_were_sent(wire: Wire) -> None:
    ruled(wire, {"gone": {"cap": {"of": "stock", "is": 0, "share": 0.25}}})
    arms = [{"id": arm, "features": TOY, "attributes": {"stock": 0}} for arm in ("rope", "bone")]
    told = wire.explain(wire.select(policy="named_only", arms=[*arms, "ball"]))
    assert told["said"] == ["stock = 0 is at its cap of 25 percent"]


def test_an_explanation_says_what_a_slate_left_out(wire: Wire) -> None:
    ruled(wire, {"mixed": {"at_most": {"of": "category", "per_slate": 1}}})
    told = wire.explain(wire.select(top_k=2))
    assert (told["rules"], told["said"]) == (
        ["mixed"],
        ["'mixed' shows at most 1 arm of one 'category'"],
    )


def test_a_rule_that_yields_is_named_and_explained(wire: Wire) -> None:
    rules = {
        "first": {"pin": {"arm": "ball", "share": 0.7}},
        "second": {"pin": {"arm": "kibble", "share": 0.6, "if": "persona == 'cat'"}},
    }
    ruled(wire, rules)
    decision = wire.select(policy="named_only")
    told = wire.explain(decision)
    assert decision["relaxed"] == told["relaxed"] == ["second"]
    assert told["said"] == [
        "'ball' is pinned at 70 percent of slot 1",
        "'second' held chances where they are",
        "'second' could not hold beside others",
    ]


def test_a_rule_that_has_gone_or_changed_is_explained_by_its_name(wire: Wire) -> None:
    ruled(wire, {"few": {"cap": {"arm": "ball", "share": 0.2}}})
    decision = wire.select(policy="named_only")
    wire.redefine(rules={"few": {"cap": {"arm": "ball", "share": 0.3}}})
    assert wire.explain(decision)["said"] == ["'few' held chances where they are"]
    wire.redefine(rules={})
    told = wire.explain(decision)
    assert (told["rules"], told["said"]) == (["few"], ["'few'"])


# -- rules and the catalogue -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "rule",
    [
        {"pin": {"arm": "mouse", "share": 0.5}},
        {"cap": {"arm": "mouse", "share": 0.5}},
        {"floor": {"arm": "mouse", "share": 0.5}},
        {"arm": "mouse", "until": "2020-01-01T00:00:00Z"},
        None,
    ],
    ids=["pin", "cap", "floor", "until", "if_empty"],
)
def test_a_rule_outlives_the_arm_that_it_names_and_does_nothing(
    wire: Wire, rule: Json | None
) -> None:
    wire.redefine(rules={"named": rule} if rule else {"if_empty": "mouse"})
    assert wire.delete("/arms/mouse").status_code == 204
    decision = wire.select(policy="named_only")
    assert chances(wire, decision) == {"kibble": 0.5, "ball": 0.5}
    assert (decision["rules"], decision["relaxed"]) == ([], [])
    definition = wire.definition()
    assert (
        wire.put("/experiments/shop/policies/named_only/share", {"share": 0.5}).status_code == 200
    )
    answer = wire.put("/experiments/shop", definition)
    [fault] = expect_problem(answer, 422)["errors"]
    assert (fault["path"][:6], "no arm 'mouse'" in fault["message"]) == ("rules.", True)
    del definition["rules"]
    assert wire.put("/experiments/shop", definition).status_code == 200
    assert wire.run(Audit(wire.services.store, "shop").run()).clean


def test_changes_name_the_rules(wire: Wire) -> None:
    cap = {"cap": {"arm": "ball", "share": 0.5, "slots": "first"}}
    for rules, changes in [
        (
            {"a": cap, "measure": 0.1},
            {"added": ["rules.a"], "removed": [], "changed": ["rules.measure"]},
        ),
        ({"a": cap, "measure": 0.1}, {"added": [], "removed": [], "changed": []}),
        ({"b": cap}, {"added": ["rules.b"], "removed": ["rules.a"], "changed": ["rules.measure"]}),
        (
            {"b": {"cap": {**cap["cap"], "share": 0.4}}},
            {"added": [], "removed": [], "changed": ["rules.b"]},
        ),
    ]:
        answer = wire.put("/experiments/shop", {**wire.definition(), "rules": rules})
        found = answer.json()["changes"]
        assert {**found, "changed": [*found["changed"]]} == changes


# -- definitions -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "path", "message"),
    [
        ({"eligible_if": "stok > 0"}, "eligible_if",
         "column 1: there is no feature or attribute 'stok'; did you mean 'stock'?"),
        ({"pin": {"arm": "bal", "share": 0.1}}, "pin.arm", "no arm 'bal'; did you mean 'ball'?"),
        ({"cap": {"of": "arm", "share": 1.5}}, "cap.share", "less than or equal to 1"),
        ({"cap": {"of": "categry", "share": 0.5}}, "cap.of",
         "no attribute or feature of arms 'categry'; did you mean 'category'?"),
        ({"cap": {"of": "arm", "share": 0.5, "if": "stock > 0"}}, "cap.if",
         "column 1: there is no feature or attribute 'stock'"),
        ({"floor": {"of": "stock", "is": "many", "share": 0.5}}, "floor.is", "must be a number"),
        ({"pin": {"arm": "ball", "share": 0.1}, "explore": {"share": 0.1}}, "",
         "a rule does one thing, and this one has pin, explore"),
        ({"floor": {"of": "new", "share": 0.1, "younger_than": "2 weeks"}}, "floor.younger_than",
         'a number of s, m, h, d or w (seconds to weeks), as "14d"'),
        ({"from": "2026-12-01T00:00:00", "explore": {"share": 0.1}}, "from",
         "must be a time with its zone"),
        ({"cap": {"of": "arm", "share": 0.2}}, "", "cannot hold over the 3 arms that there are"),
    ],
)  # fmt: skip
def test_a_wrong_rule_is_refused_with_its_place(
    wire: Wire, rule: Json, path: str, message: str
) -> None:
    ruled(wire, {})
    before = wire.definition()
    answer = wire.put("/experiments/shop", {**before, "rules": {"r": rule}})
    faults = expect_problem(answer, 422)["errors"]
    assert [each["path"] for each in faults] == [".".join(filter(None, ["rules.r", path]))]
    assert message in faults[0]["message"]
    assert wire.definition() == before


def test_a_pin_of_an_arm_that_is_never_eligible_is_refused_by_its_features_alone(
    wire: Wire,
) -> None:
    pin = {"pin": {"arm": "mouse", "share": 0.1}}
    ruled(wire, {**IN_STOCK, "ad": pin})
    assert wire.select()["relaxed"] == ["ad"]
    rules = {"food": {"eligible_if": "category == 'food'"}, "ad": pin}
    answer = wire.put("/experiments/shop", {**wire.definition(), "rules": rules})
    [fault] = expect_problem(answer, 422)["errors"]
    assert fault == {
        "path": "rules.ad",
        "message": "pins an arm that is never eligible by food",
    }


@pytest.mark.parametrize("name", ["exclude", "only"])
def test_no_rule_has_the_name_of_a_member_of_requests(wire: Wire, name: str) -> None:
    definition = {**wire.definition(), "rules": {name: {"explore": {"share": 0.1}}}}
    [fault] = expect_problem(wire.put("/experiments/shop", definition), 422)["errors"]
    assert fault["path"] == f"rules.{name}"


def test_a_definition_is_answered_with_its_rules_as_they_were_given(wire: Wire) -> None:
    rules = {
        "in_stock": {"eligible_if": "stock > 0", "of": "category", "is": "food"},
        "ad": {"pin": {"arm": "ball", "slot": 1, "share": 0.1, "if": "persona == 'cat'"}},
        "if_empty": "ball",
    }
    ruled(wire, rules)
    assert wire.definition()["rules"] == rules
    changed = {**rules, "ad": {"pin": {"arm": "ball", "slot": 1, "share": 0.2}}}
    told = wire.redefine(rules=changed)
    assert (told["schema_version"], told["restarted"]) == (1, {})


# -- counts ----------------------------------------------------------------------------------------


@pytest.fixture
def counted() -> Iterator[Wire]:
    with serving() as wire:
        rules = {
            **IN_STOCK,
            "first": {"pin": {"arm": "ball", "share": 0.7}},
            "second": {"pin": {"arm": "kibble", "share": 0.6, "if": "persona == 'cat'"}},
        }
        ruled(wire, rules)
        wire.request("PATCH", "/arms/mouse", json={"attributes": {"stock": None}})
        yield wire


def test_decisions_are_counted_by_rule_and_outcome(counted: Wire) -> None:
    for _ in range(3):
        counted.select(policy="named_only")
    counted.select(policy="named_only", exclude=["mouse"])
    metrics = counted.metrics()
    of = 'forage_rule_decisions_total{{experiment="shop",outcome="{}",rule="{}"}}'
    assert metrics[of.format("held", "in_stock")] == 3
    assert metrics[of.format("held", "exclude")] == 1
    assert metrics[of.format("held", "first")] == 4
    assert metrics[of.format("relaxed", "second")] == 4
    assert of.format("relaxed", "first") not in metrics
    unknown = 'forage_rule_unknown_arms_total{experiment="shop",rule="in_stock"}'
    assert metrics[unknown] == 3
