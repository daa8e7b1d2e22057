"""The options of `forage-sim load`."""

import argparse
from pathlib import Path
from typing import Final

from simulator_client import values

ABOUT: Final = """\
Put a running service under load, and report its rates and latencies.

With --rate, selects fall due at random times whether or not earlier ones have an answer, and a
latency counts from the due time: if the service stalls for a second, every select that fell due
meanwhile shows it. Without --rate, every connection sends its next request right after an answer.

Contexts are drawn from the experiment's own features; if it has a number, one in each context
never repeats, so no cache can answer. The experiment learns from the rewards of the test: use one
made for it.
"""
EXAMPLES: Final = """\
examples:
  forage-sim load --seconds 10                      as fast as 64 connections go
  forage-sim load --rate 1000 --seconds 60 --p99-ms 10 --errors 0     status 1 on a missed limit
  forage-sim load --policy lints --arms ids --connections 128
  forage-sim load --url http://127.0.0.1:8000,http://127.0.0.1:8001 --rate 5000
"""


def share(text: str) -> float:
    """Parse a number from 0 to 1."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0.0 <= number <= 1.0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to 1")
    return number


def load_options(load: argparse.ArgumentParser) -> None:
    """Add the options of a load test, without those of the service."""
    sent = load.add_argument_group("requests")
    sent.add_argument("--experiment", metavar="NAME", help="default: the only one of the service")
    sent.add_argument("--policy", metavar="NAME", help="default: assigned by the traffic shares")
    sent.add_argument(
        "--arms", choices=("none", "ids"), default="none",
        help="none: all active arms, not listed (the default); ids: every request lists all ids",
    )  # fmt: skip
    sent.add_argument(
        "--contexts", choices=("fresh", "repeated"), default="fresh",
        help="fresh: a number in each never repeats (the default); repeated: 512 in turn",
    )  # fmt: skip
    sent.add_argument(
        "--rewards-per-select", type=share, default=0.2, metavar="SHARE",
        help="share of the decisions that get a reward, from 0 to 1 (default: 0.2)",
    )  # fmt: skip
    sent.add_argument(
        "--rewards-alone", action="store_true",
        help="decide during the warm-up, then only reward those decisions, until they run out",
    )  # fmt: skip
    sent.add_argument("--seed", type=values.seed, default=1, metavar="S", help="default: 1")
    pace = load.add_argument_group("rate and duration")
    pace.add_argument(
        "--rate", type=values.above_zero, metavar="SELECTS",
        help="selects due per second (default: as fast as the connections go)",
    )  # fmt: skip
    pace.add_argument(
        "--connections", type=values.count, metavar="N",
        help="kept busy (default: 64); at a rate, at most so many (default: 256)",
    )  # fmt: skip
    pace.add_argument(
        "--warm-up", type=values.seconds, default=2.0, metavar="SECONDS",
        help="before the counted seconds (default: 2)",
    )  # fmt: skip
    pace.add_argument(
        "--seconds", type=values.above_zero, default=10.0, metavar="SECONDS",
        help="counted (default: 10)",
    )  # fmt: skip
    pace.add_argument(
        "--timeout", type=values.above_zero, default=10.0, metavar="SECONDS",
        help="after which a request counts as an error (default: 10)",
    )  # fmt: skip
    kept = load.add_argument_group("results and limits")
    kept.add_argument("--out", type=Path, metavar="DIR", help="default: out/load-<id>")
    kept.add_argument("--json", type=Path, metavar="PATH", help="also write the summary here")
    kept.add_argument(
        "--p99-ms", type=values.above_zero, metavar="MS",
        help="status 1 if the p99 of selects or of rewards is above",
    )  # fmt: skip
    kept.add_argument("--errors", type=values.seed, metavar="N", help="status 1 on more errors")
