"""forage: options, version, openapi, and wrong settings."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from service import __version__
from service.cli.program import main
from service.settings import Settings
from tests.cli.forage import expect_refusal, forage, started
from tests.support.service import SHOP, openapi

CONFIGURATION = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text("utf-8")


@pytest.mark.process
def test_the_installed_command_prints_its_version() -> None:
    command = Path(sys.executable).with_name("forage")
    ended = subprocess.run([command, "--version"], capture_output=True, text=True, check=True)
    assert ended.stdout == f"forage {__version__}\n"


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("serve", ["--host", "--port", "--experiment", "--trainer", "--store", "--log-level"]),
        ("train", ["--follow", "--url", "--store", "--log-level"]),
        ("audit", ["--experiment", "--json", "--store", "Exit status"]),
        ("export", ["--to", "--experiment", "--follow", "--url"]),
        ("backup", ["--to", "--store"]),
        ("restore", ["--from", "--store"]),
        ("import", ["--experiment", "--policy", "--url", "--skip-bad"]),
    ],
)
def test_help_names_the_options(
    command: str, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, "--help"]) == 0
    printed = capsys.readouterr().out
    assert all(option in printed for option in options)


@pytest.mark.parametrize(
    "arguments",
    [[], ["sell"], ["serve", "--colour"], ["serve", "--port", "x"], ["export", "--to"], ["keys"]],
)
def test_a_wrong_command_line_ends_with_2_and_names_the_help(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert "--help)" in capsys.readouterr().err


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
        ("postgres://host/db", "unknown scheme 'postgres'"),
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


@pytest.mark.process
def test_a_wrong_store_ends_without_a_traceback(tmp_path: Path) -> None:
    line = expect_refusal(started("serve", "--store", "postgres://host/db", folder=tmp_path))
    assert "FORAGE_STORE" in line


def test_a_host_that_is_not_ours_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORAGE_OPEN", "true")
    assert main(["serve", "--port", "0", "--host", "192.0.2.1", "--store", "memory://"]) == 1
    assert "cannot listen on 192.0.2.1:0" in capsys.readouterr().err


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
    for name in [each for each in sys.modules if each.startswith("service.maintenance.archive")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert main(["export", "--to", str(tmp_path), "--store", f"sqlite:///{tmp_path}/f.db"]) == 1
    assert "pip install 'forage-bandits[archive]'" in capsys.readouterr().err


def test_a_trainer_beside_a_store_that_it_cannot_read_is_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["serve", "--port", "0", "--store", "memory://", "--trainer", "on"]) == 1
    assert "FORAGE_TRAINER" in capsys.readouterr().err


def test_every_setting_is_in_the_docs() -> None:
    for name in Settings.model_fields:
        assert f"`FORAGE_{name.upper()}`" in CONFIGURATION, name
    assert set(re.findall(r"`FORAGE_([A-Z_]+)", CONFIGURATION)) <= {
        "ENV_FILE",  # it says where settings are
        *(name.upper() for name in Settings.model_fields),
    }


# -- experiment files ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("[reward]", "[reward]\ncolour = 'SECRETVALUE'"), "reward.colour"),
        (("share = 3.0", "shares = 3.0"), "shares"),
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


def test_an_unknown_key_in_an_experiment_file_ends_the_start(tmp_path: Path) -> None:
    path = tmp_path / "shop.toml"
    path.write_text(f"colour = 'red'\n{SHOP.read_text()}")
    ended = forage("serve", "--port", "0", "--experiment", str(path), folder=tmp_path)
    assert ended.returncode == 1
    assert [line for line in ended.stderr.splitlines() if not line.startswith("{")] == [
        f"forage: {path}:",
        "  colour: is unknown: leave it out",
    ]


def test_an_experiment_file_that_is_missing_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["serve", "--port", "0", "--store", "memory://", "--experiment", "nowhere.toml"]
    assert main(arguments) == 1
    assert "nowhere.toml: No such file or directory" in capsys.readouterr().err
