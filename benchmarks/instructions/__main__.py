"""Instructions that a request takes of the processor: python -m benchmarks.instructions.

Counted by `valgrind --tool=callgrind`, from the bytes of the request to those of the answer, by the
service's own protocol and without a socket: the same on a busy machine as on an idle one. A process
for each kind of request does what all of them do, and then some requests of its kind more than a
process that does no more; what it takes beyond that one is theirs. Commits are a dictionary's here,
and nobody waits for a disk. Writes out/benchmarks/instructions.json.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, Final

from benchmarks.instructions.work import ECHO, KINDS, NONE
from benchmarks.machine import machine
from benchmarks.tables import keep, out_option, parser_of

REQUESTS: Final = 100
NOT_INSTALLED: Final = "valgrind, which counts, is not on the PATH: apt-get install valgrind"
COLLECTED: Final = re.compile(r"Collected : (\d+)")


def counted(kind: str, requests: int) -> int:
    """Instructions of a whole process."""
    command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", sys.executable]
    command += ["-m", "benchmarks.instructions.work", kind, str(requests)]
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    found = COLLECTED.search(ended.stderr)
    if ended.returncode or found is None:
        raise SystemExit(f"{kind} was not counted: {ended.stderr}")
    return int(found[1])


def figures(counts: dict[str, int], requests: int) -> dict[str, Any]:
    """Of what each process took, those of a request, and how many bare answers they are."""
    each = {kind: (counts[kind] - counts[NONE]) / requests for kind in KINDS}
    return {
        kind: {"instructions": round(count), "of_echo": round(count / each[ECHO], 2)}
        for kind, count in each.items()
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Count, print, keep."""
    parser = parser_of("instructions", __doc__)
    parser.add_argument("--requests", type=int, default=REQUESTS, help=f"default: {REQUESTS}")
    out_option(parser, "instructions", published=False)
    asked = parser.parse_args(arguments)
    if shutil.which("valgrind") is None:
        raise SystemExit(NOT_INSTALLED)
    counts: dict[str, int] = {}
    for kind in (NONE, *KINDS):
        counts[kind] = counted(kind, asked.requests)
        print(f"{kind}: {counts[kind]:,} in all", file=sys.stderr, flush=True)
    found = figures(counts, asked.requests)
    print(f"{'':20}{'instructions':>14}{'of echo':>9}")
    for kind, row in found.items():
        print(f"{kind:20}{row['instructions']:14,}{row['of_echo']:9.2f}")
    kept = {"machine": machine(), "requests": asked.requests, "kinds": found}
    keep(kept, asked.out)


if __name__ == "__main__":
    main()
