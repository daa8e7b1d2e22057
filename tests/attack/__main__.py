"""make attack: both campaigns, to out/attack."""

import argparse
import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from tests.attack.hostile.campaign import attack as attack_hostile
from tests.attack.hostile.families import FAMILIES
from tests.attack.openapi import attack as attack_openapi

MINIMUM: Final = 5_000
"""Requests below which a campaign of schemathesis says too little."""
SHOWN: Final = 40
"""Violations printed; the JSON has all."""


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    folder: Path = options.out.resolve()
    shutil.rmtree(folder, ignore_errors=True)
    found, violations = dict[str, Any](), list[str]()
    if options.only in (None, "openapi"):
        (folder / "openapi").mkdir(parents=True)
        made_up = attack_openapi(folder / "openapi", options.seed)
        found["openapi"] = {"requests": made_up.cases, "violations": made_up.violations}
        violations += made_up.violations
        if made_up.cases < MINIMUM:
            violations.append(f"openapi: {made_up.cases:,} requests, fewer than {MINIMUM:,}")
    if options.only in (None, "hostile"):
        (folder / "hostile").mkdir(parents=True)
        hostile = attack_hostile(
            folder / "hostile", options.requests, options.families, options.seed, _say
        )
        found["hostile"] = hostile.as_json()
        violations += hostile.violations
        _say(hostile.table())
    (folder / "report.json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    for line in violations[:SHOWN]:
        _say(f"VIOLATION {line}")
    _say(f"{len(violations)} violations; reports and logs: {folder}")
    return 1 if violations else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make attack", description=__doc__)
    parser.add_argument("--only", choices=["openapi", "hostile"], help="one campaign (both)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("out/attack"), help="where reports go")
    parser.add_argument("--requests", type=int, default=20_000, help="hostile ones (20,000)")
    parser.add_argument(
        "--families",
        type=_families,
        default=tuple(FAMILIES),
        metavar="A,B",
        help=f"of: {', '.join(FAMILIES)} (all)",
    )
    return parser


def _families(text: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in text.split(","))
    if unknown := [name for name in names if name not in FAMILIES]:
        raise argparse.ArgumentTypeError(f"there is no family {', '.join(unknown)}")
    return names


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
