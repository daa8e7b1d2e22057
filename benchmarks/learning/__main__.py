"""Forage's policies and other libraries on the same visits: python -m benchmarks.learning.

A run that OUT holds already is not played again, so a comparison that was stopped goes on, and one
with more agents or streams plays those alone. Runs of our policies are those of the code they were
played with: --fresh plays the asked ones anew.
"""

import argparse
import json
import os
import sys
import tomllib
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # read when numpy is imported

from benchmarks.learning.peers import PEERS, LeftOut
from benchmarks.learning.runs import Case, Record, Run, code, settings_of
from benchmarks.learning.tables import Standing, summary, text
from simulator_client.errors import UsageError
from simulator_client.worlds import make_world

OUT: Final = Path("out/learning")
WORLDS: Final = ("zooplus", "ranking", "classification", "all")
VISITS: Final = {"zooplus": 20_000, "ranking": 5_000, "classification": 20_000}
SHOCKED_VISITS: Final = 40_000
POLICIES: Final = (
    "linucb", "linucb_disjoint", "lints", "lints_disjoint", "neural_linear_ts", "neural_linucb",
    "neural_ucb", "neural_ts", "neural_glm_ts", "bootstrap_ensemble", "mc_dropout",
    "epsilon_greedy", "popularity", "random",
)  # fmt: skip


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(
        prog="python -m benchmarks.learning",
        description="Learning compared on the same visits: our policies and other libraries.",
    )
    top.add_argument("--world", choices=WORLDS, default="zooplus", help="default: zooplus")
    top.add_argument(
        "--data", type=Path, nargs="+", default=[], metavar="FILE",
        help="CSV files with a column 'label', for world classification",
    )  # fmt: skip
    top.add_argument(
        "--policies", type=_names, metavar="A,B", help="ours; default: those of --policy-file, "
        "or one a kind; 'none' for none",
    )  # fmt: skip
    top.add_argument("--peers", type=_names, metavar="A,B", help=f"of {', '.join(PEERS)}; 'none'")
    top.add_argument("--seeds", type=_count, default=5, metavar="N", help="streams (default: 5)")
    top.add_argument("--first-seed", type=int, default=1, metavar="S", help="default: 1")
    top.add_argument(
        "--visits", type=_count, metavar="V", help="default: 20000, with a shock 40000; ranking "
        "5000; classification one pass, at most 20000",
    )  # fmt: skip
    top.add_argument("--shock-at", type=int, metavar="T", help="Zooplus: the visit of the shock")
    top.add_argument("--world-seed", type=int, default=42, metavar="N", help="default: 42")
    top.add_argument(
        "--jobs", type=_count, default=os.cpu_count(), metavar="J", help="default: cores"
    )
    top.add_argument(
        "--policy-file", type=Path, metavar="FILE", help="JSON or TOML: settings by policy name"
    )
    top.add_argument("--fresh", action="store_true", help="play again what OUT holds already")
    top.add_argument("--json", type=Path, metavar="PATH", help="write every figure there")
    top.add_argument(
        "--out", type=Path, default=OUT, metavar="DIR",
        help=f"runs and report.html; default: {OUT}",
    )  # fmt: skip
    return top


def _names(text: str) -> list[str]:
    return [] if text == "none" else [name for name in text.split(",") if name]


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 on")
    return int(text)


def cases(asked: argparse.Namespace) -> Iterator[Case]:
    """What is to be played. Raises UsageError."""
    worlds = WORLDS[:-1] if asked.world == "all" else (asked.world,)
    if asked.world == "classification" and not asked.data:
        raise UsageError("world classification needs --data FILE, a CSV with a header")
    for world in worlds:
        if world == "classification":
            for path in asked.data:
                rows = len(getattr(make_world(world, 0, data=path), "labels", []))
                yield Case(world, asked.visits or min(rows, VISITS[world]), data=path)
            continue
        shock_at = asked.shock_at if world == "zooplus" else None
        visits = asked.visits or (VISITS[world] if shock_at is None else SHOCKED_VISITS)
        yield Case(world, visits, asked.world_seed, shock_at)
        if asked.world == "all" and world == "zooplus" and shock_at is None:
            visits = asked.visits or SHOCKED_VISITS
            yield Case(world, visits, asked.world_seed, visits // 2)


def runs_of(standing: Standing, asked: argparse.Namespace, own: dict[str, Any]) -> list[Run]:
    """Every run of a case; who does not fit is noted."""
    case, runs = standing.case, []
    seeds = range(asked.first_seed, asked.first_seed + asked.seeds)
    world = case.make()
    policies = asked.policies if asked.policies is not None else list(own) or POLICIES
    for policy in policies:
        try:
            settings = settings_of(world, policy, own)
        except LeftOut as why:
            standing.leave_out(policy, why)
        else:
            runs += [Run(case, policy, seed, settings) for seed in seeds]
    peers = PEERS if asked.peers is None else asked.peers
    if unknown := [peer for peer in peers if peer not in PEERS]:
        raise UsageError(f"unknown peer {unknown[0]!r}; known: {', '.join(PEERS)}")
    return runs + [Run(case, peer, seed, None) for peer in peers for seed in seeds]


def play(runs: list[Run], out: Path, jobs: int) -> Iterator[tuple[Run, Record | BaseException]]:
    """Play runs side by side, each given back as it ends, or what ended it."""
    # Spawned: a forked child would inherit BLAS in the middle of whatever it did.
    pool = ProcessPoolExecutor(jobs, mp_context=get_context("spawn"))
    try:
        waiting: dict[Future[Record], Run] = {pool.submit(run.play, out): run for run in runs}
        for future in as_completed(waiting):
            yield waiting[future], future.exception() or future.result()
    finally:
        pool.shutdown(cancel_futures=True)


def compare(asked: argparse.Namespace) -> list[Standing]:
    """Play what is asked for and not there yet. Raises UsageError."""
    own = _settings(asked.policy_file)
    standings = {case.name: Standing(case) for case in cases(asked)}
    runs = [run for standing in standings.values() for run in runs_of(standing, asked, own)]
    records = [None if asked.fresh else run.found(asked.out) for run in runs]
    known = [(run, record) for run, record in zip(runs, records, strict=True) if record]
    if known:
        print(f"{len(known)} of {len(runs)} runs are in {asked.out} already")
    if stale := sum(record["code"] not in (None, code()) for _, record in known):
        print(f"{stale} of them are of our policies in other code; --fresh plays them anew")
    for run, record in known:
        standings[run.case.name].add(record)
    left = [run for run, record in zip(runs, records, strict=True) if not record]
    for number, (run, result) in enumerate(play(left, asked.out, asked.jobs), 1):
        standing = standings[run.case.name]
        if isinstance(result, BaseException):
            standing.leave_out(run.agent, result)
            continue
        standing.add(result)
        told = f"{result['figures']['relative_regret']:.2f}% of uniform's regret"
        seconds = f"{result['figures']['seconds']:.1f} s"
        print(
            f"{number}/{len(left)} {run.case.name} {run.agent} {run.seed}: {told}, {seconds}",
            flush=True,
        )
    return list(standings.values())


def main() -> None:
    asked = parser().parse_args()
    try:
        standings = compare(asked)
    except UsageError as error:
        sys.exit(f"error: {error}")
    for standing in standings:
        print("\n" + text(standing))
    if asked.json:
        asked.json.write_text(json.dumps(summary(standings), indent=2) + "\n")
    if any(standing.runs for standing in standings):
        from benchmarks.learning.pictures import write  # matplotlib costs a second

        print(f"\n{write(standings, asked.out / 'report.html')}")
    sys.exit(any(standing.failed for standing in standings))


def _settings(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        content = path.read_text(encoding="utf-8")
        parse = tomllib.loads if path.suffix == ".toml" else json.loads
        read: dict[str, Any] = parse(content)
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: {error}") from error
    return read


if __name__ == "__main__":
    main()
