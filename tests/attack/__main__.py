"""make attack: the long campaign, to out/attack."""

import argparse
import shutil
import sys
from pathlib import Path

from tests.attack.campaign import attack

MINIMUM = 5_000
"""Requests below which a campaign says too little."""


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")


def main() -> int:
    parser = argparse.ArgumentParser(prog="make attack", description=__doc__)
    parser.add_argument("--examples", type=int, default=60, help="an operation and phase (60)")
    parser.add_argument("--phases", default="examples,coverage,fuzzing,stateful")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    folder = Path("out/attack").resolve()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    found = attack(folder, options.examples, options.phases, options.seed)
    (folder / "said.txt").write_text(found.said)
    say(found.summary())
    if not found.clean:
        say(f"What to repeat: {folder}/said.txt; what the service said: {folder}/service.log")
    elif found.cases < MINIMUM:
        say(f"Fewer than {MINIMUM:,} requests.")
    return 0 if found.clean and found.cases >= MINIMUM else 1


if __name__ == "__main__":
    sys.exit(main())
