"""The command line of forage-sim: its options and their help."""

import argparse
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

from simulator_client import values
from simulator_client.reporting import (
    ALL,
    CLICKS_ONLY,
    MISSES_LATE,
    MISSES_NEVER,
    RATE,
    WAIT_SECONDS,
)
from simulator_client.worlds import WORLDS
from simulator_client.worlds.synthetic import EFFECTS

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
    "clicks": None,
    "effects": None,
    "seed": 1,
    "visits": 20_000,
    "shock_at": None,
    "policies": ("linucb", "lints", "neural_linear_ts"),
    "wait_for_training": True,
    "reporting": ALL,
    "wait_seconds": None,
    "rate": None,
}
Option = tuple[str, Callable[[str], Any], str, str, Any]
"""Option of the command: flag, type, metavar, help and default."""

ABOUT: Final = "Replay a world with a known optimum against a Forage service, over HTTP."
REPLAY: Final = """\
Send visits one after another: ask /select for an arm, click or not by the world's true chance,
report to /reward. Each policy gets the same visits. A run makes a fresh experiment of its own.

Calls are repeated through restarts of the service, for up to a minute. Visits are kept in --out
as they happen: `forage-sim report` also reads a run that was stopped.

On a site nobody reports a visit without a click, a miss. --clicks-only plays that: the service
waits for a click, then learns its default reward. --misses-late is full reporting under the same
delay, --misses-never leaves the default out, which biases the learning. These runs go at a --rate,
end once the last reward is learned, and never wait for training.

examples:
  forage-sim replay --policies linucb,random --visits 5000
  forage-sim replay --shock-at 10000 --json summary.json
  forage-sim replay --world synthetic --data shop.toml --clicks 0.05     your own experiment
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

examples:
  forage-sim showdown --policies linucb,lints,random --seeds 5 --visits 20000 --shock-at 10000
  forage-sim showdown --world ranking --policies linucb,lints_narrow,random --visits 5000
  forage-sim showdown --world logged --data log.csv --policies linucb,lints --seeds 3
  forage-sim showdown --policy-file mine.toml --policies linucb,mine --out out/mine
"""
LOAD: Final = """\
Put a running service under load, and report its rates and latencies.

With --rate, selects fall due at random times whether or not earlier ones have an answer, and a
latency counts from the due time: if the service stalls for a second, every select that fell due
meanwhile shows it. Without --rate, every connection sends its next request right after an answer.

Contexts are drawn from the experiment's own features; if it has a number, one in each context
never repeats, so no cache can answer. The experiment learns from the rewards of the test: use one
made for it.

examples:
  forage-sim load --experiment bench --seconds 10       as fast as 64 connections go
  forage-sim load --experiment bench --rate 1000 --p99-ms 10      status 1 on a missed limit
  forage-sim load --experiment bench --policy lints --arms ids --connections 128
  forage-sim load --experiment bench --url http://127.0.0.1:8000,http://127.0.0.1:8001
"""
REPORT: Final = """\
Write one HTML page, complete in itself, and its figures as PNGs. Several runs, for example one that
waited for training and one that did not, stand side by side in the page.
"""

VISITS: Final[list[Option]] = [
    ("--data", Path, "FILE", "CSV, gzipped or not: for world classification, a row per visit with "
     "its class in column 'label'; for world logged, a log in the Open Bandit form; for world "
     "synthetic, the TOML file of an experiment", None),
    ("--label", str, "NAME", "column of the class (default: label)", None),
    ("--clicks", values.fraction, "SHARE",
     "world synthetic: clicks on a random arm (default: 0.05)", None),
    ("--policies", values.names, "A,B",
     f"default: {','.join(DEFAULTS['policies'])}, or all of --policy-file or of the experiment",
     None),
    ("--policy-file", Path, "FILE", "JSON or TOML, name -> settings, or an experiment's file; its "
     "policies add to or replace those known by name", None),
    ("--visits", values.count, "N", "visits per policy (default: 20000)", None),
    ("--world-seed", values.seed, "S", "seed of the world itself (default: 42)", None),
    ("--shock-at", values.seed, "N", "the market changes at this visit", None),
]  # fmt: skip
SERVICE: Final[list[Option]] = [
    ("--key", values.key, "KEY", "API key, if the service asks for one; better kept in FORAGE_KEY, "
     "since the list of processes shows options", None),
    ("--ready-within", values.seconds, "SECONDS",
     "how long to wait for the service at the start (default: %(default)g)", 15.0),
]  # fmt: skip
PATIENCE: Final[Option] = (
    "--training-patience", values.seconds, "SECONDS",
    "how long to wait for one version before going on without it (default: %(default)g)", 120.0,
)  # fmt: skip
AT_A_RATE: Final[list[Option]] = [
    ("--wait-seconds", values.above_zero, "SECONDS", "how long a click is waited for: "
     "reward.wait_seconds of the experiment, or the delay of --misses-late (default: "
     f"{WAIT_SECONDS:g}); the service looks for due defaults every FORAGE_EXPIRY_SECONDS", None),
    ("--rate", values.above_zero, "VISITS", "visits a second of each policy, begun on time whether "
     f"or not earlier ones have an answer (default: {RATE:g} with the options above; otherwise one "
     "after another)", None),
]  # fmt: skip
LOAD_REQUESTS: Final[list[Option]] = [
    ("--experiment", str, "NAME", "default: the only one of the service", None),
    ("--policy", str, "NAME", "default: assigned by the traffic shares", None),
    ("--rewards-per-select", values.share, "SHARE",
     "share of the decisions that get a reward, from 0 to 1 (default: %(default)g)", 0.2),
    ("--seed", values.seed, "S", "default: %(default)d", 1),
]  # fmt: skip
LOAD_PACE: Final[list[Option]] = [
    ("--rate", values.above_zero, "SELECTS",
     "selects due per second (default: as fast as the connections go)", None),
    ("--connections", values.count, "N",
     "kept busy (default: 64); at a rate, at most so many (default: 256)", None),
    ("--warm-up", values.seconds, "SECONDS",
     "before the counted seconds (default: %(default)g)", 2.0),
    ("--seconds", values.above_zero, "SECONDS", "counted (default: %(default)g)", 10.0),
    ("--timeout", values.above_zero, "SECONDS",
     "after which a request counts as an error (default: %(default)g)", 10.0),
]  # fmt: skip
LOAD_LIMITS: Final[list[Option]] = [
    ("--p99-ms", values.above_zero, "MS",
     "status 1 if the p99 of selects or of rewards is above", None),
    ("--errors", values.seed, "N", "status 1 on more errors", None),
]  # fmt: skip


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="forage-sim", description=ABOUT)
    commands = top.add_subparsers(
        dest="command", required=True, metavar="replay | showdown | load | report"
    )

    def command(name: str, summary: str, about: str) -> argparse.ArgumentParser:
        raw = argparse.RawDescriptionHelpFormatter
        made: argparse.ArgumentParser = commands.add_parser(
            name, help=summary, description=about, formatter_class=raw
        )
        return made

    _replay(command("replay", "play visits against a service, then report", REPLAY))
    _showdown(command("showdown", "compare policies over several seeds", SHOWDOWN))
    _load(command("load", "put a service under load, and measure it", LOAD))
    report = command("report", "write the page on one or more runs", REPORT)
    report.add_argument("run", nargs="+", type=Path, help="a run's folder, or its id under out/")
    report.add_argument(
        "--out", type=Path, metavar="DIR", help="default: the run's folder; of several, out/report"
    )
    return top


def _add(group: Any, options: Iterable[Option]) -> None:
    for flag, kind, metavar, text, default in options:
        group.add_argument(flag, type=kind, metavar=metavar, help=text, default=default)


def _replay(replay: argparse.ArgumentParser) -> None:
    _visits(replay, ("--seed", values.seed, "S", "seed of visits and clicks (default: 1)", None))
    reported = replay.add_argument_group("reporting of visits (default: all, at once)")
    ways = reported.add_mutually_exclusive_group()
    for way, told in (
        (CLICKS_ONLY, "report only clicks: the service learns its default reward for misses"),
        (MISSES_LATE, "report clicks at once and misses after --wait-seconds, to compare"),
        (MISSES_NEVER, "report only clicks, without a default reward: biased, to compare"),
    ):
        ways.add_argument(f"--{way}", dest="reporting", action="store_const", const=way, help=told)
    _add(reported, AT_A_RATE)
    _service(
        replay,
        PATIENCE,
        ("--experiment", str, "NAME", "default: one named after the run; an existing one is used "
         "as it is defined", None),
    )  # fmt: skip
    _results(replay, "folder of the run: out/<run id>")


def _showdown(showdown: argparse.ArgumentParser) -> None:
    _visits(
        showdown,
        ("--seeds", values.count, "N", "stream seeds (default: %(default)d)", 5),
        ("--first-seed", values.seed, "S", "the first of them (default: %(default)d)", 1),
    )
    _service(showdown, PATIENCE).add_argument(
        "--keep", action="store_true", help="leave the experiments of finished seeds in the service"
    )
    _results(showdown, "folder of the showdown, new or begun: out/showdown-<id>")
    showdown.set_defaults(seed=None, reporting=None, wait_seconds=None, rate=None)


def _load(load: argparse.ArgumentParser) -> None:
    sent = load.add_argument_group("requests")
    _add(sent, LOAD_REQUESTS)
    sent.add_argument(
        "--arms", choices=("none", "ids"), default="none",
        help="none: all active arms, not listed (the default); ids: every request lists all ids",
    )  # fmt: skip
    sent.add_argument(
        "--contexts", choices=("fresh", "repeated"), default="fresh",
        help="fresh: a number in each never repeats (the default); repeated: 512 in turn",
    )  # fmt: skip
    sent.add_argument(
        "--rewards-alone", action="store_true",
        help="decide during the warm-up, then only reward those decisions, until they run out",
    )  # fmt: skip
    _add(load.add_argument_group("rate and duration"), LOAD_PACE)
    _service(load)
    _results(load, "default: out/load-<id>", *LOAD_LIMITS)


def _visits(command: argparse.ArgumentParser, *more: Option) -> None:
    visits = command.add_argument_group("world and visits")
    visits.add_argument("--world", choices=sorted(WORLDS), help="default: zooplus")
    _add(visits, [*VISITS, *more])
    visits.add_argument(
        "--effects", choices=EFFECTS,
        help="world synthetic: what features do to clicks (default: crosses)",
    )  # fmt: skip
    visits.add_argument(
        "--risky", action="store_const", const=True,
        help="labels edible and poisonous, with the rewards of the Mushroom problem; implied if "
        "the file's name begins with mushroom",
    )  # fmt: skip
    visits.add_argument(
        "--wait-for-training", action=argparse.BooleanOptionalAction,
        help="hold a policy's visits while a version of it is being trained, so that the figures "
        "do not depend on the client's speed (default: on)",
    )  # fmt: skip


def _service(command: argparse.ArgumentParser, *more: Option) -> Any:
    service = command.add_argument_group("service")
    service.add_argument(
        "--url", type=values.names, action="extend", metavar="URL",
        help="of the service; several, by comma or by repeating the option, are asked in turn "
        f"(default: {DEFAULT_URL})",
    )  # fmt: skip
    _add(service, [*SERVICE, *more])
    command.set_defaults(key=_key(command))
    return service


def _key(command: argparse.ArgumentParser) -> str | None:
    """Return the key of the environment, or of the file that it names."""
    key, path = (os.environ.get(name) for name in ("FORAGE_KEY", "FORAGE_KEY_FILE"))
    if not path:
        return key or None
    if key:
        command.error("FORAGE_KEY and FORAGE_KEY_FILE are both set: set one")
    try:
        return Path(path).read_text("utf-8-sig").strip()
    except (OSError, UnicodeDecodeError) as fault:
        command.error(f"FORAGE_KEY_FILE: {fault}")


def _results(command: argparse.ArgumentParser, out: str, *more: Option) -> None:
    results = command.add_argument_group("results")
    results.add_argument("--out", type=Path, metavar="DIR", help=out)
    results.add_argument("--json", type=Path, metavar="PATH", help="also write the summary here")
    _add(results, more)
