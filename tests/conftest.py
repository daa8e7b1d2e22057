"""Before numpy is imported: one BLAS thread, for the tests and for the processes that they start.

Matrices are small and tests are many: threads that wait for each other make them several times as
slow.
"""

import gc
import os
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import pytest

from tests.support.properties import register_profiles

register_profiles()

HERE = Path(__file__).parent
UNMEASURED = {"benchmarks", "chaos", "simulation", "simulator", "statistics"}
"""Folders of tests that run other code than the service's, or its own for long. Which of its lines
are run the other tests show; to measure makes a test take up to twice as long."""

LARGE = ["torch", "scipy.stats", "matplotlib.pyplot", "pyarrow.dataset", "fastapi.openapi.utils"]
"""What the service and its tests import that is not ours and takes long."""


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[object]:
    """To collect is measured in the modules of the service alone: their definitions count as run.
    Watched in all it executes, as coverage does it by itself, it took 22 s of a worker, not 12."""
    watching = sys.gettrace()
    if watching is None or session.config.getoption("dist", "no") != "no":
        return (yield)

    class Watched(SourceFileLoader):
        def exec_module(self, module: ModuleType) -> None:
            before = sys.gettrace()
            sys.settrace(watching)
            try:
                super().exec_module(module)
            finally:
                sys.settrace(before)

    class Finder:
        @staticmethod
        def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
            found = PathFinder.find_spec(name, path, target) if name.startswith("service") else None
            if found and type(found.loader) is SourceFileLoader:
                found.loader = Watched(found.loader.name, found.loader.path)
            return found

    sys.settrace(None)
    try:
        for name in LARGE:
            import_module(name)
        sys.meta_path.insert(0, Finder)
        return (yield)
    finally:
        sys.meta_path.remove(Finder)
        sys.settrace(watching)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.relative_to(HERE).parts[0] in UNMEASURED:
            item.add_marker("no_cover")


def pytest_collection_finish() -> None:
    """As `forage serve` does it: what is there now stays, and young objects are looked at less
    often. Each test that serves makes an application and lets it go: a tenth to a quarter of its
    time went into collections."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
