"""forage: options, version, openapi, and wrong settings."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from service import __version__
from service.cli.program import main
from service.settings import SECRET_SETTINGS, Settings
from tests.cli.forage import started
from tests.support.service import SHOP, openapi

CONFIGURATION = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text("utf-8")


@pytest.mark.process
def test_the_installed_command_prints_its_version() -> None:
    command = Path(sys.executable).with_name("forage")
    ended = subprocess.run([command, "--version"], capture_output=True, text=True, check=True)
    assert ended.stdout == f"forage {__version__}\n"


@pytest.mark.process
def test_openapi_prints_the_document() -> None:
    ended = started("openapi")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert json.loads(ended.stdout) == openapi()


# -- settings --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("FORAGE_PORT", "eighty"),
        ("FORAGE_PORT", "65536"),
        ("FORAGE_PORT", "-1"),
        ("FORAGE_MAX_ARMS", "0"),
        ("FORAGE_EXPIRY_SECONDS", "-1"),
        ("FORAGE_SNAPSHOT_EVERY_EVENTS", "often"),
        ("FORAGE_TRAINER", "maybe"),
        ("FORAGE_LOG_LEVEL", "loud"),
        ("FORAGE_TOKEN_KEYS", "SECRETVALUE"),
        ("FORAGE_TOKEN_KEYS", "U0VDUkVUVkFMVUU="),
    ],
)
def test_a_wrong_setting_is_named(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(name, value)
    assert main(["serve", "--port", "0"] if name != "FORAGE_PORT" else ["serve"]) == 1
    line = capsys.readouterr().err
    assert line.startswith(f"forage: {name}: ")
    assert line.count("\n") == 1
    assert value not in line or len(value) < 6


@pytest.mark.parametrize(
    ("store", "said"),
    [
        ("mysql://host/db", "unknown scheme 'mysql'"),
        ("forage.db", "use sqlite:///path"),
        ("sqlite://", "names no file"),
        ("sqlite:///", "names no file"),
        ("sqlite:////nowhere/at/all/forage.db", "does not exist"),
        ("redis://:SECRETVALUE@host:port/0", "not a Redis URL"),
    ],
)
def test_a_wrong_store_is_named(
    store: str, said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["serve", "--port", "0", "--store", store]) == 1
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("forage: ")
    assert said in line
    assert "SECRETVALUE" not in line


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--host 192.0.2.1", "cannot listen on 192.0.2.1:0"),
        ("--experiment nowhere.toml", "nowhere.toml: No such file or directory"),
        ("--trainer on", "FORAGE_TRAINER"),
    ],
)
def test_what_cannot_be_served_is_named(
    options: str, said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORAGE_OPEN", "true")
    assert main(["serve", "--port", "0", "--store", "memory://", *options.split()]) == 1
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [["train"], ["serve", "--port", "0", "--trainer", "on"]], ids=["train", "serve"]
)
def test_without_torch_a_trainer_is_refused_with_what_to_install(
    arguments: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("service.training.find_spec", lambda name: None)
    assert main([*arguments, "--store", f"sqlite:///{tmp_path}/forage.db"]) == 1
    assert "torch is not installed; pip install 'forage-bandits[train]'" in capsys.readouterr().err


def test_without_pyarrow_an_export_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [each for each in sys.modules if each.startswith("service.offline.archive")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert main(["export", "--to", str(tmp_path), "--store", f"sqlite:///{tmp_path}/f.db"]) == 1
    assert "pip install 'forage-bandits[archive]'" in capsys.readouterr().err


def test_every_setting_is_in_the_docs() -> None:
    settings = {name.upper() for name in Settings.model_fields}
    settings |= {f"{name.upper()}_FILE" for name in SECRET_SETTINGS}
    for name in settings:
        assert f"`FORAGE_{name}`" in CONFIGURATION, name
    where = {"ENV_FILE"}  # it says where settings are
    assert set(re.findall(r"`FORAGE_([A-Z_]+)", CONFIGURATION)) <= settings | where


# -- experiment files ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("[reward]", "[reward]\ncolour = 'SECRETVALUE'"), "reward.colour"),
        (("share = 3.0", "shares = 3.0"), "shares"),
        (
            ('name = "shop"', 'palette = "red"\nname = "shop"'),
            "  palette: is unknown; there are: ",
        ),
        (('category = "food"', 'category = "drink"'), "arms.kibble.category"),
        (("[reward]", "[reward"), "not TOML"),
        (('name = "shop"', 'name = "a/b"'), "name"),
    ],
)
def test_a_fault_in_an_experiment_file_is_told_by_file_and_path(
    change: tuple[str, str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "shop.toml"
    path.write_text(SHOP.read_text().replace(*change))
    assert main(["serve", "--port", "0", "--store", "memory://", "--experiment", str(path)]) == 1
    told = capsys.readouterr().err
    assert f"forage: {path}" in told
    assert said in told
    assert "SECRETVALUE" not in told
