"""Writes tables and pictures of docs/performance.md anew, from the figures that are kept:
`python -m benchmarks.http.document`.

A part stands between `<!-- figures NAME -->` and `<!-- /figures -->`; NAME is one of PARTS.
"""

import json
import re
from collections.abc import Callable
from functools import partial
from io import BytesIO
from pathlib import Path
from statistics import median
from typing import Final

from PIL import Image

from benchmarks.growth import axes
from benchmarks.http import callers, catalogue, replicas, steady, training
from benchmarks.http.cases import CASES
from benchmarks.parts import tables
from benchmarks.tables import RESULTS, Json

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "performance.md"
PICTURES: Final = ROOT / "docs" / "pictures"
QUESTIONS: Final[dict[str, Callable[[Json], list[list[str]]]]] = {
    "callers": callers.rows,
    "steady": steady.rows,
    "training": training.rows,
    "replicas": replicas.rows,
    "catalogue": catalogue.rows_of,
}
KEPT: Final = ("http", "scoring", "memory", "parts", "growth", *QUESTIONS)
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


def markdown(cells: list[list[str]]) -> str:
    """Cells as a table; the first row is its heading."""
    head, *body = cells
    lines = [head, ["---"] * len(head), *body]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


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


def scoring_table(kept: dict[str, Json]) -> str:
    """Microseconds of a decision without the wire, and ratios to the floor of its kind."""
    results = kept["scoring"]
    shapes = list(results["shapes"])
    cells = [["policy", "floor", *(f"{shape}: µs (ratio)" for shape in shapes)]]
    for policy, found in results["policies"].items():
        by_shape = found["by_shape"]
        figures = [_compared(by_shape[shape]) if shape in by_shape else "" for shape in shapes]
        cells.append([f"`{policy}`", found["floor"], *figures])
    return markdown(cells)


def _compared(row: dict[str, float]) -> str:
    bare = f", bare {row['bare_ratio']:.1f}" if "bare_ratio" in row else ""
    return f"{row['forage_us']:,.0f} ({row['ratio']:.1f}{bare})"


def memory_table(kept: dict[str, Json]) -> str:
    """Resident memory of the serving process over the requests."""
    cells = [["selects so far", "resident, MB"]]
    for selects, megabytes in kept["memory"]["resident_mb"]:
        cells.append([f"{selects:,}", f"{megabytes:.0f}"])
    return markdown(cells)


def growth_table(kept: dict[str, Json], axis: str) -> str:
    """Microseconds by size, and how many times dearer when it doubles."""
    head, *rows = axes.cells(kept["growth"]["axes"][axis], axes.AXES[axis].unit)
    return markdown([head, *map(_as_code, rows)] if axis in ("arms", "columns") else [head, *rows])


def _as_code(row: list[str]) -> list[str]:
    """A row that begins with the kind of a policy."""
    return [f"`{row[0]}`", *row[1:]]


def growth_run(kept: dict[str, Json]) -> str:
    """How far the kept run went, in a sentence."""
    results = kept["growth"]
    found = results["axes"]
    arms, rows = (found[axis]["sizes"][-1] for axis in ("catalogue", "log"))
    return (
        f"{results['rounds']} rounds, on {results['machine']['processor']}. The kept run went up "
        f"to {arms:,} arms of the catalogue and {rows:,} decisions of the log, a file of "
        f"{found['log']['largest_file_mb'] / 1e3:.1f} GB.\n"
    )


def parts_table(kept: dict[str, Json], name: str) -> str:
    """Of what a service does beside answering."""
    head, *rows = tables.TABLES[name](kept["parts"]["parts"][name])
    return markdown([head, *map(_as_code, rows)] if name == "folding" else [head, *rows])


def question_table(kept: dict[str, Json], name: str) -> str:
    """As the benchmark prints it."""
    return markdown(QUESTIONS[name](kept[name]))


PARTS: Final[dict[str, Callable[[dict[str, Json]], str]]] = {
    "http": http_table,
    "machine": http_machine,
    "scoring": scoring_table,
    "memory": memory_table,
    "growth": growth_run,
    **{f"growth-{axis}": partial(growth_table, axis=axis) for axis in axes.AXES},
    **{name: partial(question_table, name=name) for name in QUESTIONS},
    **{f"parts-{name}": partial(parts_table, name=name) for name in tables.TABLES},
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
    """A page with its figures as they are kept. Raises KeyError for a part without."""

    def part(found: re.Match[str]) -> str:
        begin, name, end = found.groups()
        return begin + PARTS[name](kept) + end

    return PART.sub(part, text)


def drawn(kept: dict[str, Json]) -> dict[str, bytes]:
    """PNGs of the page, by name."""
    from benchmarks.growth import pictures as growth  # imported last: matplotlib costs a second
    from benchmarks.http import pictures as http

    return {"http": http.picture(kept["http"]), "growth": growth.picture(kept["growth"])}


def main() -> None:
    """The page and its pictures, these with few colours: they are kept under version control."""
    kept = results()
    PAGE.write_text(rewritten(PAGE.read_text(), kept))
    for name, picture in drawn(kept).items():
        image = Image.open(BytesIO(picture)).convert("RGB")
        image.quantize(COLOURS).save(PICTURES / f"{name}.png", optimize=True)


if __name__ == "__main__":
    main()
