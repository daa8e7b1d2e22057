"""forage --help: what it lists, the nearest name to a wrong one, colour on a terminal alone."""

import io

import pytest

from service.__main__ import main
from service.cli.help import styled
from service.cli.program import COMMANDS as GROUPS
from service.observability.terminal import BOLD, coloured

COMMANDS = {name: group for group, names in GROUPS.items() for name in names}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def said(*arguments: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """The exit status and everything said."""
    status = main(arguments)
    output = capsys.readouterr()
    return status, output.out + output.err


def test_help_lists_every_command_once_under_its_group(capsys: pytest.CaptureFixture[str]) -> None:
    status, told = said("--help", capsys=capsys)
    assert status == 0
    lines = told.splitlines()
    group, found = "", {}
    for line in lines:
        if line.endswith(":") and not line.startswith(" "):
            group = line[:-1]
        elif line.startswith("  ") and line.split()[0] in COMMANDS and group in GROUPS:
            found[line.split()[0]] = group
    assert found == COMMANDS
    assert max(map(len, lines)) <= 100


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command_has_an_example_that_is_accepted(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, told = said(command, "--help", capsys=capsys)
    assert status == 0
    examples = told.partition("examples:\n")[2]
    assert examples.lstrip().startswith(f"forage {command} ") or f"forage {command}" in examples
    assert len(told.splitlines()) < 60


@pytest.mark.parametrize(
    ("arguments", "near"),
    [
        (["serv"], "No such command 'serv'. Did you mean 'serve'?"),
        (["exprot"], "Did you mean 'export'?"),
        (["xyz"], "No such command 'xyz'; see forage --help"),
        (["serve", "--prot", "1"], "No such option: --prot (Possible options: --host, --port)"),
        (["serve", "--stroe=x"], "--store"),
        (["check", "a.toml", "--jason"], "--json"),
    ],
)
def test_a_wrong_name_ends_with_2_and_the_nearest_one(
    arguments: list[str], near: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, told = said(*arguments, capsys=capsys)
    assert status == 2
    assert near in told
    assert "Traceback" not in told


def test_headings_are_bold_on_a_terminal_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    help_text = "Usage: forage COMMAND\n\nStart:\n  serve  answer\n"
    assert styled(help_text, Terminal()).startswith(f"{BOLD}usage:")
    assert f"{BOLD}Start:" in styled(help_text, Terminal())
    assert "\033" not in styled(help_text, io.StringIO())


@pytest.mark.parametrize(("variable", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_no_color_is_honoured(variable: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert coloured(Terminal())
    monkeypatch.setenv(variable, value)
    assert not coloured(Terminal())


def test_an_empty_no_color_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """As no-color.org has it."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "")
    assert coloured(Terminal())
