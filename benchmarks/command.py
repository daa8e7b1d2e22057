"""What commands that measure have in common: options, progress, and results that are kept."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any, Final

RESULTS: Final = Path(__file__).parent / "results"
Json = dict[str, Any]


def parser_of(name: str, doc: str | None) -> argparse.ArgumentParser:
    """Of `python -m benchmarks.NAME`, whose help is what its module says of itself."""
    return argparse.ArgumentParser(
        prog=f"python -m benchmarks.{name}", description=doc,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip


def out_option(options: argparse.ArgumentParser, name: str) -> None:
    """`--out`, where the results go."""
    kept = RESULTS / f"{name}.json"
    options.add_argument("--out", type=Path, default=kept, help="default: the kept results")


def place(name: str, *, whole: bool) -> Path:
    """Of results by default: those of a part are not kept in place of the whole."""
    return (RESULTS if whole else Path("out")) / f"{name}.json"


def say(line: str) -> None:
    """How it goes, on stderr."""
    print(line, file=sys.stderr, flush=True)


def keep(results: Json, path: Path) -> None:
    """Write what was measured."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=2) + "\n")
