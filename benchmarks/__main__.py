"""Benchmarks: python -m benchmarks [NAME [OPTIONS]], `make bench ARGS='http --rounds 1'`.

decision  one decision and one fold against plain numpy (the default; a minute)
scoring   a decision of every kind of policy against plain numpy
http      the service over HTTP against a bare server and against peers (two cores, 12 minutes)
parts     folding, snapshots, recovery and training, which go on beside the requests (3 minutes)
retrieval  a decision over a million arms, found by an index (2 minutes, 4 GB)
http.steady    ten minutes at 70 percent of what the service could answer
http.training  selects while nets are trained and new versions take over (8 minutes)
http.replicas  two services on one Redis beside one (3 minutes)
http.catalogue  a million arms over HTTP (15 minutes, 6 GB)
instructions  instructions of a request, and of a bare one (valgrind; 10 minutes)
growth    how cost grows with arms, columns, catalogue and log (5 minutes, 4 GB)
memory    resident memory of a serving process over a million selects
stalls    how long one request keeps all others waiting (2 minutes)
export    how fast `forage export` is, and what it holds in memory
recovery  how long a start takes, and how far a second replica is behind
poison    what ten hostile rewards do to a head, and what mends it (10 minutes)
evaluation  off-policy estimates on the Open Bandit sample beside the published ones
outage    Redis goes away under load
learning  what our policies and other libraries learn (`make learning`)

Machines are shared and noisy: a figure is a ratio of medians of the same run, whose rounds were
taken in turn. A benchmark with a published table writes its figures to
benchmarks/results/, any other to out/benchmarks/; `--help` of each says more.
"""

import runpy
import sys
from typing import Final

NAMES: Final = (
    "decision",
    "scoring",
    "http",
    "parts",
    "growth",
    "retrieval",
    "http.steady",
    "http.training",
    "http.replicas",
    "http.catalogue",
    "instructions",
    "memory",
    "stalls",
    "export",
    "recovery",
    "outage",
    "poison",
    "evaluation",
    "learning",
)


def main() -> None:
    """Run the one that is named, with the options that follow."""
    name, *options = sys.argv[1:] or ["decision"]
    if name not in NAMES:
        print(__doc__)
        raise SystemExit(0 if name in ("-h", "--help") else 2)
    sys.argv = [f"python -m benchmarks.{name}", *options]
    runpy.run_module(f"benchmarks.{name}", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
