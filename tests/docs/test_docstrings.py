"""Docstrings and descriptions say what a thing is or does: none begins as a fragment without its
noun. Ruff sees to it that those of functions begin with a verb."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PACKAGES = "service", "simulator_client", "clients/python/forage_client"

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
        str(file.relative_to(ROOT)): said
        for file in sorted((ROOT / package).rglob("*.py"))
        if (said := fragments(file.read_text()))
    }
    assert not found, "name the thing first: `Seconds between two looks.`"


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
