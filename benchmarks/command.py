"""What commands that measure have in common: options, progress, and results that are kept."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any, Final

RESULTS: Final = Path(__file__).parent / "results"  # figures of published tables and plots
OUT: Final = Path("out/benchmarks")  # figures of other runs, and raw ones: not under git
Json = dict[str, Any]


def parser_of(name: str, doc: str | None) -> argparse.ArgumentParser:
    """Of `python -m benchmarks.NAME`, whose help is what its module says of itself."""
    return argparse.ArgumentParser(
        prog=f"python -m benchmarks.{name}", description=doc,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip


def out_option(options: argparse.ArgumentParser, name: str, *, published: bool = True) -> None:
    """`--out`, the file of the results."""
    path = (RESULTS if published else OUT) / f"{name}.json"
    told = "the published results" if published else str(path)
    options.add_argument("--out", type=Path, default=path, help=f"default: {told}")


def place(name: str, *, whole: bool) -> Path:
    """The default file: a partial run never replaces published results."""
    return (RESULTS if whole else Path("out")) / f"{name}.json"


def say(line: str) -> None:
    """How it goes, on stderr."""
    print(line, file=sys.stderr, flush=True)


def keep(results: Json, path: Path) -> None:
    """Write what was measured."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=2) + "\n")
