"""forage init: the file that it writes can be served, explains every setting, and is not lost."""

import re
import tomllib
from pathlib import Path

import pytest
from pydantic import Field

from service.bandits.kinds import KINDS
from service.bandits.kinds.lints import LinTs
from service.cli.init import rendered
from service.cli.program import main
from service.definition.experiment import Definition, RewardRules, load_definition
from service.definition.rules import (
    AtMostRule,
    CapRule,
    DeclaredRule,
    ExploreRule,
    FloorRule,
    PinRule,
    Rules,
)
from service.features.declaration import Boolean, Categorical, Hashed, Numeric, Vector
from service.offline.checking import check, check_file
from tests.cli.forage import serving, started


def test_what_it_writes_is_valid_without_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "pet-shop.toml"
    assert main(["init", str(path)]) == 0
    checked = check_file(path)
    assert (checked.experiment, checked.findings) == ("pet-shop", [])
    assert str(path) in path.read_text()
    assert "@" not in path.read_text()


@pytest.mark.process
def test_what_it_writes_is_served_as_it_stands(tmp_path: Path) -> None:
    assert started("init", folder=tmp_path).returncode == 0
    with serving(tmp_path, "--experiment", "experiment.toml") as running:
        answer = running.post("/select", {"context": {"device": "phone"}})
        assert answer["experiment"] == "experiment"
        assert answer["arm"] in ("ball", "kibble", "novel")
        running.post("/reward", {"decision_id": answer["decision_id"], "reward": 1.0})


def test_every_setting_and_every_kind_is_in_it() -> None:
    text = rendered("shop", "shop.toml")
    named = set(re.findall(r"^(?:#: |# )?(\w+) = ", text, re.MULTILINE))
    for model in [*KINDS.values(), RewardRules, Numeric, Boolean, Categorical, Hashed, Vector]:
        for setting in model.model_fields:
            assert setting in named or f".{setting}]" in text, f"{model.__name__}.{setting}"
    for rule in (Rules, DeclaredRule, PinRule, CapRule, FloorRule, ExploreRule, AtMostRule):
        for name, field in rule.model_fields.items():
            setting = field.alias or name
            assert re.search(rf"\b{setting} = |\.{setting}\]", text), f"{rule.__name__}.{setting}"
    for setting in Definition.model_fields:
        assert f"[{setting}" in text or setting in named, setting
    for kind in KINDS:
        assert re.search(rf"\b{kind}\b", text)


def test_its_rules_can_be_taken_into_use() -> None:
    text = rendered("shop", "shop.toml")
    for title in ("attributes", "rules"):
        section = text[text.index(f"# [{title}]") :].partition("\n\n")[0]
        text = text.replace(section, re.sub("^# ?", "", section, flags=re.MULTILINE))
    assert check(text, "shop.toml", "shop").findings == []
    assert len(tomllib.loads(text)["rules"]) == 11


def test_a_kind_that_the_template_does_not_mention_is_in_it_with_its_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class MadeUp(LinTs):
        temperature: float = Field(0.5, description="Of the scores.")

    monkeypatch.setitem(KINDS, "made_up", MadeUp)  # type: ignore[arg-type]
    text = rendered("shop", "shop.toml")
    assert re.search(r"random\W+made_up$", text, re.MULTILINE)
    assert text.endswith(
        '# [policies.made_up]\n# kind = "made_up"\n# temperature = 0.5  # Of the scores.\n'
    )


def test_its_settings_at_their_default_are_those_of_the_models(tmp_path: Path) -> None:
    """What stands behind '#: ' changes nothing when it is taken into use."""
    text = rendered("shop", "shop.toml")
    given = tomllib.loads(text)["policies"]["main"]
    plain = KINDS["lints"](kind="lints")
    body = text.partition("[policies.main]")[2].partition("[policies.random]")[0]
    examples = {"window", "features", "noise", "retrieve"}  # what is left out has no value to write
    for setting, value in re.findall(r"^#: (\w+) = ([^#\n]+)", body, re.MULTILINE):
        assert setting not in given
        if setting not in examples:
            assert tomllib.loads(f"v = {value}")["v"] == getattr(plain, setting), setting


def test_it_does_not_overwrite_unless_forced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "shop.toml"
    path.write_text("mine")
    assert main(["init", str(path)]) == 1
    assert "--force" in capsys.readouterr().err
    assert path.read_text() == "mine"
    assert main(["init", str(path), "--force", "--name", "other"]) == 0
    assert load_definition(path)[0] == "other"


@pytest.mark.parametrize(
    ("file", "name"), [("über uns.toml", "ber-uns"), ("---.toml", "experiment")]
)
def test_a_name_is_made_of_any_file(file: str, name: str, tmp_path: Path) -> None:
    assert main(["init", str(tmp_path / file)]) == 0
    assert check_file(tmp_path / file).experiment == name


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["--name", "a/b"], "--name: letters"), (["/nowhere/at/all.toml"], "No such file")],
)
def test_what_cannot_be_written_is_said(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init", *arguments]) == 1
    assert said in capsys.readouterr().err
