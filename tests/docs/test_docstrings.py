"""Docstrings and descriptions say what a thing is or does: none begins as a fragment without its
noun. Ruff sees to it that those of functions begin with a verb."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PACKAGES = "service", "simulator_client", "clients/python/forage_client"

LEFT = (
    "service/bandits/order.py",
    "service/state/",
)
"""Paths of modules that are not gone through yet. Add none."""

FRAGMENT = re.compile(
    r"[a-z_]+:|(?:Of|As|At|Before|Beside|Between|By|For|From|In|On|That|Those|To|Until|Whoever|Whose|With"
    r"|Without)\b"
)


def texts(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield each docstring, also of an attribute or constant, and each `description`, with its
    line."""
    for node in ast.walk(tree):
        described = isinstance(node, ast.keyword) and node.arg == "description"
        if described or isinstance(node, ast.Expr):
            match node.value:
                case ast.Constant(value=str(text)):
                    yield node.value.lineno, text


def fragments(source: str) -> list[tuple[int, str]]:
    """Return the lines and beginnings of texts that begin as fragments."""
    return [(line, text[:40]) for line, text in texts(ast.parse(source)) if FRAGMENT.match(text)]


@pytest.mark.parametrize("package", PACKAGES)
def test_no_text_begins_as_a_fragment(package: str) -> None:
    found = {
        path: said
        for file in sorted((ROOT / package).rglob("*.py"))
        if not (path := str(file.relative_to(ROOT))).startswith(LEFT)
        and (said := fragments(file.read_text()))
    }
    assert not found, "name the thing first: `Seconds between two looks.`"


@pytest.mark.parametrize("path", LEFT)
def test_only_modules_with_fragments_are_left(path: str) -> None:
    files = sorted((ROOT / path).rglob("*.py")) if path.endswith("/") else [ROOT / path]
    assert any(fragments(file.read_text()) for file in files), "mended: remove it from LEFT"


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('STEP = 1\n"""Seconds between two looks."""', False),
        ('STEP = 1\n"""Between two looks."""', True),
        ('class A:\n    """Of a decision."""', True),
        ('def f(rows):\n    """rows: of a decision."""', True),
        ('class A:\n    x: int = Field(description="Of a decision.")', True),
        ('class A:\n    x: int = Field(description="Position of a decision.")', False),
    ],
)
def test_what_counts_as_a_fragment(source: str, found: bool) -> None:
    assert bool(fragments(source)) is found
