"""A page of HTML, complete in itself: headings, notes, tables, pictures."""

from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Final

from simulator_client.journal import write_whole

STYLE: Final = """
body { font: 16px/1.5 system-ui, sans-serif; color: #222; background: #fff;
       max-width: 75rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.2rem; }
table { border-collapse: collapse; font-size: 0.9rem; }
th, td { padding: 0.3rem 0.7rem; text-align: right; border-bottom: 1px solid #ddd;
         white-space: nowrap; font-variant-numeric: tabular-nums; }
th:first-child, td:first-child { text-align: left; }
.wide { overflow-x: auto; } img { max-width: 100%; height: auto; } .note { color: #555; }
"""


def page(title: str, heading: str, parts: Iterable[str]) -> str:
    lines = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>",
        f"<h1>{escape(heading)}</h1>",
        *parts,
        "</body></html>",
    ]
    return "\n".join(lines) + "\n"


def section(heading: str) -> str:
    return f"<h2>{escape(heading)}</h2>"


def note(text: str) -> str:
    return f'<p class="note">{escape(text)}</p>'


def cells(rows: Sequence[Sequence[str]]) -> str:
    """Return a table; the first row is its heading."""
    head, *body = rows
    return "\n".join(
        [
            '<div class="wide"><table><thead>' + _row(head, "th") + "</thead><tbody>",
            *(_row(row, "td") for row in body),
            "</tbody></table></div>",
        ]
    )


def pictures(named: Mapping[str, bytes], captions: Mapping[str, tuple[str, str]]) -> list[str]:
    """Return the existing pictures, each under its heading and caption."""
    parts = []
    for name, (heading, caption) in captions.items():
        if name in named:
            data = b64encode(named[name]).decode()
            image = f'<img src="data:image/png;base64,{data}" alt="{escape(heading)}">'
            parts += [section(heading), note(caption), image]
    return parts


def write_page(path: Path, text: str, figures: Mapping[str, bytes]) -> Path:
    """Write a page and its figures beside it; return the page's path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for name, picture in figures.items():
        (path.parent / f"{name}.png").write_bytes(picture)
    write_whole(path, text)
    return path


def _row(row: Sequence[str], tag: str) -> str:
    return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in row) + "</tr>"
