"""Our policies and other libraries on the same visits: python -m benchmarks.learning.

A run that OUT holds already is not played again, unless the service's code or the settings of the
policy changed. So a stopped comparison continues, and one with more agents or streams plays only
those.
"""

import argparse
import os
import sys
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # read when numpy is imported

from benchmarks.learning.peers import PEERS, LeftOut
from benchmarks.learning.publish import publish
from benchmarks.learning.runs import Case, Record, Run, commit, origin_of
from benchmarks.learning.standing import Standing
from benchmarks.learning.worlds import USELESS, world_of
from benchmarks.tables import parser_of
from simulator_client.errors import UsageError
from simulator_client.summary import table
from simulator_client.worlds.policies import read_policies

OUT: Final = Path("out/learning")
VISITS: Final = {
    "zooplus": 20_000, "clicks_tenth": 10_000, "clicks_fiftieth": 10_000, "drift": 10_000,
    "payments": 4_000, "own_effects": 4_000, "two_arms": 4_000, "ranking": 5_000,
    "classification": 5_000, "thirds": 5_000, **dict.fromkeys(USELESS, 2_000),
}  # fmt: skip
SHOCKED_VISITS: Final = 40_000
FROM_DATA: Final = ("classification", "thirds")
POLICIES: Final = (
    "auto", "linucb", "linucb_disjoint", "lints", "lints_disjoint", "neural_linear_ts",
    "neural_linucb", "neural_ucb", "neural_ts", "neural_glm_ts", "bootstrap_ensemble", "mc_dropout",
    "epsilon_greedy", "squarecb", "popularity", "random",
)  # fmt: skip


def parser() -> argparse.ArgumentParser:
    """Make the parser of the command line."""
    top = parser_of("learning", __doc__)
    top.add_argument(
        "--world", choices=VISITS, nargs="+", default=["zooplus"], help="default: zooplus"
    )
    top.add_argument(
        "--data", type=Path, nargs="+", default=[], metavar="FILE",
        help=f"CSV files with a column 'label', for {' and '.join(FROM_DATA)}",
    )  # fmt: skip
    top.add_argument(
        "--policies", type=_names, metavar="A,B", help="ours; default: those of --policy-file, "
        "or one a kind; 'none' for none",
    )  # fmt: skip
    top.add_argument("--peers", type=_names, metavar="A,B", help=f"of {', '.join(PEERS)}; 'none'")
    top.add_argument("--seeds", type=_count, default=5, metavar="N", help="streams (default: 5)")
    top.add_argument("--first-seed", type=int, default=1, metavar="S", help="default: 1")
    top.add_argument(
        "--visits", type=_count, metavar="V", help="default: "
        + ", ".join(f"{world} {visits}" for world, visits in VISITS.items())
        + f"; with a shock {SHOCKED_VISITS}; of data one pass at most",
    )  # fmt: skip
    top.add_argument("--shock-at", type=int, metavar="T", help="Zooplus: the visit of the shock")
    top.add_argument("--world-seed", type=int, default=42, metavar="N", help="default: 42")
    top.add_argument(
        "--jobs", type=_count, default=os.cpu_count(), metavar="J", help="default: cores"
    )
    top.add_argument(
        "--policy-file", type=Path, metavar="FILE", help="JSON or TOML: settings by policy name"
    )
    top.add_argument(
        "--out", type=Path, default=OUT, metavar="DIR",
        help=f"runs, and figures and plot of each case; default: {OUT}",
    )  # fmt: skip
    top.add_argument(
        "--publish",
        action="store_true",
        help="replace these agents in docs/learning.md, if a short replay gives their digits again",
    )
    return top


def _names(text: str) -> list[str]:
    return [] if text == "none" else [name for name in text.split(",") if name]


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def cases(asked: argparse.Namespace) -> Iterator[Case]:
    """Yield the asked cases. Raises UsageError."""
    for world in asked.world:
        if world in FROM_DATA:
            if not asked.data:
                raise UsageError(f"world {world} needs --data FILE, a CSV with a header")
            for path in asked.data:
                rows = len(getattr(world_of(world, 0, data=path), "labels", []))
                yield Case(world, asked.visits or min(rows, VISITS[world]), data=path)
        else:
            shock_at = asked.shock_at if world == "zooplus" else None
            visits = VISITS[world] if shock_at is None else SHOCKED_VISITS
            yield Case(world, asked.visits or visits, asked.world_seed, shock_at)


def runs_of(standing: Standing, asked: argparse.Namespace, own: dict[str, Any]) -> list[Run]:
    """Return every run of a case; note the agents that cannot play. Raises UsageError."""
    case, world, runs = standing.case, standing.case.make(), []
    policies = asked.policies if asked.policies is not None else list(own) or POLICIES
    peers = PEERS if asked.peers is None else asked.peers
    if unknown := [peer for peer in peers if peer not in PEERS]:
        raise UsageError(f"unknown peer {unknown[0]!r}; known: {', '.join(PEERS)}")
    for agent in [*policies, *peers]:
        try:
            origin = origin_of(world, agent, own)
        except LeftOut as why:
            standing.leave_out(agent, why)
        else:
            seeds = range(asked.first_seed, asked.first_seed + asked.seeds)
            runs += [Run(case, agent, seed, origin) for seed in seeds]
    return runs


def play(runs: list[Run], out: Path, jobs: int) -> Iterator[tuple[Run, Record | BaseException]]:
    """Play runs in parallel; yield each with its record, or with the error that ended it."""
    # Spawned: a forked child could inherit BLAS in the middle of its work.
    pool = ProcessPoolExecutor(jobs, mp_context=get_context("spawn"))
    try:
        waiting: dict[Future[Record], Run] = {pool.submit(run.play, out): run for run in runs}
        for future in as_completed(waiting):
            yield waiting[future], future.exception() or future.result()
    finally:
        pool.shutdown(cancel_futures=True)


def compare(asked: argparse.Namespace) -> list[Standing]:
    """Play the asked runs that OUT does not hold. Raises UsageError."""
    own = read_policies(asked.policy_file) if asked.policy_file else {}
    if asked.publish and commit() is None:
        raise UsageError("--publish needs code that is committed: a published row says its commit")
    standings = {case.name: Standing(case) for case in cases(asked)}
    runs = [run for standing in standings.values() for run in runs_of(standing, asked, own)]
    played: dict[tuple[str, str], list[Record]] = defaultdict(list)
    left = []
    for run in runs:
        if record := run.found(asked.out):
            played[run.case.name, run.agent].append(record)
        else:
            left.append(run)
    if len(left) < len(runs):
        print(f"{asked.out} has {len(runs) - len(left)} of {len(runs)} runs already")
    for number, (run, result) in enumerate(play(left, asked.out, asked.jobs), 1):
        if isinstance(result, BaseException):
            standings[run.case.name].leave_out(run.agent, result)
            continue
        played[run.case.name, run.agent].append(result)
        figures = result["figures"]
        told = f"{figures['relative_regret']:.2f}% of uniform's regret, {figures['seconds']:.1f} s"
        print(f"{number}/{len(left)} {run.case.name} {run.agent} {run.seed}: {told}", flush=True)
    for (case, _), records in played.items():
        standings[case].add(records)
    return list(standings.values())


def report(standing: Standing, out: Path) -> None:
    """Print a case, and write its figures and its plot."""
    from benchmarks.learning.pictures import draw  # matplotlib costs a second

    print(f"\n{standing.case.title}")
    if standing.entries:
        print(f"{table(standing.cells)}\n{standing.verdict}")
        standing.write(out / f"{standing.case.name}.json", standing.ranked)
        draw(standing, picture := out / f"{standing.case.name}.png")
        print(picture)
    for agent, why in standing.left_out.items():
        print(f"left out: {agent}: {why}")


def main() -> None:
    """Play, print, and publish if asked."""
    asked = parser().parse_args()
    try:
        standings = compare(asked)
    except UsageError as error:
        sys.exit(f"error: {error}")
    for standing in standings:
        report(standing, asked.out)
    if asked.publish:
        try:
            publish(standings)
        except UsageError as error:
            sys.exit(f"error: {error}")
    sys.exit(any(standing.failed for standing in standings))


if __name__ == "__main__":
    main()
