"""How many processes a load needs, and what ends first: a model from measured constants.

A process decides its share of the load and settles that, and folds what the others settled. With
deciders one process folds everything and the others fold nothing. docs/scaling.md explains it.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from math import ceil, inf
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import numpy as np

from service.definition.experiment import load_definition
from service.offline.planning import DAY_S, StoragePlan, StoreKind, gigabytes, plan
from service.tables import aligned

MeasuredKind = Literal["linucb", "lints", "neural_linear_ts", "auto"]


@dataclass(frozen=True, slots=True)
class Cost:
    """Microseconds of processor time, of fifty arms and nine columns.

    select    a decision over HTTP (`python -m benchmarks.http.callers`, at 1e107a4972)
    reward    its reward without the wire, and default: its default reward (`python -m
              benchmarks.settling`, at 9ff393d3)
    follow    a settled decision of another process on Redis, by events a wake-up (`python -m
              benchmarks.following`, at 7c6c24b118)
    """

    select: float
    reward: float
    default: float
    follow: Sequence[float]

    def following(self, events: float) -> float:
        """Return what an event costs where so many come at a time."""
        pages, each = 1 / np.array(PAGES), np.array(self.follow)
        return float(np.interp(1 / max(events, 1), pages[::-1], each[::-1]))


PAGES = (1, 10, 100)
COSTS: dict[MeasuredKind, Cost] = {
    "linucb": Cost(164, 80, 72, (341, 53, 18)),
    "lints": Cost(214, 91, 68, (381, 59, 17)),
    "neural_linear_ts": Cost(388, 135, 133, (354, 87, 51)),
    "auto": Cost(227, 89, 276, (556, 184, 140)),
}
WIRE = 27.0
"""Microseconds of a request beside its work: an echo (`python -m benchmarks.http.callers`, at
1e107a4972)."""

SETTLED_A_SECOND: dict[StoreKind, float] = {
    "sqlite": 41_900,
    "redis": 13_000,
    "postgresql": 6_800,
}
"""Decisions, each a row and an event, that one process commits a hundred at a time (`python -m
benchmarks.settling`, at 9ff393d3, two cores; PostgreSQL with synchronous_commit off)."""

PROCESS_BYTES = 180e6
"""Resident memory of a process under load (`python -m benchmarks.http.overload`, at 1e107a4972)."""

GATHER_S = 0.05
"""Seconds for which a follower gathers events."""

USED = 0.7
"""Share of a core, and of what a store takes, that is planned: traffic is not even."""


@dataclass(frozen=True, slots=True)
class Load:
    """What comes each second. defaults: decisions whose default reward falls due."""

    selects: float
    rewards: float
    defaults: float

    @property
    def settled(self) -> float:
        return self.rewards + self.defaults

    def times(self, factor: float) -> "Load":
        return Load(factor * self.selects, factor * self.rewards, factor * self.defaults)


def cores_of_process(cost: Cost, load: Load, processes: int) -> float:
    """Return the cores that each of so many processes uses."""
    followed = load.settled * (1 - 1 / processes)
    own = (
        load.selects * cost.select
        + load.rewards * (WIRE + cost.reward)
        + load.defaults * cost.default
    )
    return (own / processes + followed * cost.following(GATHER_S * followed)) / 1e6


def cores_of_learner(cost: Cost, load: Load) -> float:
    """Return the cores of the process that folds for deciders, and settles what falls due."""
    followed = load.rewards * cost.following(GATHER_S * load.rewards)
    return (followed + load.defaults * cost.default) / 1e6


def cores_of_decider(cost: Cost, load: Load, deciders: int) -> float:
    """Return the cores of each of so many deciders, without reading the heads that are published.
    A reward is no cheaper here than where it is folded as well: its fold was not measured apart."""
    own = load.selects * cost.select + load.rewards * (WIRE + cost.reward)
    return own / deciders / 1e6


def fewest(cores: float) -> int:
    return max(1, ceil(cores / USED - 1e-9))


def processes_for(cost: Cost, load: Load) -> int | None:
    """Return the least number of processes that all fold; None: with no number of them."""
    limit = fewest(cores_of_process(cost, load, 1))
    for processes in range(1, 10 * limit + 1):
        if cores_of_process(cost, load, processes) <= USED:
            return processes
    return None


@dataclass(frozen=True, slots=True)
class LoadLimit:
    """What bounds a load: of all processes, the selects a second at which it is reached."""

    what: str
    selects: float


def limits(cost: Cost, load: Load, store: StoreKind) -> list[LoadLimit]:
    """Return what ends, the first one first."""
    following = _reached(load, lambda more: cost.following(GATHER_S * more.settled) * more.settled)
    learner = _reached(load, lambda more: 1e6 * cores_of_learner(cost, more))
    each = max(load.selects, load.settled)
    found = [
        LoadLimit("following: a process that folds all has no time left to decide", following),
        LoadLimit("learning: the one process that folds for deciders", learner),
        LoadLimit(f"{store}: what one writer commits", USED * SETTLED_A_SECOND[store] * load.selects
              / each),
    ]  # fmt: skip
    return sorted(found, key=lambda limit: limit.selects)


def _reached(load: Load, microseconds: Callable[[Load], float]) -> float:
    """Return the selects a second at which a load of this form takes a core as far as planned."""
    low, high = 0.0, 1.0
    while microseconds(load.times(high)) < 1e6 * USED:
        low, high = high, 2 * high
        if high > 1e9:
            return inf
    for _ in range(60):
        middle = (low + high) / 2
        if microseconds(load.times(middle)) < 1e6 * USED:
            low = middle
        else:
            high = middle
    return low * load.selects


@dataclass(frozen=True, slots=True)
class ScalePlan:
    """Processes for a load.

    processes   that all fold; None: no number of them is enough
    deciders    beside one that folds; None: that one is not enough
    cores       of all processes, of the form that needs fewer; None, as the memory: of none
    """

    kind: MeasuredKind
    load: Load
    processes: int | None
    deciders: int | None
    cores: float | None
    memory: float | None
    bytes_a_day: float
    limits: Sequence[LoadLimit]

    def as_json(self) -> dict[str, object]:
        reached = {one.what: round(one.selects) for one in self.limits if one.selects < inf}
        return asdict(self) | {"limits": reached}

    def text(self) -> str:
        """Lay out what is needed, and what ends first."""
        none = "no number is enough"
        load = self.load
        learner = none if self.deciders is None else f"{self.deciders:,} and a learner"
        rows = [
            ["processes that all fold", none if self.processes is None else f"{self.processes:,}"],
            ["deciders", learner],
            ["cores", "?" if self.cores is None else f"{self.cores:,.1f}"],
            ["memory", "?" if self.memory is None else gigabytes(self.memory)],
            ["log a day", gigabytes(self.bytes_a_day)],
        ]
        first = self.limits[0]
        beyond = ", which this load exceeds" if first.selects < load.selects else ""
        return "\n".join(
            [
                f"{self.kind}: {load.selects:,g} selects, {load.rewards:,g} rewards and "
                f"{load.defaults:,g} default rewards a second, {USED:.0%} of a core used",
                "",
                *aligned(rows),
                "",
                f"First to end, at {first.selects:,.0f} selects a second{beyond}: {first.what}.",
                *(
                    f"Then, at {one.selects:,.0f}: {one.what}."
                    for one in self.limits[1:]
                    if one.selects < inf
                ),
            ]
        )


def made_up_experiment(arms: int) -> str:
    """Return an experiment file of so many arms and nine columns."""
    lines = [
        'name = "planned"',
        "[policies.policy]",
        'kind = "linucb"',
        "[features.context]",
        *(f'{name} = {{ type = "numeric" }}' for name in ("hour", "basket", "visits")),
        'on_phone = { type = "boolean" }',
        "[features.arm]",
        'price = { type = "numeric" }',
        'taste = { type = "vector", size = 4 }',
        "[reward]",
        "default = 0.0",
        "[arms]",
        *(f"{number} = {{ price = 1.5, taste = [0.1, 0.2, 0.3, 0.4] }}" for number in range(arms)),
    ]
    return "\n".join(lines) + "\n"


async def scale_plan(
    file: Path | None,
    kind: MeasuredKind,
    store: StoreKind,
    selects: float,
    rewards: float,
    arms: int,
    days: float,
) -> tuple[StoragePlan, ScalePlan]:
    """Size the log of an experiment file, or of one with so many arms, and count the processes.
    Raises ConfigurationError as `planning.plan`."""
    with TemporaryDirectory() as folder:
        if file is None:
            file = Path(folder, "planned.toml")
            file.write_text(made_up_experiment(arms), encoding="utf-8")
        storage = await plan(file, store, selects, days, rewards / selects)
        _, definition = load_definition(file)
    defaults = selects - rewards if definition.reward.default is not None else 0.0
    return storage, scale(kind, Load(selects, rewards, defaults), storage)


def scale(kind: MeasuredKind, load: Load, storage: StoragePlan) -> ScalePlan:
    """Return how many processes a load needs."""
    cost = COSTS[kind]
    processes, deciders = processes_for(cost, load), None
    learner = cores_of_learner(cost, load)
    if learner <= USED:
        deciders = fewest(cores_of_decider(cost, load, 1))
    forms: list[tuple[float, int]] = []
    if processes is not None:
        forms.append((processes * cores_of_process(cost, load, processes), processes))
    if deciders is not None:
        forms.append((learner + deciders * cores_of_decider(cost, load, deciders), deciders + 1))
    cores, count = min(forms, default=(None, 0))
    memory = count * PROCESS_BYTES if count else None
    a_day = DAY_S * load.selects * storage.decision_bytes
    found = limits(cost, load, storage.store)
    return ScalePlan(kind, load, processes, deciders, cores, memory, a_day, found)
