"""Requirements: declared where they are imported, bounded, and pinned by constraints.txt."""

import ast
import json
import re
import sys
import tomllib
from functools import cache

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from service import __version__
from tests.support.metrics import ROOT

FORAGE = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CLIENT = tomllib.loads((ROOT / "clients/python/pyproject.toml").read_text(encoding="utf-8"))[
    "project"
]
EXTRAS: dict[str, list[str]] = FORAGE["optional-dependencies"]
SDK = json.loads((ROOT / "service/http/static/sdk/package.json").read_text(encoding="utf-8"))
OURS = {FORAGE["name"], CLIENT["name"]}
CONSTRAINTS = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
PINNED = dict(line.split("==") for line in CONSTRAINTS if not line.startswith("#"))

PACKAGES = {
    "PIL": "matplotlib",  # requires it
    "dotenv": "python-dotenv",
    "faiss": "faiss-cpu",
    "hdrh": "hdrhistogram",
    "pydantic_core": "pydantic",  # requires one exact version of it
    "yaml": "pyyaml",
}
"""Names of packages whose modules have other names."""
ON_DEMAND = ("train", "archive", "retrieval", "postgres")
"""Extras whose packages the service imports where they are needed."""


def requirements(*lists: list[str]) -> list[Requirement]:
    each = [Requirement(text) for texts in lists for text in texts]
    return [one for one in each if one.name not in OURS]


EVERYTHING = requirements(FORAGE["dependencies"], *EXTRAS.values(), CLIENT["dependencies"])


def names(found: list[Requirement]) -> set[str]:
    return {canonicalize_name(one.name) for one in found}


@cache
def imported(folder: str) -> set[str]:
    """Packages that modules import when they run, beside those of the standard library."""
    modules: set[str] = set()
    for file in (ROOT / folder).rglob("*.py"):
        nodes: list[ast.AST] = [ast.parse(file.read_text(encoding="utf-8"))]
        while nodes:
            node = nodes.pop()
            if isinstance(node, ast.Import):
                modules |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                modules.add(node.module.split(".")[0])
            elif not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
                nodes += [
                    one for one in ast.iter_child_nodes(node) if not isinstance(one, ast.expr)
                ]
    ours = {file.name for file in (*ROOT.iterdir(), *(ROOT / "clients/python").iterdir())}
    packages = modules - sys.stdlib_module_names - ours
    return {canonicalize_name(PACKAGES.get(name, name)) for name in packages}


@pytest.mark.parametrize(
    ("folder", "declared"),
    [
        ("service", requirements(FORAGE["dependencies"], *(EXTRAS[one] for one in ON_DEMAND))),
        ("simulator_client", requirements(FORAGE["dependencies"], EXTRAS["sim"])),
        ("clients/python/forage_client", requirements(CLIENT["dependencies"])),
        ("benchmarks", EVERYTHING),
        ("tests", EVERYTHING),
    ],
)
def test_a_package_declares_what_it_imports(folder: str, declared: list[Requirement]) -> None:
    assert imported(folder) - names(declared) == set()


def test_the_service_imports_what_it_declares() -> None:
    assert names(requirements(FORAGE["dependencies"])) - imported("service") == set()


@pytest.mark.parametrize("requirement", EVERYTHING, ids=str)
def test_a_requirement_has_a_pin_within_its_bounds(requirement: Requirement) -> None:
    pins = {canonicalize_name(name): version for name, version in PINNED.items()}
    assert requirement.specifier.contains(pins[canonicalize_name(requirement.name)])


@pytest.mark.parametrize("requirement", EVERYTHING, ids=str)
def test_a_requirement_has_a_lower_bound(requirement: Requirement) -> None:
    assert ">=" in {one.operator for one in requirement.specifier}


@pytest.mark.parametrize("name", ["uvicorn", "starlette", "pydantic", "msgspec", "torch"])
def test_a_package_whose_insides_are_used_has_an_upper_bound(name: str) -> None:
    """Whoever raises a bound has run the gate with that version: it is pinned as well."""
    [requirement] = [one for one in EVERYTHING if one.name == name]
    [below] = [one.version for one in requirement.specifier if one.operator == "<"]
    bound, pin = Version(below).release, Version(PINNED[name]).release
    assert bound == (*pin[: len(bound) - 1], pin[len(bound) - 1] + 1)


def test_constraints_are_exact_and_name_no_place() -> None:
    for line in CONSTRAINTS:
        assert re.fullmatch(r"# [^/]*|[\w.-]+==[0-9][\w.]*", line), line


def test_packages_are_released_together() -> None:
    """The version of the service is in its code alone; its clients have the same."""
    assert "version" not in FORAGE
    assert {CLIENT["version"], SDK["version"]} == {__version__}


def test_what_installs_uses_them() -> None:
    makefile, dockerfile = ((ROOT / name).read_text() for name in ("Makefile", "Dockerfile"))
    assert re.search(r"pip install .*\$\(CONSTRAINTS:%=-c %\)", makefile)
    assert "CONSTRAINTS ?= constraints.txt" in makefile
    assert re.search(r"^COPY .*constraints\.txt", dockerfile, re.MULTILINE)
    assert "!constraints.txt" in (ROOT / ".dockerignore").read_text().splitlines()
