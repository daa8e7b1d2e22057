"""The examples of the README and of the pages for beginners run, and print what they show."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from forage_client import client

from tests.docs.page import DOCS, ROOT, blocks
from tests.docs.session import Session

MOST_WORDS = 800
SDK = DOCS.parent / "service" / "http" / "static" / "sdk"
PAGES = [
    ROOT / "README.md",
    ROOT / "clients" / "python" / "README.md",
    SDK / "README.md",
    *sorted(DOCS.glob("*.md")),
]
CLIENT = re.compile(r"\b(?:createForage|loadForage|(?:Async)?Forage)\((.*?)\)", re.DOTALL)
UNNAMED = re.compile(
    r":8000/(?:arms|policies)\b"
    r"|^forage(?:-sim load| evaluate| import| rebuild)\b(?!.* --experiment )",
    re.MULTILINE,
)


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


def names_its_experiment(example: str) -> bool:
    """Tell whether each decision, path and command of an example names its experiment. A client
    names it once for all its decisions."""
    asked = example.count("/select")
    if "/select/batch" in example:
        asked = example.count('"context":')
    return (
        example.count('"experiment":') >= asked
        and all("experiment" in options for options in CLIENT.findall(example))
        and not UNNAMED.search(example)
    )


def test_every_example_names_its_experiment() -> None:
    examples = {
        f"{page.relative_to(ROOT)}:{block.line}": block.text
        for page in PAGES
        for block in blocks(page)
        if block.language in ("sh", "python", "js", "html")
    }
    examples["docstring of the client"] = client.__doc__ or ""
    asks = [text for text in examples.values() if "/select" in text or CLIENT.search(text)]
    assert len(asks) >= 16
    assert [place for place, text in examples.items() if not names_its_experiment(text)] == []
