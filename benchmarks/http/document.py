"""Writes tables and pictures of docs/performance.md anew, from the figures that are kept:
`python -m benchmarks.http.document`.

A part stands between `<!-- figures NAME -->` and `<!-- /figures -->`; NAME is one of PARTS.
"""

import json
import re
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from statistics import median
from typing import Final

from PIL import Image

from benchmarks.http import callers
from benchmarks.http.cases import CASES
from benchmarks.tables import RESULTS, Json, markdown

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "performance.md"
PICTURES: Final = ROOT / "docs" / "pictures"
KEPT: Final = ("http", "callers")
PART: Final = re.compile(r"(<!-- figures (\S+) -->\n).*?(<!-- /figures -->)", re.DOTALL)
COLOURS: Final = 256
COLUMNS: Final = {
    "a second": ("median_per_second", "{:,.0f}"),
    "of bare": ("of_echo", "{:.3f}"),
    "times the best peer": ("times_best_peer", "{:.2f}"),
    "processor, µs": ("median_server_us", "{:,.0f}"),
    "of bare, by processor": ("of_echo_by_processor", "{:.3f}"),
    "p50, ms": ("median_p50_ms", "{:.1f}"),
    "p99, ms": ("median_p99_ms", "{:.1f}"),
    "ahead of the log": ("unlogged", "{:,}"),
}


def http_table(kept: dict[str, Json]) -> str:
    """A row a case, in the order in which they are defined."""
    results = kept["http"]["cases"]
    cells = [["", *COLUMNS]]
    for name in CASES:
        if name in results:
            found = results[name]
            cells.append(
                [found["title"], *(_cell(found, *column) for column in COLUMNS.values())]
            )  # fmt: skip
    return markdown(cells)


def _cell(found: Json, figure: str, form: str) -> str:
    if figure not in found or (figure == "unlogged" and not found[figure]):
        return ""
    bound = figure == "median_per_second" and found["client_bound"]
    return ("at least " if bound else "") + form.format(found[figure])


def http_machine(kept: dict[str, Json]) -> str:
    """What it was measured on, in a sentence."""
    results = kept["http"]
    machine = results["machine"]
    versions = ", ".join(
        f"{name} {machine[name]}" for name in machine if name not in ("processor", "python")
    )
    stolen = median(share for case in results["cases"].values() for share in case["stolen"])
    p50, p99 = (median(part[name] for part in results["disk"]) for name in ("p50", "p99"))
    return (
        f"{machine['processor']}, Python {machine['python']}, {versions}. "
        f"{results['rounds']} rounds of {results['seconds']:g} s a case. "
        f"A hypervisor gave {stolen:.0%} of the server's core to other machines meanwhile "
        "(median). The disk by itself made 80 KiB durable, as long as a commit of ten decisions, "
        f"in {p50:.1f} ms (p50) and {p99:.1f} ms (p99).\n"
    )


PARTS: Final[dict[str, Callable[[dict[str, Json]], str]]] = {
    "http": http_table,
    "machine": http_machine,
    "callers": lambda kept: markdown(callers.rows(kept["callers"])),
}


def results() -> dict[str, Json]:
    """All figures that are kept, by the benchmark's name."""
    found = {}
    for name in KEPT:
        path = RESULTS / f"{name}.json"
        if path.exists():
            found[name] = json.loads(path.read_text())
    return found


def rewritten(text: str, kept: dict[str, Json]) -> str:
    """A page with its figures of requests over HTTP as they are kept."""

    def part(found: re.Match[str]) -> str:
        begin, name, end = found.groups()
        return begin + PARTS[name](kept) + end if name in PARTS else found[0]

    return PART.sub(part, text)


def drawn(kept: dict[str, Json]) -> dict[str, bytes]:
    """PNGs of the page, by name."""
    from benchmarks.http import pictures  # imported last: matplotlib costs a second

    return {"http": pictures.picture(kept["http"])}


def main() -> None:
    """The page and its pictures, these with few colours: they are kept under version control."""
    kept = results()
    PAGE.write_text(rewritten(PAGE.read_text(), kept))
    for name, picture in drawn(kept).items():
        image = Image.open(BytesIO(picture)).convert("RGB")
        image.quantize(COLOURS).save(PICTURES / f"{name}.png", optimize=True)


if __name__ == "__main__":
    main()
