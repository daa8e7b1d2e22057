"""Public names of the service: one name, one thing."""

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def definitions(module: str, source: str) -> Iterator[tuple[str, str]]:
    """Yield the public classes, aliases and constants of a module, each with what it stands for:
    equal assignments stand for the same, two classes never do."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef):
            yield node.name, f"{module}, line {node.lineno}"
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                for each in ast.walk(target):
                    if isinstance(each, ast.Name):
                        yield each.id, ast.unparse(node.value)


def duplicates(modules: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the public names that several modules give to different things, and these modules.

    modules: name -> source
    """
    found = defaultdict[str, dict[str, str]](dict)
    for module, source in modules.items():
        for name, meaning in definitions(module, source):
            if name[0].isupper():
                found[name][module] = meaning
    return {name: [*places] for name, places in found.items() if len({*places.values()}) > 1}


def test_a_name_means_one_thing_in_all_modules() -> None:
    modules = {
        str(path.relative_to(ROOT)): path.read_text()
        for path in sorted((ROOT / "service").rglob("*.py"))
    }
    found = duplicates(modules)
    assert not found, "give each thing a name that says what it is"


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        ("class Plan: ...", "class Plan: ...", False),
        ("class Plan: ...", "Plan = dict[str, int]", False),
        ("MOST = 4", "MOST = 5", False),
        ("MOST, LEAST = 4, 1", "MOST: Final = 5", False),
        ("DAY_S = 86_400.0", "DAY_S = 86400.0", True),
        ("_MOST = 4", "_MOST = 5", True),
        ("def test(): MOST = 4", "MOST = 5", True),
    ],
)
def test_what_counts_as_two_things(one: str, other: str, alike: bool) -> None:
    assert (not duplicates({"a": one, "b": other})) is alike
