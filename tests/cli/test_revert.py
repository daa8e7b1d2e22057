"""forage revert: the question that it asks, and races of revisions."""

from typing import Any

import pytest

from service.cli.program import main
from service.definition.difference import Difference, SettingChange
from service.definition.experiment import Definition
from service.offline import definition_client, past_definition
from service.offline.definition_client import DefinitionAnswer
from service.offline.past_definition import PastDefinition

DEFINITION = Definition.model_validate({"policies": {"main": {"kind": "random"}}})
CHANGES = Difference(changed={"policies.main.share": SettingChange(0.2, 1.0)})


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What the command sends to a service at revision 4."""
    sent = list[dict[str, Any]]()

    def send(name: str, definition: Definition, settings: object, **more: Any) -> DefinitionAnswer:
        sent.append(more)
        return DefinitionAnswer(revision=5, restarted={}, changes=CHANGES)

    def past(*asked: object) -> PastDefinition:
        return PastDefinition(DEFINITION, deleted=False)

    monkeypatch.setattr(definition_client, "send_definition", send)
    monkeypatch.setattr(past_definition, "past_definition", past)
    return sent


@pytest.mark.parametrize("answer", [True, False])
def test_it_asks_and_names_the_revision_it_changes(
    answer: bool, sent: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.cli.revert.confirm", lambda question: answer)
    assert main(["revert", "--revision", "3", "shop"]) == (0 if answer else 1)
    assert sent == [{"dry_run": True}, *([{"revision": 4}] if answer else [])]
