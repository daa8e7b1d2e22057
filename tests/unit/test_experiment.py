"""Definitions: what they refuse, in which words, and where; the shipped example loads."""

import copy
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

import service
from service.analysis.targets import read_definitions
from service.definition.experiment import Definition, load_definition
from service.definition.faults import ALTERNATIVES, FAULTS, MEMBERS_PER_PART, faults_of
from service.errors import ConfigurationError
from service.features.schema import Schema

SHOP: dict[str, Any] = {
    "features": {
        "context": {
            "pet": {"type": "categorical", "values": ["cat", "dog"]},
            "age": {"type": "numeric"},
        },
        "arm": {"kind": {"type": "categorical", "values": ["food", "toy"]}},
        "crosses": ["pet x kind"],
    },
    "policies": {"linucb": {"kind": "linucb"}},
    "reward": {"range": [0, 1]},
}


def shop(path: str, value: Any) -> dict[str, Any]:
    """SHOP with one value set at a dotted path."""
    changed = copy.deepcopy(SHOP)
    *parents, last = path.split(".")
    inner = changed
    for part in parents:
        inner = inner.setdefault(part, {})
    inner[last] = value
    return changed


REFUSED = [
    ("colour", 1, "colour", "is unknown"),
    ("policies", {}, "policies", "must have at least 1 member"),
    ("policies.linucb", {"kind": "linucp"}, "policies.linucb.kind", "mean 'linucb'?"),
    ("policies.linucb.alfa", 1, "policies.linucb.alfa", "is unknown"),
    ("policies.linucb.share", 0, "policies", "at least one needs a share above 0"),
    ("control", "linucp", "control", "no policy 'linucp'; did you mean 'linucb'?"),
    ("policies.linucb.noise", float("nan"), "policies.linucb.noise", "finite"),
    (
        "policies.linucb.features",
        ["size"],
        "policies.linucb",
        "feature 'size': there is no feature 'size'",
    ),
    ("policies.linucb.features", ["pet x size"], "policies.linucb", "there is no feature 'size'"),
    (
        "policies.linucb.features",
        ["pet", "pet"],
        "policies.linucb",
        "features: given more than once: 'pet'",
    ),
    (
        "policies.linucb",
        {"kind": "linucb", "disjoint": True, "features": ["pet", "kind"]},
        "policies.linucb",
        "feature 'kind': a disjoint policy sees the context only",
    ),
    (
        "policies.linucb",
        {"kind": "neural_linear_ts", "disjoint": True, "features": ["pet x kind"]},
        "policies.linucb",
        "feature 'pet x kind': a disjoint policy sees the context only",
    ),
    ("policies.my policy", {"kind": "random"}, "policies.my policy", "1 to 64 letters"),
    ("features.crosses", ["pet x size"], "features", "cross 'pet x size': there is no feature"),
    ("features.crosses", ["pet"], "features", "write two or more feature names as 'a x b'"),
    ("features.crosses", ["pet x pet"], "features", "write two or more feature names"),
    (
        "features.crosses",
        ["pet x kind"] * 2,
        "features",
        "crosses: given more than once: 'kind x pet'",
    ),
    ("features.arm.pet", {"type": "boolean"}, "features", "both context and arm features: pet"),
    ("features.arm.intercept", {"type": "boolean"}, "features", "name of the constant feature"),
    ("features.arm.a b", {"type": "boolean"}, "features.arm.a b", "1 to 64 letters"),
    (
        "features.arm.kind.values",
        ["food", "food"],
        "features.arm.kind",
        "values must differ from each other",
    ),
    (
        "features.arm.kind.default",
        "bed",
        "features.arm.kind",
        "default must be one of values",
    ),
    ("reward.range", [1, 1], "reward.range", "the lower end must be below the upper"),
    ("reward.range", [0, float("inf")], "reward.range.1", "finite"),
    ("reward.default", 2.0, "reward.default", "default lies outside range"),
    ("reward.range", ["0", 1], "reward.range.0", "must be a number"),
    ("policies.linucb.learning", 1, "policies.linucb.learning", "must be true or false"),
    (
        "policies.linucb.share",
        1e308,
        "policies.linucb.share",
        "must be less than or equal to",
    ),
    ("policies.linucb.alpha", "any", "policies.linucb.alpha", "must be a number or 'anytime'"),
]


@pytest.mark.parametrize(("path", "value", "where", "message"), REFUSED)
def test_a_wrong_definition_is_refused_with_the_path_and_the_reason(
    path: str, value: Any, where: str, message: str
) -> None:
    with pytest.raises(ValidationError) as caught:
        Definition.model_validate(shop(path, value))
    faults = faults_of(caught.value.errors(), shop(path, value))
    assert any(fault.path == where and message in fault.message for fault in faults), faults


@pytest.mark.parametrize(
    ("path", "member"),
    [
        *(("arms", member) for member in (1, {"kind": [[]]}, {"kind": None, "": {}})),
        ("policies", {"kind": "?"}),
        ("features.context", {"type": "?"}),
        ("features.arm", {"type": "?"}),
    ],
)
def test_of_thousands_of_faults_no_more_are_collected_than_are_reported(
    path: str, member: Any
) -> None:
    """Each takes a tenth of a millisecond, and holds every other request meanwhile."""
    whole = shop(path, {f"a{number}": member for number in range(3_000)})
    with pytest.raises(ValidationError) as refused:
        Definition.model_validate(whole)
    errors = refused.value.errors()
    assert 0 < len(errors) <= ALTERNATIVES * MEMBERS_PER_PART
    assert 0 < len(faults_of(errors, whole)) <= ALTERNATIVES * FAULTS


def test_faults_of_arms_far_apart_are_told_together() -> None:
    arms: dict[str, Any] = {f"a{number}": {} for number in range(1_000)}
    wrong = {"a7": 1, "a444": {"kind": []}, "a999": {"kind": {}}}
    whole = shop("arms", arms | wrong)
    with pytest.raises(ValidationError) as refused:
        Definition.model_validate(whole)
    found = {fault.path for fault in faults_of(refused.value.errors(), whole)}
    assert found >= {"arms.a7", "arms.a999.kind"}
    assert list(Definition.model_validate(shop("arms", arms)).arms) == list(arms)


@pytest.mark.parametrize("name", ["pet", "kind", "intercept"])
def test_an_attribute_has_a_name_of_its_own(name: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Definition.model_validate(shop("attributes", {name: "text", "stock": "number"}))
    [fault] = faults_of(caught.value.errors(), shop("attributes", {name: "text"}))
    assert (fault.path, fault.message) == (f"attributes.{name}", "is the name of a feature")


def test_features_and_attributes_of_an_arm_are_told_apart_by_their_declarations() -> None:
    whole = shop("attributes", {"stock": "number", "brand": "text"})
    whole["arms"] = {"rope": {"kind": "toy", "stock": 3, "other": 1}, "bone": {"kind": "food"}}
    definition = Definition.model_validate(whole)
    rope, bone = (definition.split(values) for values in definition.arms.values())
    assert rope == ({"kind": "toy", "other": 1}, {"stock": 3})
    assert bone == ({"kind": "food"}, {})
    features = {"rope": rope[0], "bone": bone[0]}
    assert definition.with_catalogue(features, {"rope": rope[1]}) == definition


def test_no_default_reward_can_be_said_in_toml_too() -> None:
    for none in ("none", None):
        definition = Definition.model_validate(shop("reward.default", none))
        assert definition.reward.default is None


def test_a_policy_that_has_no_feature_to_see_is_refused() -> None:
    definition = {
        "policies": {"net": {"kind": "neural_ucb"}},
    }
    with pytest.raises(ValidationError, match="there is no feature for it to see"):
        Definition.model_validate(definition)


@pytest.mark.parametrize(
    ("policy", "seen"),
    [
        ({"kind": "linucb"}, ["intercept", "pet", "age", "kind", "pet x kind"]),
        ({"kind": "linucb", "disjoint": True}, ["intercept", "pet", "age"]),
        ({"kind": "neural_ucb"}, ["pet", "age", "kind"]),
        ({"kind": "lints", "features": ["age x kind"]}, ["age x kind"]),
    ],
)
def test_a_policy_without_features_sees_all_that_fit_its_kind(
    policy: dict[str, Any], seen: list[str]
) -> None:
    definition = Definition.model_validate(shop("policies.p", policy))
    assert definition.features_of(definition.policies["p"]) == seen  # type: ignore[arg-type]


def test_a_definition_survives_json_and_its_dump_defines_the_same() -> None:
    definition = Definition.model_validate(shop("arms", {"a": {"kind": "toy"}}))
    assert Definition.model_validate(definition.model_dump(mode="json")) == definition


def test_the_shipped_example_loads_with_9_policies_and_50_arms() -> None:
    name, definition = load_definition(
        Path(service.__file__).parent / "definition/examples/zooplus.toml"
    )
    assert name == "zooplus"
    assert list(definition.policies) == [
        *["auto", "linucb", "linucb_disjoint", "lints", "neural_linear_ts", "neural_ucb"],
        *["popularity", "epsilon_greedy", "random"],
    ]
    schema = Schema(definition.features)
    assert schema.width == 9
    assert len([schema.encode_arm(features) for features in definition.arms.values()]) == 50
    assert definition.arms["4"] == {"category": "Dog Toy"}
    assert definition.arms["3"] == {"category": "Cat Toy"}


def refusal_of(path: Path, content: str | bytes) -> str:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(ConfigurationError) as caught:
        load_definition(path)
    assert str(caught.value).startswith(str(path))
    return str(caught.value)


def test_a_file_with_an_unknown_key_is_refused_with_its_path(tmp_path: Path) -> None:
    text = '[policies.a]\nkind = "linucb"\nalfa = 2\nfeatures = ["intercept"]\n[rewards]\nrange = 1'
    message = refusal_of(tmp_path / "shop.toml", text)
    assert "policies.a.alfa: is unknown; did you mean 'alpha'?" in message
    assert "rewards: is unknown; did you mean 'reward'?" in message


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[policies", "not TOML"),
        (b'\nname = "\xff"', "shop.toml: not UTF-8 (at line 2)"),
        (f"max_vector = {'9' * 5_001}", "not TOML: a number has more than 4,300 digits"),
        (f"arms = {'[' * 100_000}", "not TOML: it is nested too deeply"),
        ('name = "two words"', "name: must have 1 to 64 letters, digits"),
        ('name = "line\\n"', "name: must have 1 to 64 letters, digits"),
        ("name = 7", "name: must have 1 to 64 letters, digits"),
        (f'name = "{"n" * 65}"', "1 to 64 letters"),
        ("", "policies: is required"),
        ('[policies.a]\nkind = "neural_ucb"', "policies.a: there is no feature"),
    ],
)
def test_a_file_that_is_no_definition_says_what_is_wrong(
    tmp_path: Path, content: str | bytes, message: str
) -> None:
    assert message in refusal_of(tmp_path / "shop.toml", content)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"none.toml: No such file"):
        load_definition(tmp_path / "none.toml")


def test_a_file_without_a_name_takes_its_own(tmp_path: Path) -> None:
    path = tmp_path / "corner-shop.toml"
    path.write_text('policies = { r = { kind = "random" } }')
    assert load_definition(path)[0] == "corner-shop"


def test_a_byte_order_mark_is_no_part_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "shop.toml"
    path.write_text('name = "mall"\n[policies.r]\nkind = "random"', encoding="utf-8-sig")
    assert load_definition(path)[0] == "mall"
    assert read_definitions(path) == {"r": {"kind": "random"}}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("ideas.toml", '[r]\nkind = "random"'),
        ("ideas.json", '{"r": {"kind": "random"}}'),
        ("ideas.json", '{"arms": {}, "policies": {"r": {"kind": "random"}}}'),
    ],
)
def test_a_file_of_policies_may_hold_nothing_else(tmp_path: Path, name: str, text: str) -> None:
    """As `forage-sim --policy-file` takes it."""
    path = tmp_path / name
    path.write_text(text)
    assert read_definitions(path) == {"r": {"kind": "random"}}
    path.write_text("{}" if name.endswith("json") else "")
    with pytest.raises(ConfigurationError, match="there is no policy in it"):
        read_definitions(path)
