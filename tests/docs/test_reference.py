"""docs/experiment.md names every setting of an experiment's JSON schema and says what it means.

`tests/docs/settings.py` writes those of policies."""

import json
import re

from service.definition.experiment import Definition
from service.offline.checking import check
from tests.docs.page import DOCS, blocks

PAGE = DOCS / "experiment.md"

SECTIONS = re.split(r"^#+ ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
ROW = re.compile(r"^\| `(\w+)` \| (.*) \| (.*) \| (.*) \|$", re.MULTILINE)

TITLES = {
    "Definition": "The file",
    "Features": "Features:",
    "RewardRules": "Rewards:",
    "Rules": "Rules:",
    "DeclaredRule": "A rule:",
    "PinRule": "Pins:",
    "CapRule": "Caps:",
    "FloorRule": "Floors:",
    "ExploreRule": "Exploration:",
    "AtMostRule": "Variety:",
    "RolloutDefaults": "Rollouts:",
    "Guardrails": "Guardrails:",
    "ShareGuardrail": "Shares of decisions:",
    "LatencyGuardrail": "Slow decisions:",
    "EntropyGuardrail": "Entropy:",
    "SampleRatioGuardrail": "Sample ratio:",
    "SegmentsGuardrail": "Segments:",
    "NeverBelow": "A loss budget:",
}
"""Sections of the models that are no kind of feature."""


def rows_of(title: str) -> dict[str, tuple[str, ...]]:
    """What the section with this title says of each setting: type, default, meaning."""
    [section] = [each for each in SECTIONS if each.startswith(title)]
    return {name: tuple(said) for name, *said in ROW.findall(section)}


def test_every_setting_of_the_schema_is_in_its_section_with_its_default() -> None:
    schema = Definition.model_json_schema()
    models = {"Definition": schema, **schema["$defs"]}
    checked = 0
    for name, model in models.items():
        settings = dict(model["properties"])
        if name == "Training" or "kind" in settings:
            continue
        tag = settings.pop("type", None)
        said = rows_of(f"`{tag['const']}`" if tag else TITLES[name])
        assert said.keys() == settings.keys(), name
        for setting, (_, default, _) in said.items():
            value = settings[setting].get("default")
            if isinstance(value, (bool, int, float, str)):
                assert default == f"`{json.dumps(value)}`", (name, setting)
        checked += len(settings)
    assert checked > 25


def test_every_setting_has_a_meaning() -> None:
    rows = [row for section in SECTIONS for row in ROW.findall(section)]
    assert len(rows) > 80
    assert [name for name, *said in rows if not all(said)] == []


def test_its_example_is_valid() -> None:
    [example] = [block for block in blocks(PAGE) if block.language == "toml"]
    assert check(example.text, "shop.toml", "shop").findings == []
