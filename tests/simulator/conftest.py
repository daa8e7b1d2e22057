"""A service behind the command, and reports without pictures: to draw one takes 0.2 s.

Each kind of report has one test that draws all of its figures.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from matplotlib.figure import Figure

from simulator_client import command
from simulator_client.client import Client

PAINT = Figure.savefig
PICTURE = b"\x89PNG\r\n\x1a\n"
Serve = Callable[[httpx.MockTransport], None]


@pytest.fixture
def unpainted(monkeypatch: pytest.MonkeyPatch) -> None:
    def save(figure: Figure, to: Any, **options: Any) -> None:
        to.write(PICTURE)

    monkeypatch.setattr(Figure, "savefig", save)


@pytest.fixture
def painted(unpainted: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Figure, "savefig", PAINT)


@pytest.fixture
def serve(unpainted: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Serve:
    """Put a service where the command looks for one; runs are kept under a temporary folder."""
    monkeypatch.chdir(tmp_path)

    def put(answers: httpx.MockTransport) -> None:
        monkeypatch.setattr(command, "Client", partial(Client, transport=answers))

    return put
