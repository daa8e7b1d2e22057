"""forage --help, and a command line with a wrong name."""

import subprocess
import sys

import pytest

from service.cli.program import main

PANELS = {
    "Start": ["serve", "init", "check", "apply", "history", "diff", "revert", "rollout"],
    "Learn and compare": ["train", "versions", "verdict", "evaluate"],
    "Look after the log": [
        "audit",
        "export",
        "import",
        "backup",
        "copy",
        "restore",
        "repair",
        "rebuild",
    ],
    "Operate": ["plan", "doctor", "openapi", "keys"],
}
COMMANDS = [command for commands in PANELS.values() for command in commands]


def test_help_lists_every_command_once_in_its_panel(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    found: dict[str, list[str]] = {}
    panel = ""
    for line in capsys.readouterr().out.splitlines():
        if line.startswith("╭─ "):
            panel = line.strip("╭─╮ ")
        elif line.startswith("│ ") and not line.startswith("│  ") and panel != "Options":
            found.setdefault(panel, []).append(line.split()[1])
    assert found == PANELS


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command_has_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert any(line.startswith(f"forage {command}") for line in lines)


@pytest.mark.process
def test_help_imports_no_library_of_a_service() -> None:
    heavy = {"numpy", "scipy", "fastapi", "uvicorn", "pyarrow", "redis", "httpx"}
    script = (
        "import sys; from service.cli.program import main; main(['--help']); "
        f"print(sorted({heavy} & {{*sys.modules}}))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert ended.stdout.splitlines()[-1] == "[]"
