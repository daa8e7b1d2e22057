"""The pictures of the documentation show the files that are here."""

import subprocess
from pathlib import Path

import pytest
from PIL import Image

from benchmarks import pictured

pytestmark = pytest.mark.browser  # whoever has no browser cannot mend it


def test_no_picture_is_older_than_what_it_shows() -> None:
    old = [path.name for path in pictured.PICTURES.glob("*.png") if pictured.is_old(path)]
    assert not old, "make pictures, and look at them"


def test_a_picture_is_old_once_a_file_that_it_shows_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the times of the files."""
    monkeypatch.setattr(pictured, "ROOT", tmp_path)
    monkeypatch.setattr(pictured, "PICTURES", tmp_path)
    monkeypatch.setattr(pictured, "SHOWN", {"page": ("static",)})
    views = tmp_path / "static" / "views"
    views.mkdir(parents=True)
    (views / "main.js").write_text("one")
    picture = tmp_path / "page.png"
    pictured.keep(Image.new("RGB", (4, 4)), picture)
    assert not pictured.is_old(picture)
    (views / "main.js").write_text("two")
    assert pictured.is_old(picture)
    (views / "main.js").rename(views / "other.js")
    (views / "other.js").write_text("one")
    assert pictured.is_old(picture)


def test_the_dark_drawing_is_derived_from_the_light_one() -> None:
    colours = (pictured.ROOT / ".ci" / "dark.sed").read_text()
    light = (pictured.PICTURES / "architecture.svg").read_text()
    dark = subprocess.run(["sed", colours], input=light, capture_output=True, text=True, check=True)
    assert (pictured.PICTURES / "architecture-dark.svg").read_text() == dark.stdout
