"""The settings of every kind: defaults that need nothing said, and nonsense refused in words."""

import re
from importlib import import_module
from typing import Any

import pytest
from pydantic import ValidationError

from service.bandits.kinds import KINDS
from service.definition.experiment import Definition
from service.definition.faults import faults_of
from service.features.model import Model
from tests.unit.test_experiment import shop

NETS = ["neural_linear_ts", "neural_linucb", "neural_ucb", "neural_ts", "neural_glm_ts",
        "bootstrap_ensemble", "mc_dropout", "static"]  # fmt: skip


def parsed(policy: dict[str, Any], **more: Any) -> Any:
    definition = shop("policies", {"p": policy}) | more
    return Definition.model_validate(definition).policies["p"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_needs_nothing_but_its_name_and_its_dump_is_itself(kind: str) -> None:
    policy = parsed({"kind": kind})
    assert parsed(policy.model_dump(mode="json")) == policy
    assert (policy.gamma, policy.decay_every) == (1.0, 20)
    assert (policy.window, policy.change) == (None, False)
    assert (policy.policy().net is not None) == (kind in NETS)


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"kind": "linucb", "gamma": 0.9, "window": 9}, "", "forget by gamma, or by window and change"),
    ({"kind": "neural_ucb", "form": "full", "gamma": 0.9}, "", "full form keeps its first rows"),
    ({"kind": "neural_ts", "form": "full", "gamma": 0.9}, "", "full form keeps its first rows"),
    ({"kind": "neural_ucb", "disjoint": True}, "disjoint", "is unknown"),
    ({"kind": "neural_glm_ts", "noise": 0.5}, "noise", "is unknown"),
    ({"kind": "greedy", "regressor": "forest"}, "regressor", "'linear', 'neural' or 'popularity'"),
    ({"kind": "static", "loss": "hinge"}, "loss", "'log' or 'squared'"),
]


@pytest.mark.parametrize(("policy", "setting", "message"), REFUSED)
def test_nonsense_is_refused_in_words(policy: dict[str, Any], setting: str, message: str) -> None:
    definition = shop("policies", {"p": policy})
    with pytest.raises(ValidationError) as caught:
        Definition.model_validate(definition)
    faults = faults_of(caught.value.errors(), definition)
    assert any(f.path.endswith(setting) and message in f.message for f in faults), faults


def test_full_may_forget_by_change_and_by_window() -> None:
    assert parsed({"kind": "neural_ucb", "form": "full", "change": True}).change
    assert parsed({"kind": "neural_ts", "form": "full", "window": 500}).window == 500


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_policy_takes_rewards_of_any_range(kind: str) -> None:
    """They are scaled to [0, 1] by their range, or by that of their sum."""
    assert parsed({"kind": kind}, reward={"range": [-35, 500], "default": None}).kind == kind
    assert parsed({"kind": kind}, reward={"aggregation": "sum", "total": [0, 9]}).kind == kind


def test_a_setting_keeps_the_head_in_every_kind_that_has_it_or_in_none() -> None:
    keep = frozenset[str]().union(*(model.keeps_head for model in KINDS.values()))
    assert keep > {"share", "epsilon", "learning", "alpha", "draws", "training"}
    for kind, model in KINDS.items():
        assert model.keeps_head == keep & model.model_fields.keys(), kind


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_is_read_in_its_own_file_and_at_most_two_bases(kind: str) -> None:
    own = [each for each in KINDS[kind].__mro__ if each.__module__.startswith("service.")]
    assert len([each for each in own if each is not Model]) <= 3
    assert "policy" in vars(KINDS[kind])


@pytest.mark.parametrize("kind", KINDS)
def test_the_file_of_a_kind_begins_with_its_formula(kind: str) -> None:
    said = import_module(KINDS[kind].__module__).__doc__ or ""
    assert re.match(rf"`{kind}`: .*\.\n\n    \S", said)


@pytest.mark.parametrize("kind", KINDS)
def test_every_setting_of_a_kind_says_what_it_means(kind: str) -> None:
    for name, field in KINDS[kind].model_fields.items():
        assert field.description or name == "kind", name
