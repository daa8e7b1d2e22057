"""The command line: what can be asked for, and its help."""

import argparse
import os
from pathlib import Path
from typing import Any, Final

from simulator_client import load_arguments, values
from simulator_client.reporting import (
    ALL,
    CLICKS_ONLY,
    MISSES_LATE,
    MISSES_NEVER,
    RATE,
    WAIT_SECONDS,
)
from simulator_client.worlds import WORLDS

DEFAULT_URL: Final = "http://127.0.0.1:8000"
OUT: Final = Path("out")
# The description of a run. The parser leaves options None that are not given: a rate implies
# other defaults.
DEFAULTS: Final[dict[str, Any]] = {
    "world": "zooplus",
    "world_seed": 42,
    "data": None,
    "label": None,
    "risky": False,
    "seed": 1,
    "visits": 20_000,
    "shock_at": None,
    "policies": ("linucb", "lints", "neural_linear_ts"),
    "wait_for_training": True,
    "reporting": ALL,
    "wait_seconds": None,
    "rate": None,
}

ABOUT: Final = "Replay a world with a known optimum against a Forage service, over HTTP."
REPLAY: Final = """\
Send visits one after another: ask /select what to show, click or not by the world's true chance,
tell /reward. Each policy gets the same visits. A run makes a fresh experiment of its own.

Calls are repeated through restarts of the service, for up to a minute. Visits are kept in --out
as they happen: `forage-sim report` also reads a run that was stopped.

On a site nobody reports a visit without a click, a miss. --clicks-only plays that: the service
waits for a click, then learns its default reward. --misses-late is full reporting under the same
delay, --misses-never leaves the default out, and what is learned is then biased. These runs go at
a --rate, end once the last reward is learned, and never wait for training.
"""
REPLAY_EXAMPLES: Final = """\
examples:
  forage-sim replay --policies linucb,random --visits 5000
  forage-sim replay --shock-at 10000 --json summary.json
  forage-sim replay --world classification --data mushroom.csv.gz --policies linucb,neural_ts
  forage-sim replay --url http://127.0.0.1:8000,http://127.0.0.1:8001    two replicas in turn
  forage-sim replay --clicks-only --wait-seconds 2 --rate 100 --policies linucb,lints
"""
SHOWDOWN: Final = """\
Compare policies over several stream seeds of one world: a replay per seed, each on a fresh
experiment that is deleted when its visits are done, then one page with means, 95 percent intervals
and the worst seed.

Each seed is a run of its own under --out. After a stop, the same options with the same --out play
only the seeds that are not done.
"""
SHOWDOWN_EXAMPLES: Final = """\
examples:
  forage-sim showdown --policies linucb,lints,random --seeds 5 --visits 20000 --shock-at 10000
  forage-sim showdown --world ranking --policies linucb,lints_narrow,random --visits 5000
  forage-sim showdown --world logged --data log.csv --policies linucb,lints --seeds 3
  forage-sim showdown --policy-file mine.toml --policies linucb,mine --out out/mine
"""
REPORT: Final = """\
Write one HTML page, complete in itself, and its figures as PNGs. Several runs, one that waited for
training and one that ran free, say, stand side by side in the page.
"""


def parser() -> argparse.ArgumentParser:
    """The parser of forage-sim."""
    top = argparse.ArgumentParser(prog="forage-sim", description=ABOUT)
    commands = top.add_subparsers(
        dest="command", required=True, metavar="replay | showdown | load | report"
    )
    raw = argparse.RawDescriptionHelpFormatter
    _replay(
        commands.add_parser(
            "replay",
            help="play visits against a service, then report",
            description=REPLAY,
            epilog=REPLAY_EXAMPLES,
            formatter_class=raw,
        )
    )
    _showdown(
        commands.add_parser(
            "showdown",
            help="compare policies over several seeds",
            description=SHOWDOWN,
            epilog=SHOWDOWN_EXAMPLES,
            formatter_class=raw,
        )
    )
    load = commands.add_parser(
        "load",
        help="put a service under load, and measure it",
        description=load_arguments.ABOUT,
        epilog=load_arguments.EXAMPLES,
        formatter_class=raw,
    )
    load_arguments.load_options(load)
    _service(load)
    report = commands.add_parser(
        "report",
        help="write the page on one or more runs",
        description=REPORT,
        formatter_class=raw,
    )
    report.add_argument("run", nargs="+", type=Path, help="a run's folder, or its id under out/")
    report.add_argument(
        "--out", type=Path, metavar="DIR", help="default: the run's folder; of several, out/report"
    )
    return top


def _replay(replay: argparse.ArgumentParser) -> None:
    played = _played(replay)
    played.add_argument(
        "--seed", type=values.seed, metavar="S", help="seed of visits and clicks (default: 1)"
    )
    _reported(replay)
    service = _service(replay)
    _patience(service)
    service.add_argument(
        "--expiry-patience", type=values.seconds, default=60.0, metavar="SECONDS",
        help="how long the last rewards of a run at a rate may take to be learned, once the last "
        "wait window is over (default: 60)",
    )  # fmt: skip
    service.add_argument(
        "--experiment",
        metavar="NAME",
        help="default: one named after the run; one that exists is used as it is defined",
    )
    service.add_argument(
        "--continue",
        dest="continued",
        action="store_true",
        help="play on an experiment that has learned already",
    )
    _kept(replay, "folder of the run: out/<run id>")


def _reported(replay: argparse.ArgumentParser) -> None:
    reported = replay.add_argument_group("what is reported, and when (default: all, at once)")
    ways = reported.add_mutually_exclusive_group()
    for way, told in (
        (CLICKS_ONLY, "report clicks alone: misses are left to the service's default reward"),
        (MISSES_LATE, "report clicks at once and misses after --wait-seconds, to compare"),
        (MISSES_NEVER, "report clicks alone, without a default reward: biased, to compare"),
    ):
        ways.add_argument(f"--{way}", dest="reporting", action="store_const", const=way, help=told)
    reported.add_argument(
        "--wait-seconds", type=values.above_zero, metavar="SECONDS",
        help="how long a click is waited for: reward.wait_seconds of the experiment, or the delay "
        f"of --misses-late (default: {WAIT_SECONDS:g}); the service looks for defaults that are "
        "due once in its FORAGE_EXPIRY_SECONDS (1)",
    )  # fmt: skip
    reported.add_argument(
        "--rate", type=values.above_zero, metavar="VISITS",
        help="visits a second of each policy, begun on time whether or not earlier ones were "
        f"answered (default: {RATE:g} with the options above; otherwise one after another)",
    )  # fmt: skip


def _showdown(showdown: argparse.ArgumentParser) -> None:
    played = _played(showdown)
    played.add_argument(
        "--seeds", type=values.count, default=5, metavar="N", help="stream seeds (default: 5)"
    )
    played.add_argument(
        "--first-seed",
        type=values.seed,
        default=1,
        metavar="S",
        help="the first of them (default: 1)",
    )
    service = _service(showdown)
    _patience(service)
    service.add_argument(
        "--keep", action="store_true", help="leave the experiments of finished seeds in the service"
    )
    _kept(showdown, "folder of the showdown: out/showdown-<id>; one that was begun is gone on with")
    showdown.set_defaults(seed=None, continued=False, reporting=None, wait_seconds=None, rate=None)


def _played(command: argparse.ArgumentParser) -> Any:
    world = command.add_argument_group("what is played")
    world.add_argument("--world", choices=sorted(WORLDS), help="default: zooplus")
    world.add_argument(
        "--data", type=Path, metavar="FILE",
        help="CSV, gzipped or not: of world classification, a row a visit with its class in "
        "column 'label'; of world logged, a log in the Open Bandit form",
    )  # fmt: skip
    world.add_argument("--label", metavar="NAME", help="column of the class (default: label)")
    world.add_argument(
        "--risky", action="store_const", const=True,
        help="labels edible and poisonous: the rewards of the Mushroom problem; of itself where "
        "the file's name begins with mushroom",
    )  # fmt: skip
    world.add_argument(
        "--policies", type=values.names, metavar="A,B",
        help=f"default: {','.join(DEFAULTS['policies'])}, or all of --policy-file",
    )  # fmt: skip
    world.add_argument(
        "--policy-file", type=Path, metavar="FILE",
        help="JSON or TOML, name -> settings as an experiment has them; they add to or replace "
        "the policies known by name",
    )  # fmt: skip
    world.add_argument(
        "--visits", type=values.count, metavar="N", help="visits per policy (default: 20000)"
    )
    world.add_argument(
        "--world-seed", type=values.seed, metavar="S", help="seed of the world itself (default: 42)"
    )
    world.add_argument(
        "--shock-at", type=values.seed, metavar="N", help="the market changes at this visit"
    )
    world.add_argument(
        "--wait-for-training",
        action=argparse.BooleanOptionalAction,
        help="hold a policy's visits while a version of it is being trained, so that the figures "
        "do not depend on the client's speed (default: on)",
    )
    return world


def _service(command: argparse.ArgumentParser) -> Any:
    service = command.add_argument_group("service")
    service.add_argument(
        "--url", type=values.names, action="extend", metavar="URL",
        help="of the service; several, by comma or by repeating the option, are asked in turn "
        f"(default: {DEFAULT_URL})",
    )  # fmt: skip
    service.add_argument(
        "--key", type=values.key, default=os.environ.get("FORAGE_KEY") or None, metavar="KEY",
        help="API key, if the service asks for one; better kept in FORAGE_KEY, since the list of "
        "processes shows options",
    )  # fmt: skip
    service.add_argument(
        "--ready-within", type=values.seconds, default=15.0, metavar="SECONDS",
        help="how long to wait for the service at the start (default: 15)",
    )  # fmt: skip
    return service


def _patience(service: Any) -> None:
    service.add_argument(
        "--training-patience", type=values.seconds, default=120.0, metavar="SECONDS",
        help="how long to wait for one version before going on without it (default: 120)",
    )  # fmt: skip


def _kept(command: argparse.ArgumentParser, out: str) -> Any:
    kept = command.add_argument_group("what is kept")
    kept.add_argument("--out", type=Path, metavar="DIR", help=out)
    kept.add_argument("--json", type=Path, metavar="PATH", help="write the summary here as well")
    return kept
