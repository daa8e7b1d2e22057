"""python -m tests.mutants: plants bugs in a copy of the tree, one at a time; the tests or chaos
have to find each.

Of each bug run the tests that are concerned, then `make test`, then chaos for two minutes, up to
the first that fails. What only chaos has found is planted again with further seeds. Exit status 1
where a bug is missed. It takes an hour or more, and the machine for itself.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from time import monotonic
from typing import Any, Final, Literal

from tests.mutants.planted import MUTANTS, Mutant

ROOT: Final = Path(__file__).resolve().parents[2]
DEFAULT_TESTS: Final = ("-n", "auto", "--dist", "loadfile")
MARKERS: Final = ("-m", "not process and not slow and not statistics and not browser")
STAGE_S: Final = 1_800.0
SEEDS, ENOUGH = 5, 4
"""Of chaos, where nothing else finds a bug: so many runs, and so many that have to."""

Stage = Literal["tests", "make test", "chaos"]


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    chosen = [each for each in MUTANTS if all(word in each.name for word in options.only)]
    found = []
    for mutant in chosen:
        with tempfile.TemporaryDirectory(prefix="forage-mutant-") as folder:
            tree = copied(Path(folder) / "tree")
            mutant.plant(tree)
            found.append(_judged(mutant, tree, options))
        _say(found[-1])
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    missed = [each["name"] for each in found if each["by"] is None]
    sys.stdout.write(f"{len(found) - len(missed)} of {len(found)} bugs were found\n")
    return 1 if missed else 0


def copied(tree: Path) -> Path:
    """What git knows of this tree, and what it does not ignore."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    tree.mkdir()
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            (tree / name).write_bytes((ROOT / name).read_bytes())
            (tree / name).chmod((ROOT / name).stat().st_mode)
    return tree


def _judged(mutant: Mutant, tree: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Which stage found it, and after how long."""
    began = monotonic()
    for stage in options.stages.split(","):
        if stage == "chaos":
            seeds = range(1, 1 + SEEDS)
            hits = [not _chaos(mutant, tree, seed, options.seconds) for seed in seeds]
            by = f"chaos, {sum(hits)} of {SEEDS} seeds" if sum(hits) >= ENOUGH else None
        elif stage == "tests":
            by = _first_failure(tree, ["-n", "0", "-x", *mutant.tests])
        else:
            by = _first_failure(tree, [*DEFAULT_TESTS, *MARKERS, "-x"])
        if by is not None:
            break
    return {"name": mutant.name, "by": by, "seconds": round(monotonic() - began, 1)}


def _first_failure(tree: Path, arguments: Sequence[str]) -> str | None:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    done = _run(tree, command)
    if done.returncode == 0:
        return None
    lines = [
        line for line in done.stdout.splitlines() if line.startswith(("FAILED ", "ERROR tests/"))
    ]
    return lines[0].split(" - ")[0] if lines else f"pytest ended with {done.returncode}"


def _chaos(mutant: Mutant, tree: Path, seed: int, seconds: float) -> bool:
    """Whether all was well."""
    options = ["--only", mutant.campaign, "--seed", str(seed), "--seconds", str(seconds)]
    return _run(tree, [sys.executable, "-m", "tests.chaos", *options]).returncode == 0


def _run(tree: Path, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": ""}
    try:
        return subprocess.run(
            command, cwd=tree, env=environment, capture_output=True, text=True, timeout=STAGE_S
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 124, f"FAILED: beyond {STAGE_S:.0f} s", "")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--only", action="append", default=[], help="bugs with this in their name")
    parser.add_argument(
        "--stages", default="tests,make test,chaos", help="comma-separated (%(default)s)"
    )
    parser.add_argument("--seconds", type=float, default=120, help="of a run of chaos (120)")
    parser.add_argument("--out", type=Path, default=Path("out/mutants.json"), help="the result")
    return parser


def _say(found: dict[str, Any]) -> None:
    by = found["by"] or "MISSED"
    sys.stdout.write(f"{found['name']:<56} {found['seconds']:>7.1f} s  {by}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
