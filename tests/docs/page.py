"""A page of documentation as a test reads it: its blocks, links and anchors."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

NOT_RUN = "<!-- not run -->"
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")
SOURCE = re.compile(r'\bsrc(?:set)?="([^"\s]+)"')  # of <img> and <source>


@dataclass(frozen=True, slots=True)
class Block:
    """language: as the fence has it. line: of its first line, from 1. run: not marked otherwise."""

    language: str
    text: str
    line: int
    run: bool


def blocks(path: Path) -> Iterator[Block]:
    content = path.read_text(encoding="utf-8")
    for found in FENCE.finditer(content):
        before = content[: found.start()]
        run = not before.rstrip().endswith(NOT_RUN)
        yield Block(found[1], found[2], before.count("\n") + 2, run)


def prose(path: Path) -> str:
    """What is not in a block."""
    return FENCE.sub("", path.read_text(encoding="utf-8"))


def links(path: Path) -> Iterator[str]:
    text = re.sub(r"`[^`\n]*`", "", prose(path))
    for found in LINK.finditer(text):
        yield found[1] or found[2]
    yield from SOURCE.findall(text)


def anchors(path: Path) -> set[str]:
    """As GitHub makes them of headings."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.+)$", prose(path), re.MULTILINE):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        name = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
        count = sum(each == name or each.startswith(f"{name}-") for each in found)
        found.add(f"{name}-{count}" if name in found else name)
    return found
