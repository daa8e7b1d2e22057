"""How long `forage history --at TIME` takes in a long log: `python -m benchmarks.history`

Writes a log of N events to SQLite: rewards, and after every 250 of them a change, of a share and of
an arm by turns, and now and then of the definition. Marks are left out: the command reads none. A
service folds the log and ends, another one starts from its snapshot. Then the command runs ROUNDS
times, each time for another instant and in a process of its own.

--events N   in place of 1,000,000
"""

import asyncio
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import islice, product
from pathlib import Path
from random import Random
from statistics import median
from time import perf_counter, time
from typing import Final

import httpx

from benchmarks.tables import parser_of, say
from service.app import EXAMPLE, open_store_services, start
from service.definition.experiment import Definition, load_definition
from service.features.row import Row
from service.features.schema import Schema
from service.log.stores import open_store
from service.log.stores.base import Append
from service.settings import Settings
from service.state.events import (
    AnyEvent,
    ArmPatched,
    ExperimentDefined,
    Outcome,
    Rewarded,
    TrafficChanged,
    encode_event,
)
from service.tables import aligned
from tests.support.service_process import service

EVENTS: Final = 1_000_000
ROUNDS: Final = 15
CHANGE_EVERY: Final = 250
DEFINE_EVERY: Final = 10_000
BATCH: Final = 10_000  # events a transaction
POLICIES: Final = {"linucb": {"kind": "linucb"}, "random": {"kind": "random", "share": 0.25}}
ENVIRONMENT: Final = {"FORAGE_TRAINER": "off", "FORAGE_LOG_LEVEL": "error"}


class Shop:
    """The pet shop, as its log tells it. begin: unix seconds of its first event; the others follow
    a second apart."""

    def __init__(self, begin: float) -> None:
        self._begin, self._rng, self._revision = begin, Random(1), 0
        self.name, example = load_definition(EXAMPLE)
        content = {**example.model_dump(mode="json"), "policies": POLICIES}
        self._definition = Definition.model_validate(content).completed()
        self._content = self._definition.model_dump(mode="json")

    def events(self, count: int) -> Iterator[AnyEvent]:
        """Yield so many events."""
        outcomes = [
            [Outcome(arm, reward, row)]
            for (arm, row), reward in product(self._rows().items(), (0.0, 1.0))
        ]
        for number in range(count):
            at = self._begin + number
            if number % DEFINE_EVERY == 0:
                yield self._defined(at)
            elif number % CHANGE_EVERY == 0:
                yield self._changed(at, number)
            else:
                settled = self._rng.choice(outcomes)
                yield Rewarded(
                    at=at, decision=f"{number:022}", policy="linucb", schema_version=1,
                    settled=settled,
                )  # fmt: skip

    def _rows(self) -> dict[str, Row]:
        """Return a row of each arm."""
        schema = Schema(self._definition.features)
        context = schema.encode_context({"persona": "fish_hobbyist"})
        return {
            arm: schema.row(context, schema.encode_arm(values))
            for arm, values in self._definition.arms.items()
        }

    def _defined(self, at: float) -> ExperimentDefined:
        self._content["policies"]["linucb"]["epsilon"] = round(0.2 * self._rng.random(), 3)
        return ExperimentDefined(
            at=at, by="ann", revision=self._next_revision(), schema_version=1,
            definition=self._content,
        )  # fmt: skip

    def _changed(self, at: float, number: int) -> AnyEvent:
        if number // CHANGE_EVERY % 2:
            shares = {"random": round(self._rng.random(), 3)}
            return TrafficChanged(at=at, by="bob", shares=shares, revision=self._next_revision())
        arm = self._rng.choice([*self._definition.arms])
        return ArmPatched(at=at, by="feed", arm=arm, features={"category": "Cat Toy"})

    def _next_revision(self) -> int:
        self._revision += 1
        return self._revision


async def write(shop: Shop, url: str, count: int) -> None:
    """Write the log, and the snapshot of a service that folds it."""
    store = open_store(url)
    await store.open()
    events = shop.events(count)
    while batch := [Append(shop.name, encode_event(one), {}) for one in islice(events, BATCH)]:
        await store.commit(batch)
    await store.close()
    say(f"{count:,} events are written")
    async with open_store_services(Settings(store=url, trainer="off", experiments=[])) as services:
        await start(services)
    say("they are folded")


def ask(name: str, url: str, at: float) -> tuple[float, float]:
    """Run the command. Return its seconds, by the wall and of the processor."""
    command = [sys.executable, "-m", "service", "history", "--at", f"{at}", name, "--url", url]
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), perf_counter()
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    seconds, after = perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    assert "then: revision" in ended.stdout
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def answered(name: str, url: str, at: float) -> float:
    """Return the seconds of the service's answer alone."""
    begin = perf_counter()
    httpx.get(f"{url}/experiments/{name}/changes", params={"at": f"{at}"}).raise_for_status()
    return perf_counter() - begin


def main() -> None:
    """Measure and print."""
    parser = parser_of("history", __doc__)
    parser.add_argument("--events", type=int, default=EVENTS)
    count = parser.parse_args().events
    begin = time() - count
    shop, rng = Shop(begin), Random(2)
    with tempfile.TemporaryDirectory() as place:
        store = f"sqlite:///{place}/forage.db"
        asyncio.run(write(shop, store, count))
        with service(Path(place), store, **ENVIRONMENT) as running:
            instants = [begin + rng.uniform(1, count) for _ in range(ROUNDS)]
            commands = [ask(shop.name, running.url, at) for at in instants]
            answers = [answered(shop.name, running.url, at) for at in instants]
    rows = [["", "median, s", "longest, s"]]
    for title, seconds in (
        ("the command", [wall for wall, _ in commands]),
        ("processor time of the command", [processor for _, processor in commands]),
        ("the service's answer", answers),
    ):
        rows.append([title, f"{median(seconds):.3f}", f"{max(seconds):.3f}"])
    print("\n".join(aligned(rows)))


if __name__ == "__main__":
    main()
