"""Lines of decision-service logs, as Vowpal Wabbit and Azure Personalizer write them, as visits."""

import json
from pathlib import Path
from typing import Any

import pytest

from service.offline.dsjson import KnownFeatures, visit_of
from service.offline.visit_files import read

PERSON = (
    '{"_label_cost":-1.0,"_label_probability":0.8,"_label_Action":2,"_labelIndex":1,'
    '"o":[{"v":1.0,"EventId":"38cbf24f-70b2","ActionTaken":false}],'
    '"Timestamp":"2020-11-15T17:09:31.8350000Z","Version":"1","EventId":"38cbf24f-70b2",'
    '"a":[2,1],"c":{"GUser":{"id":"person5","major":"engineering","age":27},'
    '"_multi":[{"TAction":{"topic":"SkiConditions-VT"}},{"TAction":{"topic":"HerbGarden"}}]},'
    '"p":[0.8,0.2],"VWState":{"m":"N/A"}}'
)
COFFEE = (
    '{"_label_cost":-1,"_label_probability":0.05000000074505806,"_label_Action":3,'
    '"_labelIndex":2,"Timestamp":"2021-02-04T16:31:29.2460000Z","Version":"1",'
    '"EventId":"13118d9b4c11","a":[3,1,2],"c":{"FromUrl":[{"timeofday":"Afternoon",'
    '"weather":"Sunny","name":"Cathy"}],"_multi":[{"_tag":"Latte","i":{"constant":1,'
    '"id":"Latte"},"j":[{"type":"hot","roast":"dark"}]},{"_tag":"Mocha","i":{"constant":1,'
    '"id":"Mocha"},"j":[{"type":"cold","roast":"light"}]},{"i":{"constant":1,"id":"Brew"},'
    '"j":[{"type":"cold","roast":"light"}]}]},"p":[0.05,0.9,0.05],'
    '"VWState":{"m":"ff0744c1"},"_original_label_cost":-1}'
)
DANGLING = (
    '{"RewardValue":1.0,"EnqueuedTimeUtc":"2021-02-04T16:41:29.246Z","EventId":"77ab",'
    '"Observations":[{"v":1.0,"EventId":"77ab","ActionTaken":false}]}'
)
PEOPLE = KnownFeatures({"GUser.major": "categorical", "age": "numeric"}, {"topic": "hashed"})
DRINKS = KnownFeatures({"weather": "categorical"}, {"roast": "categorical"}, {"Latte"})


def taken(text: str, known: KnownFeatures) -> Any:
    return visit_of(json.loads(text), known)


def changed(text: str = PERSON, **changes: Any) -> str:
    return json.dumps({**json.loads(text), **changes})


def test_three_lines_of_a_log(tmp_path: Path) -> None:
    path = tmp_path / "log.dsjson"
    path.write_text("\n".join([PERSON, DANGLING, COFFEE]))
    (_, person), (number, why), _ = read(path, PEOPLE)
    assert person == {
        "id": "38cbf24f-70b2",
        "at": "2020-11-15T17:09:31.8350000Z",
        "context": {"GUser.major": "engineering", "age": 27},
        "arms": [
            {"id": "2", "features": {"topic": "HerbGarden"}},
            {"id": "1", "features": {"topic": "SkiConditions-VT"}},
        ],
        "arm": "2",
        "propensity": 0.8,
        "probabilities": [0.8, 0.2],
        "reward": 1.0,
    }
    assert number == 2
    assert "an observation without its decision (`RewardValue`, but no `_label_cost`)" in str(why)


def test_arms_are_named_by_tag_or_id_and_those_of_the_catalogue_by_that_alone() -> None:
    visit = taken(COFFEE, DRINKS)
    assert visit["arms"] == [
        {"id": "Brew", "features": {"roast": "light"}},
        "Latte",
        {"id": "Mocha", "features": {"roast": "light"}},
    ]
    assert (visit["arm"], visit["probabilities"]) == ("Brew", [0.05, 0.9, 0.05])
    assert visit["context"] == {"weather": "Sunny"}
    assert {"FromUrl.timeofday", "j.type"} < DRINKS.ignored


def test_a_cost_of_0_is_a_reward_of_0_and_no_reward_is_learned_of_a_skipped_line() -> None:
    assert str(taken(changed(_label_cost=0), PEOPLE)["reward"]) == "0.0"
    assert taken(changed(_label_cost=2.5), PEOPLE)["reward"] == -2.5
    assert "reward" not in taken(changed(_skipLearn=True), PEOPLE)


def test_an_action_listed_twice_has_the_sum_of_both_chances() -> None:
    visit = taken(changed(a=[2, 1, 2], p=[0.5, 0.2, 0.3], _label_probability=0.5), PEOPLE)
    assert [arm["id"] for arm in visit["arms"]] == ["2", "1"]
    assert (visit["probabilities"], visit["propensity"]) == ([0.8, 0.2], 0.8)
    twins = {"_multi": [{"_tag": "x" * 256, "T": {"topic": topic}} for topic in ("a", "a")]}
    assert taken(changed(c=twins), PEOPLE)["arm"] == "x" * 256
    twins["_multi"][1]["T"] = {"topic": "b"}
    assert "and other features" in taken(changed(c=twins), PEOPLE)


def test_values_take_the_types_of_their_features() -> None:
    known = KnownFeatures(
        {"plan": "categorical", "zip": "hashed", "on": "numeric", "new": "boolean", "v": "vector"}
    )
    given = {"plan": True, "zip": 8001, "on": True, "new": 1, "v": [1, 2], "off": None}
    visit = taken(changed(c={"A": [given], "_multi": [{}, {}]}), known)
    assert visit["context"] == {"plan": "true", "zip": "8001", "on": 1.0, "new": True, "v": [1, 2]}
    two = {"A": {"plan": "x"}, "B": {"plan": "y"}, "_multi": [{}, {}]}
    assert "plan is in several namespaces: A.plan, B.plan" in taken(changed(c=two), known)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"_outcomes": []}, "of several slots"),
        ({"c": {"_slots": [], "_multi": []}}, "of several slots"),
        ({"_label_ca": {}}, "of a number"),
        ({"pdrop": 0.5}, "`pdrop` is above 0"),
        ({"c": {}}, "`c` must hold `_multi`"),
        ({"c": {"_multi": [1]}}, "an object for each action"),
        ({"a": []}, "`a` must be a list"),
        ({"a": [0, 1]}, "numbers of actions, from 1 to the 2"),
        ({"_label_Action": 3}, "`_label_Action` is 3"),
        ({"_label_Action": "2"}, "must be the number of an action"),
        ({"p": [1.0]}, "a number for each action"),
        ({"p": ["x", "y"]}, "`p` must be a number"),
        ({"_label_cost": None}, "`_label_cost` must be a number"),
        ({"_label_cost": 10**400}, "`_label_cost` must be a number"),
    ],
)
def test_a_line_that_is_no_decision_of_one_action_says_why(
    changes: dict[str, Any], said: str
) -> None:
    assert said in taken(changed(**changes), PEOPLE)


@pytest.mark.parametrize("name", ["_label_cost", "EventId", "Timestamp", "_label_probability", "c"])
def test_a_line_without_a_part_names_it(name: str) -> None:
    line = json.loads(PERSON)
    del line[name]
    assert visit_of(line, PEOPLE) == f"there is no `{name}`"


def test_a_line_nested_too_deeply_is_refused() -> None:
    deep: Any = 1
    for _ in range(5_000):
        deep = {"a": deep}
    line = {**json.loads(PERSON), "c": {"A": deep, "_multi": [{}, {}]}}
    assert visit_of(line, PEOPLE) == "it is nested too deeply"
