"""What a second replica brings: python -m benchmarks.http.replicas [--rounds N] [--seconds S].

Two Redis servers (appendfsync everysec): one has a replica of the service, on core 0; the other has
two, on cores 0 and 1. Redis and the client are on either core, wherever there is room, so on a
machine with two cores they take from the replicas what a machine of their own would give. In each
round, as fast as 64 connections to each replica that is asked go, a reward for every five selects:

one        the replica that is alone
two        both of the other two
one of two the first of them alone: the second only folds its rewards

Each is counted by the clock and by the processor: selects for a second that the replicas had of a
core. By the processor, replicas with a core each would answer that many times their number, as long
as Redis keeps up, whose own count is told. Writes benchmarks/results/replicas.json.
"""

import argparse
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

from benchmarks.http.cases import CASES, CONNECTIONS, POLICIES, plan
from benchmarks.http.servers import CLIENT_CORE, LEARNED, QUIET, SERVER_CORE, on_core, teach
from benchmarks.http.turns import Turn, cell, expect_two_cores, figures, turn
from benchmarks.machine import machine
from benchmarks.tables import Json, keep, out_option, parser_of, say
from simulator_client.load import address
from simulator_client.summary import table
from tests.support.redis_server import redis_server
from tests.support.service_process import Service, service

STORE: Final = "redis-everysec"
CORES: Final = (SERVER_CORE, CLIENT_CORE)
WARMUP_S: Final = 0.5
FIRST, SECOND, REDIS = "first", "second", "redis"


class World(NamedTuple):
    """A Redis and the replicas that share it."""

    replicas: list[Service]
    redis_pid: int

    @property
    def watched(self) -> dict[str, int]:
        """Process ids by name."""
        pids = dict(zip((FIRST, SECOND), (one.pid for one in self.replicas), strict=False))
        return {**pids, REDIS: self.redis_pid}


@contextmanager
def world(folder: Path, replicas: int, policy: str) -> Iterator[World]:
    """So many replicas, each on a core of its own; the policy has learned."""
    folder.mkdir()
    with ExitStack() as stack:
        redis = stack.enter_context(redis_server(folder, "--appendfsync", "everysec", tcp=True))
        told = redis.command("INFO", "server")
        assert isinstance(told, dict)
        running = []
        for core in CORES[:replicas]:
            with on_core(core):
                running.append(stack.enter_context(service(folder, redis.url, **QUIET)))
        teach(running[0], CASES[f"{STORE}-{policy}"], LEARNED)
        yield World(running, told["process_id"])


class Kind(NamedTuple):
    """A turn: of so many replicas, so many are asked."""

    name: str
    replicas: int
    asked: int


KINDS: Final = (Kind("one", 1, 1), Kind("two", 2, 2), Kind("one of two", 2, 1))


def taken(kind: Kind, of: World, policy: str, seconds: float, seed: int) -> Json:
    """One turn, as fast as it goes."""
    asked = of.replicas[: kind.asked]
    whole = replace(
        plan(
            CASES[f"{STORE}-{policy}"], asked[0].url, seconds=seconds, warmup_s=WARMUP_S,
            rate=None, seed=seed,
        ),
        addresses=[address(one.url) for one in asked],
        connections=CONNECTIONS * len(asked),
    )  # fmt: skip
    return counted(turn([whole], of.watched), seconds)


def counted(found: Turn, seconds: float) -> Json:
    """By the clock, and by the processor.

    per_second      selects answered in a second
    per_core_second selects for a second that the replicas had of a core, rewards included
    per_redis_core  selects for a second that Redis had of a core
    us              that a select took of each process, in microseconds
    cores           share of a core that each process had
    """
    (tally,) = found.tallies
    selects = sum(tally.seconds["select"])
    client_s = tally.cores[0] * tally.counted_s[0] / max(1, tally.answered["select"]) * selects
    used_s = {**found.cpu_s, "client": client_s}
    replicas_s = found.cpu_s[FIRST] + found.cpu_s.get(SECOND, 0.0)
    told = figures(tally)
    return {
        "per_second": told["per_second"],
        "per_core_second": round(selects / replicas_s, 1),
        "per_redis_core": round(selects / found.cpu_s[REDIS], 1),
        "us": {name: round(1e6 * each / selects, 1) for name, each in used_s.items()},
        "cores": {name: round(each / (WARMUP_S + seconds), 3) for name, each in used_s.items()},
        "errors": told["errors"],
        "unlogged": told["unlogged"],
    }


def judged(turns: dict[str, list[Json]]) -> Json:
    """Medians of the rounds, and medians of their ratios.

    two_to_one               by the clock, on the cores that client and Redis share
    two_to_one_by_processor  twice the selects for a second of a core, to those of the one alone
    fold_us                  that a replica takes to fold the rewards of one select of another
    fold_share               the same, of what a select takes of the one alone
    """
    found: Json = {}
    for name, rounds in turns.items():
        found[name] = {
            **{
                figure: median(each[figure] for each in rounds)
                for figure in ("per_second", "per_core_second", "per_redis_core")
            },
            **{
                figure: {
                    process: round(median(each[figure][process] for each in rounds), 3)
                    for process in rounds[0][figure]
                }
                for figure in ("us", "cores")
            },
            **{figure: sum(each[figure] for each in rounds) for figure in ("errors", "unlogged")},
            "rounds": rounds,
        }
    pairs = list(zip(turns["one"], turns["two"], strict=True))
    folds = [each["us"][SECOND] for each in turns["one of two"]]
    alone = [each["us"][FIRST] for each in turns["one"]]
    return {
        "turns": found,
        "two_to_one": round(median(b["per_second"] / a["per_second"] for a, b in pairs), 4),
        "two_to_one_by_processor": round(
            median(2 * b["per_core_second"] / a["per_core_second"] for a, b in pairs), 4
        ),
        "fold_us": median(folds),
        "fold_share": round(median(a / b for a, b in zip(folds, alone, strict=True)), 4),
    }


def rows(results: Json) -> list[list[str]]:
    """A row a kind of turn. Of cores, the shares that each process had."""
    names = (FIRST, SECOND, REDIS, "client")
    cells = [
        ["", "per second", "per core-second", "x replicas", *(f"{name}: core" for name in names),
         "first: us", "second: us", "per Redis core", "errors"]
    ]  # fmt: skip
    for kind in KINDS:
        each = results["turns"][kind.name]
        capacity = kind.replicas * each["per_core_second"] if kind.asked == kind.replicas else None
        cells.append(
            [
                kind.name,
                cell(each["per_second"], "{:,.0f}"),
                cell(each["per_core_second"], "{:,.0f}"),
                cell(capacity, "{:,.0f}"),
                *(cell(each["cores"].get(name)) for name in names),
                *(cell(each["us"].get(name), "{:.0f}") for name in (FIRST, SECOND)),
                cell(each["per_redis_core"], "{:,.0f}"),
                str(each["errors"]),
            ]
        )
    return cells


def parser() -> argparse.ArgumentParser:
    """The options."""
    options = parser_of("http.replicas", __doc__)
    options.add_argument("--rounds", type=int, default=7, help="default: 7")
    options.add_argument("--seconds", type=float, default=5.0, help="of a turn (default: 5)")
    options.add_argument("--policy", choices=POLICIES, default="linucb", help="default: linucb")
    out_option(options, "replicas")
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, keep."""
    asked = parser().parse_args(arguments)
    expect_two_cores()
    os.sched_setaffinity(0, set(CORES))
    turns: dict[str, list[Json]] = {kind.name: [] for kind in KINDS}
    with tempfile.TemporaryDirectory() as place, ExitStack() as stack:
        worlds = {
            count: stack.enter_context(world(Path(place) / str(count), count, asked.policy))
            for count in (1, 2)
        }
        for number in range(asked.rounds):
            for kind in KINDS:
                one = taken(kind, worlds[kind.replicas], asked.policy, asked.seconds, number)
                turns[kind.name].append(one)
                say(
                    f"round {number + 1}/{asked.rounds}  {kind.name:10} "
                    f"{one['per_second']:8,.0f}/s  {one['per_core_second']:8,.0f} a core-second  "
                    f"{one['cores']}"
                )
    results: Json = {
        "machine": machine(),
        "cores": len(CORES),
        "policy": asked.policy,
        "rounds": asked.rounds,
        "seconds": asked.seconds,
        "connections_per_replica": CONNECTIONS,
        **judged(turns),
    }
    print(table(rows(results)))
    print(
        f"\nTwo to one: {results['two_to_one']:.2f} on these cores, "
        f"{results['two_to_one_by_processor']:.2f} by the processor. To fold the rewards of a "
        f"select of another replica takes {results['fold_us']:.0f} us, "
        f"{results['fold_share']:.0%} of a select."
    )
    keep(results, asked.out)


if __name__ == "__main__":
    main()
