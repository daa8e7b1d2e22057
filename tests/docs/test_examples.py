"""The examples of the README and of the pages for beginners run, and print what they show."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.docs.page import DOCS, ROOT, blocks
from tests.docs.session import Session

MOST_WORDS = 800
SDK = DOCS.parent / "service" / "http" / "static" / "sdk"


@pytest.mark.process
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("page", "least"),
    [
        ("README.md", 3),
        ("docs/api.md", 18),
        ("docs/your-experiment.md", 2),
        pytest.param("docs/quickstart.md", 9, marks=pytest.mark.slow),  # it trains a net
    ],
)
def test_its_examples_run_and_print_what_they_say(page: str, least: int, tmp_path: Path) -> None:
    with Session(tmp_path) as session:
        assert session.run(ROOT / page) >= least


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= MOST_WORDS


def test_the_readme_names_targets_that_exist() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    named = set(
        re.findall(r"\bmake (\w+)\b(?!-)", "".join(re.findall(r"`[^`]+`|^make .*", readme, re.M)))
    )
    assert {"demo", "test"} <= named <= set(targets)


@pytest.mark.process
def test_the_script_of_the_quick_start_uses_what_the_sdk_has(tmp_path: Path) -> None:
    [page] = [block for block in blocks(DOCS / "quickstart.md") if block.language == "html"]
    [script] = re.findall(r"<script type=\"module\">\n(.*?)</script>", page.text, re.DOTALL)
    [(names, address)] = re.findall(r"import \{ (.*) \} from \"(.*)\";", script)
    assert address == "./loader.js"
    source = (SDK / "loader.js").read_text(encoding="utf-8")
    for name in names.split(", "):
        assert f"export function {name}(" in source
    for call in re.findall(r"forage\.(\w+)\(", script):
        assert re.search(rf"\b{call}\b", source), call
    if node := shutil.which("node"):
        file = tmp_path / "script.mjs"
        file.write_text(script)
        subprocess.run([node, "--check", file], check=True)
