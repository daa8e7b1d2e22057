from pathlib import Path

import pytest

from tests.chaos.shim import Disk, Unavailable, build


@pytest.fixture(scope="session")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        return build(tmp_path_factory.mktemp("shim"))
    except Unavailable as reason:
        pytest.skip(str(reason))


@pytest.fixture
def disk(shim: Path, tmp_path: Path) -> Disk:
    (tmp_path / "disk").mkdir()
    return Disk(shim, tmp_path / "disk", tmp_path / "synced")
