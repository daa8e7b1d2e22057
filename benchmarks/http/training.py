"""Selects while a net is trained and its versions take over: python -m benchmarks.http.training.

Of `neural_linear_ts` and `linucb` on SQLite together, selects fall due at 30 percent of what the
service could answer, half of that for each policy; latencies count from when each was due. In each
round come as many seconds without and with `forage train --follow`. The trainer is on the client's
core, behind the clients (nice 19), so that what it costs a select is what the service does for it:
it reads in the version, catches it up with the log and lets it serve. The net has learned from
20,000 rewards before, and in this experiment its training falls due at every hundredth part more.
Writes benchmarks/results/training.json.
"""

import argparse
import os
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks.http.cases import CASES, plan
from benchmarks.http.rounds import saturated
from benchmarks.http.servers import (
    CLIENT_CORE,
    LEARNED,
    QUIET,
    SERVER_CORE,
    Server,
    cpu_seconds,
    on_core,
    teach,
    train,
    trainer,
)
from benchmarks.http.turns import added, at_least, cell, expect_two_cores, figures, turn
from benchmarks.machine import machine
from benchmarks.tables import Json, keep, out_option, parser_of, say
from simulator_client.load_tally import Tally
from simulator_client.summary import table
from tests.support.service_process import Service, service

NET: Final = CASES["sqlite-neural_linear_ts"]
ASKED: Final = (NET, CASES["sqlite-linucb"])
SHARE_OF_SATURATION: Final = 0.3
SATURATION_S: Final = 2.0
WARMUP_S: Final = 5.0  # the trainer has begun by then
LONG_MS: Final = 50.0
LEAST_VERSIONS: Final = 3
GROWTH: Final = "\n[policies.neural_linear_ts.training]\ngrowth = 1.01\n"
END_S: Final = 60.0
PERIODS: Final = ("without", "with")
Counted = dict[tuple[str, str], list[Tally]]


@contextmanager
def training(url: str, store: str) -> Iterator[int]:
    """`forage train --follow` on the client's core, behind the clients; its process id."""
    command = ["nice", "-n", "19", *trainer(url, store, "--follow")]
    with on_core(CLIENT_CORE):
        process = subprocess.Popen(command, env={**os.environ, **QUIET})
    try:
        yield process.pid
        process.terminate()
        process.wait(END_S)
    finally:
        process.kill()
        process.wait()


class Course:
    """Rounds of selects at a rate each, without and with a trainer, and what came of them."""

    def __init__(self, serving: Service, store: str, rates: dict[str, float]) -> None:
        self._serving, self._store, self._rates = serving, store, rates
        self.counted: Counted = {(when, case.name): [] for when in PERIODS for case in ASKED}
        self.versions: list[int] = []  # activated, by round
        self.trainer_core: list[float] = []  # share that it had

    def round(self, number: int, seconds: float) -> None:
        """A period without a trainer, and one with."""
        self._period("without", seconds, 2 * number)
        before = self._version()
        with training(self._serving.url, self._store) as pid:
            used_s = cpu_seconds(pid)
            self._period("with", seconds, 2 * number + 1)
            used_s = cpu_seconds(pid) - used_s
            self.versions.append(self._version() - before)
        self.trainer_core.append(round(used_s / (WARMUP_S + seconds), 3))
        say(f"round {number + 1}: {self.versions[-1]} versions activated")

    def _version(self) -> int:
        found: int = self._serving.get(f"/policies/{NET.policy}")["version"]
        return found

    def _period(self, when: str, seconds: float, seed: int) -> None:
        plans = [
            plan(
                case, self._serving.url, seconds=seconds, warmup_s=WARMUP_S,
                rate=self._rates[case.name], seed=seed,
            )
            for case in ASKED
        ]  # fmt: skip
        for case, tally in zip(ASKED, turn(plans).tallies, strict=True):
            self.counted[when, case.name].append(tally)
            told = figures(tally)
            say(f"{when:8} {case.name:24} p99 {cell(told['p99'])} ms, max {cell(told['max'])} ms")


def by_policy(counted: Counted, rates: dict[str, float]) -> Json:
    """Figures of each policy by period, over all rounds and of each."""
    return {
        case.name: {
            "title": case.title,
            "due_per_second": round(rates[case.name], 1),
            **{when: _pooled(counted[when, case.name]) for when in PERIODS},
        }
        for case in ASKED
    }


def _pooled(tallies: list[Tally]) -> Json:
    rounds = [_with_long(each) for each in tallies]
    kept = [{name: each[name] for name in ("p50", "p99", "max", "long")} for each in rounds]
    return {**_with_long(added(tallies)), "rounds": kept}


def _with_long(tally: Tally) -> Json:
    return {**figures(tally), "long": at_least(tally.latencies["select"], LONG_MS)}


def measured(folder: Path, rounds: int, seconds: float, rewards: int) -> Json:
    """A service that has learned, its rates, and the course."""
    experiment = folder / "experiment.toml"
    experiment.write_text(Path(QUIET["FORAGE_EXPERIMENTS"]).read_text() + GROWTH)
    store = f"sqlite:///{folder / 'forage.db'}"
    environment = {**QUIET, "FORAGE_EXPERIMENTS": str(experiment)}
    with ExitStack() as stack:
        with on_core(SERVER_CORE):
            serving = stack.enter_context(service(folder, store, **environment))
        for case in ASKED:
            teach(serving, case, rewards if case is NET else LEARNED)
            say(f"{case.name} has learned")
        train(serving, store)
        server = Server(serving.url, serving.pid)
        found = saturated(list(ASKED), {NET.server: server}, 3, SATURATION_S)
        rates = {
            name: SHARE_OF_SATURATION * median(kept["per_second"]) / len(ASKED)
            for name, kept in found.items()
        }
        course = Course(serving, store, rates)
        for number in range(rounds):
            course.round(number, seconds)
        learned = serving.get(f"/policies/{NET.policy}")["rewards"]
    return {
        "machine": machine(),
        "rounds": rounds,
        "seconds": seconds,
        "share_of_saturation": SHARE_OF_SATURATION,
        "long_ms": LONG_MS,
        "rewards": [rewards, learned],
        "versions": course.versions,
        "trainer_core": course.trainer_core,
        "policies": by_policy(course.counted, rates),
    }


def rows(results: Json) -> list[list[str]]:
    """A row a policy and period."""
    long = f"{results['long_ms']:g} ms or more"
    cells = [
        ["", "trainer", "selects", "p50 ms", "p99 ms", "max ms", long, "errors",
         "client late p99 ms"]
    ]  # fmt: skip
    for found in results["policies"].values():
        for when in PERIODS:
            each = found[when]
            cells.append(
                [
                    found["title"].replace("`", ""),
                    when,
                    f"{each['count']:,}",
                    *(cell(each[name]) for name in ("p50", "p99", "max")),
                    f"{each['long']:,}",
                    f"{each['errors']:,}",
                    cell(each["late_p99_ms"]),
                ]
            )
    return cells


def parser() -> argparse.ArgumentParser:
    """The options."""
    options = parser_of("http.training", __doc__)
    options.add_argument("--rounds", type=int, default=3, help="default: 3")
    options.add_argument(
        "--seconds", type=float, default=60.0, help="of each half of a round (default: 60)"
    )
    options.add_argument(
        "--rewards", type=int, default=20_000, help="the net has learned from (default: 20,000)"
    )
    out_option(options, "training")
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, keep."""
    asked = parser().parse_args(arguments)
    expect_two_cores()
    os.sched_setaffinity(0, {CLIENT_CORE})
    with tempfile.TemporaryDirectory() as place:
        results = measured(Path(place), asked.rounds, asked.seconds, asked.rewards)
    print(table(rows(results)))
    versions = sum(results["versions"])
    print(f"\n{versions} versions activated, {results['versions']} by round.")
    if versions < LEAST_VERSIONS:
        raise SystemExit(f"fewer than {LEAST_VERSIONS}: nothing is kept; take more --seconds")
    keep(results, asked.out)


if __name__ == "__main__":
    main()
