"""A snapshot by the size of the head in it: taken, saved in SQLite, loaded and put in place."""

import asyncio
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from itertools import count
from pathlib import Path
from time import perf_counter
from typing import Final, NamedTuple

import numpy as np

from benchmarks.medians import Turn, medians_us, turn_of
from benchmarks.tables import Json
from service.definition.experiment import Definition
from service.log.stores import Store, open_store
from service.state.events import ExperimentDefined, Rewarded, Settled
from service.state.fold import State

EXPERIMENT: Final = "bench"
STEPS: Final = ("encode", "save", "load")


class Heads(NamedTuple):
    """heads: one for all arms, or so many, one an arm."""

    columns: int
    heads: int = 1


CASES: Final = {
    "1 head of 16 columns": Heads(16),
    "1 head of 64": Heads(64),
    "1 head of 256": Heads(256),
    "1 head of 1,024": Heads(1_024),
    "100 heads of 32": Heads(32, 100),
    "1,000 heads of 32": Heads(32, 1_000),
}


def state_of(case: Heads) -> State:
    """An experiment of one policy whose heads have each learned from a reward."""
    vector = {"type": "vector", "size": case.columns}
    policy = {"kind": "lints", "features": ["taste"], "disjoint": case.heads > 1}
    definition = Definition.model_validate(
        {"features": {"context": {"taste": vector}}, "policies": {"p": policy}}
    )
    state, rng = State(EXPERIMENT), np.random.default_rng(0)
    defined = ExperimentDefined(
        at=0.0, revision=1, schema_version=1, definition=definition.model_dump(mode="json")
    )
    state.apply(1, defined)
    for arm in range(case.heads):
        settled = [Settled(str(arm), 1.0, rng.standard_normal(case.columns).tolist())]
        event = Rewarded(at=0.0, decision="", policy="p", schema_version=1, settled=settled)
        state.apply(state.position + 1, event)
    return state


def turns_of(runner: asyncio.Runner, store: Store, state: State) -> dict[str, Turn]:
    """The steps, by name. A start reads all snapshots that are kept, which are two, and puts the
    newest in place."""
    positions, made = count(state.position), state.snapshot()

    async def save() -> float:
        start = perf_counter()
        await store.save_snapshot(EXPERIMENT, replace(made, position=next(positions)))
        return perf_counter() - start

    async def load() -> float:
        start = perf_counter()
        State.restore((await store.snapshots(EXPERIMENT))[0])
        return perf_counter() - start

    for _ in range(2):
        runner.run(save())
    return {
        "encode": turn_of(state.snapshot, 1),
        "save": lambda: runner.run(save()),
        "load": lambda: runner.run(load()),
    }


def measured(rounds: int, cases: Mapping[str, Heads] = CASES) -> Json:
    """Milliseconds of each step, and bytes, by case."""
    turns: dict[tuple[str, str], Turn] = {}
    sizes = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        runner = stack.enter_context(asyncio.Runner())
        for number, (name, case) in enumerate(cases.items()):
            state, store = state_of(case), open_store(f"sqlite:///{folder / str(number)}.db")
            runner.run(store.open())
            stack.callback(runner.run, store.close())
            sizes[name] = len(state.snapshot().payload)
            steps = turns_of(runner, store, state)
            turns |= {(name, step): turn for step, turn in steps.items()}
        us = medians_us(turns, rounds, "snapshots")
    return {
        name: {
            "bytes": sizes[name],
            **{f"{step}_ms": us[name, step] / 1e3 for step in STEPS},
        }
        for name in cases
    }
