"""forage apply: a running service's experiment becomes what a file says."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.forage import Ended, Serving, expect_refusal, forage, serving

SHOP = """\
[features.arm]
category = { type = "categorical", values = ["food", "toy"] }

[arms]
kibble = { category = "food" }
ball = { category = "toy" }

[policies.main]
kind = "lints"
"""

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("apply")


@pytest.fixture(scope="module")
def running(folder: Path) -> Iterator[Serving]:
    with serving(folder) as running:
        yield running


def apply(running: Serving, folder: Path, text: str, *options: str) -> Ended:
    (folder / "shop.toml").write_text(text)
    return forage("apply", "shop.toml", "--url", running.url, *options, folder=folder)


def test_a_file_is_sent_and_its_difference_printed(running: Serving, folder: Path) -> None:
    created = apply(running, folder, SHOP)
    assert created.returncode == 0
    assert created.stdout.splitlines() == [
        "+ arms.kibble",
        "+ arms.ball",
        "+ features.arm.category",
        "+ policies.main",
        "shop: is now revision 1",
    ]
    same = apply(running, folder, SHOP)
    assert (same.returncode, same.stdout) == (0, "shop: nothing to change\n")
    assert running.get("/experiments/shop")["revision"] == 1  # it was not sent

    other = SHOP.replace("ball", "rope").replace('"lints"', '"lints"\nridge = 2.0')
    expected = [
        "+ arms.rope",
        "- arms.ball",
        "~ policies.main.ridge: 1.0 -> 2.0",
        "policies.main starts from the prior: it learned with another ridge",
    ]
    dry = apply(running, folder, other, "--dry-run")
    assert (dry.returncode, dry.stdout.splitlines()) == (
        3,
        [*expected, "shop: would be revision 2"],
    )
    assert "ball" in running.get("/experiments/shop")["definition"]["arms"]
    done = apply(running, folder, other)
    assert (done.returncode, done.stdout.splitlines()) == (
        0,
        [*expected, "shop: is now revision 2"],
    )
    assert apply(running, folder, other, "--dry-run").returncode == 0
    told = json.loads(apply(running, folder, SHOP, "--dry-run", "--json").stdout)
    assert (told["revision"], told["changes"]["removed"]) == (3, ["arms.rope"])


def test_a_file_without_arms_empties_no_catalogue_unless_told_to(
    running: Serving, folder: Path
) -> None:
    assert apply(running, folder, SHOP).returncode == 0
    bare = "[policies.main]\nkind = 'lints'\n"
    refused = apply(running, folder, bare)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "replace=true" in refused.stderr
    assert "  arms: 2 go: 'kibble', 'ball'" in refused.stderr.splitlines()
    assert apply(running, folder, bare, "--replace").returncode == 0
    assert running.get("/experiments/shop")["definition"]["arms"] == {}


def test_a_faulty_file_and_a_service_that_is_gone_are_told(running: Serving, folder: Path) -> None:
    wrong = apply(running, folder, SHOP.replace("lints", "lint"))
    assert wrong.returncode == 1
    assert "policies.main.kind" in wrong.stderr
    unknown = apply(running, folder, SHOP.replace('"toy" }\n\n', '"joy" }\n\n'))
    assert unknown.returncode == 1
    assert "  arms.ball.category: is not one of the known values" in unknown.stderr
    gone = forage("apply", "shop.toml", "--url", "http://127.0.0.1:9", folder=folder)
    assert "does not answer as Forage" in expect_refusal(gone)
