"""Benchmarks: python -m benchmarks NAME [OPTIONS], or `make bench ARGS='http --rounds 1'`.

scoring        a decision of each kind of policy, and a fold, beside plain numpy (a minute)
rules          what rules cost a decision, in process (a minute)
http           the service over HTTP beside a bare server and peers (two cores, 12 minutes)
http.callers   what the headers of different callers cost
http.overload  the service at twice its capacity
following      what a replica pays for an event of another process, by kind and store
deleted_rows   what deleting old decisions costs PostgreSQL
recovery       the start of a service, and the delay of a second replica
learning       what our policies and other libraries learn (`make learning`)

Machines are shared and noisy, so compare ratios: each is taken between medians of one run, whose
rounds alternate. A run writes its figures to out/benchmarks; with `--publish` to benchmarks/results
and into docs/performance.md. `--help` of each says more.
"""

import runpy
import sys
from typing import Final

NAMES: Final = (
    "scoring",
    "rules",
    "http",
    "http.callers",
    "http.overload",
    "following",
    "deleted_rows",
    "recovery",
    "learning",
)


def main() -> None:
    """Run the named benchmark with the options that follow."""
    name, *options = sys.argv[1:] or ["scoring"]
    if name not in NAMES:
        print(__doc__)
        raise SystemExit(0 if name in ("-h", "--help") else 2)
    sys.argv = [f"python -m benchmarks.{name}", *options]
    runpy.run_module(f"benchmarks.{name}", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
