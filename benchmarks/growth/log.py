"""The log in SQLite by the rows that it holds: a commit, a look-up, a page."""

import asyncio
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from random import Random
from statistics import median
from time import perf_counter, process_time, time
from typing import Final

import msgspec
import numpy as np

from benchmarks.floors import SELECTS
from benchmarks.growth.axes import kept
from benchmarks.medians import Turn, medians_us
from benchmarks.tables import Json, say
from service.log.stores import Store, open_store
from service.log.stores.base import Append, DecisionRow, Entry
from service.serving.recorder import new_id
from service.state.events import Decided, Rewarded, Settled, Shown, encode_decision, encode_event

EXPERIMENT: Final = "bench"
ARMS, COLUMNS = 50, 9
BATCH: Final = 50  # decisions of a commit, and their rewards
FILLED: Final = 2_000  # decisions of a commit that fills the log
COMMITS, LOOKUPS, PAGES = 8, 1_000, 24  # calls of a turn: few commits, for they grow the log
PAGE: Final = 1_000
SAMPLE: Final = 1_000  # ids to look up, from all over the log


def decision_template() -> tuple[bytes, bytes]:
    """A decision of a Thompson policy over 50 arms, as the log holds it, around its id."""
    rng = np.random.default_rng(0)
    chances = rng.multinomial(512, rng.dirichlet(np.full(ARMS, 0.2))) / 512
    mark = "\0" * 22
    decision = Decided(
        id=mark,
        at=1.7e9,
        policy="lints",
        assignment=1.0,
        model_version="lints/0@123456",
        schema_version=1,
        unit=None,
        context={"hour": 12.25, "basket": 31.5, "visits": 4, "on_phone": True},
        arms=msgspec.Raw(msgspec.json.encode([f"arm-{arm:02d}" for arm in range(ARMS)])),
        inline={},
        probabilities=chances.tolist(),
        seed=int(rng.integers(2**62)),
        bank=0,
        shown=[Shown("arm-07", 0.5, rng.standard_normal(COLUMNS).tolist(), False)],
        slate=0.5,
        reward_by=1.7e9,
        accept_until=1.7e9,
    )
    before, _, after = encode_decision(decision).partition(msgspec.json.encode(mark)[1:-1])
    return before, after


class Batches:
    """Entries that a service commits: decisions, and a reward for every fifth of them."""

    def __init__(self) -> None:
        self._before, self._after = decision_template()
        self._rng = Random(1)
        self._x = np.random.default_rng(1).standard_normal(COLUMNS).tolist()

    def next(self, decisions: int) -> tuple[list[Entry], list[str]]:
        """Entries of so many decisions, and the decisions' ids."""
        ids = [new_id(time(), self._rng) for _ in range(decisions)]
        entries: list[Entry] = [
            DecisionRow(EXPERIMENT, one, "lints", self._before + one.encode() + self._after)
            for one in ids
        ]
        entries += [self._reward(one) for one in ids[::SELECTS]]
        return entries, ids

    def _reward(self, decision: str) -> Append:
        settled = [Settled("arm-07", 1.0, self._x)]
        event = Rewarded(
            at=1.7e9, decision=decision, policy="lints", schema_version=1, settled=settled
        )
        mark = f"{decision}/arm-07/"
        return Append(EXPERIMENT, encode_event(event), {mark: "1.0"}, settles=decision)


async def filled(path: Path, rows: int, batches: Batches) -> tuple[Store, list[str]]:
    """An open log of so many decisions, and ids from all over it."""
    store, ids, chance = open_store(f"sqlite:///{path}"), [], Random(0)
    await store.open()
    await store.secret()  # as a service does before it writes
    kept_ids = min(1.0, SAMPLE / rows)
    for start in range(0, rows, FILLED):
        entries, written = batches.next(min(FILLED, rows - start))
        await store.commit(entries)
        ids += [one for one in written if chance.random() < kept_ids]
        if start and start % 1_000_000 == 0:
            say(f"log: {start:,} rows")
    return store, ids


def turns_of(
    runner: asyncio.Runner, store: Store, ids: Sequence[str], rows: int, batches: Batches
) -> dict[str, Turn]:
    """What is asked of the log, by name. What is read comes from the system's cache and is measured
    by the processor time of both threads; a commit waits for the disk."""
    chance = Random(1)

    async def commit() -> None:
        await store.commit(batches.next(BATCH)[0])

    async def look_up() -> None:
        assert await store.decision(EXPERIMENT, chance.choice(ids)) is not None

    async def events() -> None:
        after = chance.randrange(rows // SELECTS - PAGE + 1)
        assert len(await store.read(EXPERIMENT, after, PAGE)) == PAGE

    async def decisions() -> None:
        after = chance.randrange(rows - PAGE + 1)
        assert len(await store.decisions(EXPERIMENT, after, PAGE)) == PAGE

    def turn(call: Callable[[], Awaitable[None]], times: int, clock: Callable[[], float]) -> Turn:
        async def taken() -> float:
            seconds = []
            for _ in range(times):
                start = clock()
                await call()
                seconds.append(clock() - start)
            return median(seconds)

        return lambda: runner.run(taken())

    return {
        f"commit of {BATCH} decisions, {BATCH // SELECTS} rewards": turn(
            commit, COMMITS, perf_counter
        ),
        "look-up of a decision": turn(look_up, LOOKUPS, process_time),
        f"page of {PAGE:,} events": turn(events, PAGES, process_time),
        f"page of {PAGE:,} decisions": turn(decisions, PAGES, process_time),
    }


def by_log(sizes: Sequence[int], rounds: int) -> Json:
    """A store a size, all of them open at once, so that they take turns."""
    batches = Batches()
    by_size = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        runner = stack.enter_context(asyncio.Runner())
        for size in sizes:
            say(f"log: {size:,} rows")
            path = folder / f"{size}.db"
            store, ids = runner.run(filled(path, size, batches))
            stack.callback(runner.run, store.close())
            by_size[size] = turns_of(runner, store, ids, size, batches)
            largest_mb = path.stat().st_size / 1e6
        names = next(iter(by_size.values()))
        turns = {(name, size): by_size[size][name] for name in names for size in sizes}
        found = kept(sizes, medians_us(turns, rounds, "log"))
    return {**found, "largest_file_mb": round(largest_mb)}
