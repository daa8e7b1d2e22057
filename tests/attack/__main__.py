"""make attack: both long campaigns, to out/attack."""

import argparse
import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from tests.attack.campaign import Campaign
from tests.attack.campaign import attack as attack_openapi
from tests.attack.hostile.campaign import MEMORY_MIB, Asked, Found
from tests.attack.hostile.campaign import attack as attack_hostile
from tests.attack.hostile.families import FAMILIES
from tests.attack.hostile.report import table

MINIMUM: Final = 5_000
"""Requests below which a campaign of schemathesis says too little."""


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    folder: Path = options.out.resolve()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    found: dict[str, Any] = {}
    clean = True
    if options.only in (None, "openapi"):
        made_up = _openapi(_folder(folder, "openapi"), options)
        found["openapi"] = {"requests": made_up.cases, "failures": made_up.failures}
        clean &= made_up.clean and made_up.cases >= MINIMUM
    if options.only in (None, "hostile"):
        hostile = _hostile(_folder(folder, "hostile"), options)
        found["hostile"] = hostile.as_json()
        clean &= hostile.clean
    (folder / "report.json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return 0 if clean else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make attack", description=__doc__)
    parser.add_argument("--only", choices=["openapi", "hostile"], help="one campaign (both)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("out/attack"), help="where reports go")
    openapi = parser.add_argument_group("schemathesis")
    openapi.add_argument("--examples", type=int, default=60, help="an operation and phase (60)")
    openapi.add_argument("--phases", default="examples,coverage,fuzzing,stateful")
    hostile = parser.add_argument_group("hostile families")
    hostile.add_argument("--requests", type=int, default=20_000, help="in all (20,000)")
    hostile.add_argument(
        "--families", type=_families, default=tuple(FAMILIES), metavar="A,B",
        help=f"of: {', '.join(FAMILIES)} (all)",
    )  # fmt: skip
    hostile.add_argument(
        "--memory", type=int, default=MEMORY_MIB, metavar="MIB",
        help=f"that an attack may add to the service ({MEMORY_MIB})",
    )  # fmt: skip
    return parser


def _families(text: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in text.split(","))
    if unknown := [name for name in names if name not in FAMILIES]:
        raise argparse.ArgumentTypeError(f"there is no family {', '.join(unknown)}")
    return names


def _openapi(folder: Path, options: argparse.Namespace) -> Campaign:
    found = attack_openapi(folder, options.examples, options.phases, options.seed)
    (folder / "said.txt").write_text(found.said)
    _say(found.summary())
    if not found.clean:
        _say(f"What to repeat: {folder}/said.txt; what the service said: {folder}/service.log")
    elif found.cases < MINIMUM:
        _say(f"Fewer than {MINIMUM:,} requests.")
    return found


def _hostile(folder: Path, options: argparse.Namespace) -> Found:
    asked = Asked(
        requests=options.requests,
        families=options.families,
        seed=options.seed,
        memory_mib=options.memory,
    )
    found = attack_hostile(folder, asked, _say)
    _say(table(found))
    if not found.clean:
        _say(f"What the service said: {folder}/first/service.log")
    return found


def _folder(folder: Path, name: str) -> Path:
    made = folder / name
    made.mkdir()
    return made


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
