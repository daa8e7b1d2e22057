"""Results of benchmarks: options of their commands, kept figures, and the tables in the docs.

A benchmark with a published table has a function `tables(results)`: cells by the name of the table.
`tests/docs/test_figures.py` compares those tables with the page. A table stands between
`<!-- figures NAME -->` and `<!-- /figures -->`.
"""

import argparse
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from benchmarks.commits import commit_of
from simulator_client.summary import table

RESULTS: Final = Path(__file__).parent / "results"  # figures of the published tables
OUT: Final = Path("out/benchmarks")  # figures of every other run; git ignores them
PERFORMANCE: Final = Path(__file__).parents[1] / "docs" / "performance.md"
MEASURED: Final = "service", "simulator_client", ":(glob)benchmarks/**/*.py"  # paths of git
Json = dict[str, Any]
Cells = list[list[str]]  # the first row is the heading


def parser_of(name: str, doc: str | None) -> argparse.ArgumentParser:
    """Make the parser of `python -m benchmarks.NAME`; its help is the module's docstring."""
    return argparse.ArgumentParser(
        prog=f"python -m benchmarks.{name}", description=doc,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip


def publish_option(options: argparse.ArgumentParser) -> None:
    """Add `--publish`, whose value `conclude` takes."""
    options.add_argument(
        "--publish",
        action="store_true",
        help=f"keep the figures in benchmarks/results and write them into docs/{PERFORMANCE.name}",
    )


def say(line: str) -> None:
    """Report progress on stderr."""
    print(line, file=sys.stderr, flush=True)


def conclude(name: str, results: Json, tables: Mapping[str, Cells], *, publish: bool) -> None:
    """Print the tables and keep the results; publish: also write the tables into the page, with the
    commit of the code that was measured."""
    for cells in tables.values():
        print(table(cells))
    keep(results, OUT / f"{name}.json")
    if publish:
        if (commit := commit_of(*MEASURED)) is None:
            raise SystemExit("not published: a table says its commit, and the code has none yet")
        keep({"commit": commit} | results, RESULTS / f"{name}.json")
        for title, cells in tables.items():
            rewrite(PERFORMANCE, title, measured(cells, commit))


def measured(cells: Cells, commit: str) -> str:
    """Format a table of Markdown with its commit below."""
    return f"{markdown(cells)}\nMeasured at commit {commit}.\n"


def keep(results: Json, path: Path) -> None:
    """Write results as JSON: a line for each entry of the first two levels of objects."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_compact(results, levels=2) + "\n")


def _compact(value: Any, levels: int) -> str:
    nested = isinstance(value, dict) and any(
        isinstance(each, dict | list) for each in value.values()
    )
    if not levels or not nested:
        return json.dumps(value)
    entries = (f"{json.dumps(key)}: {_compact(each, levels - 1)}" for key, each in value.items())
    return "{\n" + ",\n".join(entries) + "\n}"


def markdown(cells: Cells) -> str:
    """Format cells as a table of Markdown."""
    head, *body = cells
    lines = [head, ["---"] * len(head), *body]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def rewrite(page: Path, name: str, table: str) -> None:
    """Replace a table of a page. Raises ValueError if the page has no such table."""
    page.write_text(rewritten(page.read_text(), name, table))


def rewritten(text: str, name: str, table: str) -> str:
    """Return the text with its table `name` replaced. Raises ValueError if it has none."""
    begin, end = f"<!-- figures {name} -->\n", "<!-- /figures -->"
    place = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    text, count = place.subn(lambda _: begin + table + end, text)
    if count != 1:
        raise ValueError(f"{count} places are marked with {begin.strip()!r}; one is needed")
    return text
