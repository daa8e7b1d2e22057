"""The options of `forage-sim load`."""

import argparse
import os
from pathlib import Path
from typing import Final

from simulator_client import values

ABOUT: Final = """\
Put a running service under load, and say how fast it answered.

Without --rate as fast as it goes: every connection asks again as soon as it is answered. With
--rate selects fall due at their times whether or not earlier ones were answered, and a latency
counts from then: a service that stalls for a second has made all wait that fell due meanwhile.

Contexts are drawn from the experiment's own features; where it has a number, one never repeats,
so that no answer can come from a cache. A part of the decisions is rewarded, each at most once.
The experiment learns from it: test one that is there for it.
"""
EXAMPLES: Final = """\
examples:
  forage-sim load --seconds 10                                as fast as 64 connections can
  forage-sim load --rate 1000 --seconds 60 --p99-ms 10 --errors 0     status 1 where it is missed
  forage-sim load --policy lints --arms ids --processes 2 --connections 128
  forage-sim load --url http://127.0.0.1:8000,http://127.0.0.1:8001 --rate 5000 --spacing even
"""


def share(text: str) -> float:
    """A number from 0 to 1."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0.0 <= number <= 1.0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to 1")
    return number


def load_options(load: argparse.ArgumentParser, default_url: str) -> None:
    """Everything that can be asked for."""
    sent = load.add_argument_group("what is sent")
    sent.add_argument(
        "--experiment", metavar="NAME", help="may be left out where there is one alone"
    )
    sent.add_argument(
        "--policy", metavar="NAME", help="left out: the traffic shares assign one to each request"
    )
    sent.add_argument(
        "--arms", choices=("none", "ids"), default="none",
        help="none: left out, all active arms (the default); ids: spelled out in every request",
    )  # fmt: skip
    sent.add_argument(
        "--contexts", choices=("fresh", "repeated"), default="fresh",
        help="fresh: a number in each that never repeats (the default); repeated: 512 in turn",
    )  # fmt: skip
    sent.add_argument(
        "--rewards-per-select", type=share, default=0.2, metavar="SHARE",
        help="rewards a select, from 0 to 1 (default: 0.2)",
    )  # fmt: skip
    sent.add_argument(
        "--rewards-alone", action="store_true",
        help="decide while it warms up, then only reward those decisions, as long as they last",
    )  # fmt: skip
    sent.add_argument("--seed", type=values.seed, default=1, metavar="S", help="default: 1")
    pace = load.add_argument_group("how fast, and for how long")
    pace.add_argument(
        "--rate", type=values.above_zero, metavar="SELECTS",
        help="selects a second that fall due; left out: as fast as it goes",
    )  # fmt: skip
    pace.add_argument(
        "--spacing", choices=("poisson", "even"), default="poisson",
        help="of what falls due at a rate (default: poisson)",
    )  # fmt: skip
    pace.add_argument(
        "--connections", type=values.count, metavar="N",
        help="kept busy (default: 64); at a rate, at most so many (default: 256)",
    )  # fmt: skip
    pace.add_argument(
        "--processes", type=values.count, default=1, metavar="P",
        help="that share connections and rate (default: 1)",
    )  # fmt: skip
    pace.add_argument(
        "--warm-up", type=values.seconds, default=2.0, metavar="SECONDS",
        help="at the beginning, which do not count (default: 2)",
    )  # fmt: skip
    pace.add_argument(
        "--seconds", type=values.above_zero, default=10.0, metavar="SECONDS",
        help="that count (default: 10)",
    )  # fmt: skip
    pace.add_argument(
        "--timeout", type=values.above_zero, default=10.0, metavar="SECONDS",
        help="after which a request is given up, and counts as an error (default: 10)",
    )  # fmt: skip
    where = load.add_argument_group("where")
    where.add_argument(
        "--url", type=values.names, action="extend", metavar="URL",
        help="the service; of several, each has its share of the connections "
        f"(default: {default_url})",
    )  # fmt: skip
    where.add_argument(
        "--key", type=values.key, default=os.environ.get("FORAGE_KEY") or None, metavar="KEY",
        help="API key, of a service that asks for one; better kept in FORAGE_KEY, since options "
        "show in the list of processes",
    )  # fmt: skip
    where.add_argument(
        "--ready-within", type=values.seconds, default=15.0, metavar="SECONDS",
        help="how long to wait for the service at the start (default: 15)",
    )  # fmt: skip
    kept = load.add_argument_group("what is kept, and what is a failure")
    kept.add_argument("--out", type=Path, metavar="DIR", help="default: out/load-<id>")
    kept.add_argument("--json", type=Path, metavar="PATH", help="write the summary here as well")
    kept.add_argument(
        "--p99-ms", type=values.above_zero, metavar="MS",
        help="status 1 where the p99 of selects, or of rewards, is above",
    )  # fmt: skip
    kept.add_argument(
        "--errors", type=values.seed, metavar="N", help="status 1 where there are more errors"
    )
