"""What each picture of the documentation shows.

A picture keeps a digest of the files that it was made from, in a field of its PNG: a picture whose
files have changed since tells by itself that it is old, in any clone.
"""

from hashlib import sha256
from pathlib import Path
from typing import Final

from PIL import Image
from PIL.PngImagePlugin import PngInfo

ROOT: Final = Path(__file__).parents[1]
PICTURES: Final = ROOT / "docs" / "pictures"
FIELD: Final = "forage-sources"
PAGES: Final = "service/http/static"
# Files, and folders with all that is in them.
SHOWN: Final = {
    "console": (
        f"{PAGES}/console",
        "service/analysis/verdict_sentences.py",
        "tests/e2e/pictures.py",
    ),
    "shop": (f"{PAGES}/demo", "tests/e2e/pictures.py"),
}
PLOTTED: Final = ("benchmarks/results/learning/{name}.json", "benchmarks/learning/pictures.py")


def digest(name: str) -> str:
    """Return the digest of all files that a picture shows, with their paths."""
    found = sha256()
    for source in SHOWN.get(name, PLOTTED):
        path = ROOT / source.format(name=name)
        for file in sorted(each for each in (path, *path.rglob("*")) if each.is_file()):
            data = file.read_bytes()
            found.update(f"{file.relative_to(ROOT).as_posix()} {len(data)}\n".encode() + data)
    return found.hexdigest()


def keep(image: Image.Image, path: Path) -> None:
    """Write a picture, with its digest if it is one of the documentation."""
    info = PngInfo()
    if path.parent == PICTURES:
        info.add_text(FIELD, digest(path.stem))
    image.save(path, optimize=True, pnginfo=info)


def is_old(path: Path) -> bool:
    """Whether a file that the picture shows has changed since it was made."""
    with Image.open(path) as image:
        return image.info.get(FIELD) != digest(path.stem)
