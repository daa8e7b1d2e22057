"""Reports whose figures are made and not painted: to paint one takes a fifth of a second.

Each kind of report has a test that paints all of its figures; the others look at something else.
"""

from typing import Any

import pytest
from matplotlib.figure import Figure

PAINT = Figure.savefig
PICTURE = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def unpainted(monkeypatch: pytest.MonkeyPatch) -> None:
    def save(figure: Figure, to: Any, **options: Any) -> None:
        to.write(PICTURE)

    monkeypatch.setattr(Figure, "savefig", save)


@pytest.fixture
def painted(unpainted: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Figure, "savefig", PAINT)
