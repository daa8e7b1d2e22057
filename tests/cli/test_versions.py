"""forage versions: what a store holds of the versions of a policy."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.forage import Serving, expect_refusal, forage, serving

SHOP = {
    "features": {"arm": {"category": {"type": "categorical", "values": ["food", "toy"]}}},
    "arms": {"kibble": {"category": "food"}, "ball": {"category": "toy"}},
    "policies": {"main": {"kind": "lints"}},
}

pytestmark = pytest.mark.process


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Serving]:
    with serving(tmp_path) as running:
        running.client.put("/experiments/shop", json=SHOP).raise_for_status()
        yield running


def test_versions_are_listed_and_an_unknown_policy_is_refused(
    running: Serving, tmp_path: Path
) -> None:
    told = forage("versions", "shop", "main", folder=tmp_path)
    assert told.stdout.split()[:2] == ["version", "state"]
    listed = forage("versions", "shop", "main", "--json", folder=tmp_path)
    assert json.loads(listed.stdout) == {"versions": []}
    refused = forage("versions", "shop", "mane", folder=tmp_path)
    assert "there is no policy 'mane'" in expect_refusal(refused)
