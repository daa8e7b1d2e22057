"""How many processes a load needs, and what ends first: a model from measured constants.

A process decides its share of the load and settles that, and folds what the others settled. With
deciders one process folds everything and the others fold nothing. What no log takes is split into
services. docs/scaling.md explains it.
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
ServedBy = Literal["processes", "deciders"]


@dataclass(frozen=True, slots=True)
class Cost:
    """Microseconds of processor time, of fifty arms and nine columns.

    select    a decision over HTTP (`python -m benchmarks.http.callers`, at 1e107a4972)
    reward    its reward without the wire, and default: its default reward, in a block (`python -m
              benchmarks.settling`, at e2d1be1a)
    follow    a settled decision of another process on Redis, four defaults to a reward, by
              decisions a wake-up (`python -m benchmarks.following`, at 07df465044)
    publish   a publication of the learner, and read: its reading by a decider (`python -m
              benchmarks.deciders`, at 95b977cfd4)
    """

    select: float
    reward: float
    default: float
    follow: Sequence[float]
    publish: float
    read: float

    def following(self, settled: float) -> float:
        """Return what a settled decision costs where so many come at a time."""
        pages, each = 1 / np.array(PAGES), np.array(self.follow)
        return float(np.interp(1 / max(settled, 1), pages[::-1], each[::-1]))


PAGES = (1, 10, 100)
COSTS: dict[MeasuredKind, Cost] = {
    "linucb": Cost(164, 72, 34, (559, 96, 20), 704, 699),
    "lints": Cost(214, 71, 35, (448, 100, 22), 981, 971),
    "neural_linear_ts": Cost(388, 92, 44, (438, 121, 30), 1_067, 1_000),
    "auto": Cost(227, 85, 70, (916, 258, 104), 1_448, 1_339),
}
WIRE = 27.0
"""Microseconds of a request beside its work: an echo (`python -m benchmarks.http.callers`, at
1e107a4972)."""

SETTLED_A_SECOND: dict[StoreKind, float] = {
    "sqlite": 65_800,
    "redis": 41_800,
    "postgresql": 27_000,
}
"""Decisions, a fifth of them rewarded and the others expired in a block, that one process commits a
hundred at a time (`python -m benchmarks.settling`, at e2d1be1a, two cores; PostgreSQL with
synchronous_commit off)."""

PROCESS_BYTES = 180e6
"""Resident memory of a process under load (`python -m benchmarks.http.overload`, at 1e107a4972)."""

GATHER_S = 0.05
"""Seconds for which a follower gathers events."""

PUBLICATIONS = 20.0
"""Publications a second."""

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
    """Return the cores of the process that folds and publishes for deciders, and settles what falls
    due."""
    followed = load.rewards * cost.following(GATHER_S * load.rewards)
    return (followed + load.defaults * cost.default + PUBLICATIONS * cost.publish) / 1e6


def cores_of_decider(cost: Cost, load: Load, deciders: int) -> float:
    """Return the cores of each of so many deciders. A reward is no cheaper here than where it is
    folded as well: its fold was not measured apart."""
    own = load.selects * cost.select + load.rewards * (WIRE + cost.reward)
    return (own / deciders + PUBLICATIONS * cost.read) / 1e6


def deciders_for(cost: Cost, load: Load) -> int | None:
    """Return the least number of deciders beside a learner; None: one learner is not enough."""
    if cores_of_learner(cost, load) > USED:
        return None
    read = cores_of_decider(cost, Load(0, 0, 0), 1)
    return max(1, ceil((cores_of_decider(cost, load, 1) - read) / (USED - read) - 1e-9))


def processes_for(cost: Cost, load: Load) -> int | None:
    """Return the least number of processes that all fold; None: with no number of them."""
    limit = ceil(10 * cores_of_process(cost, load, 1) / USED)
    for processes in range(1, limit + 1):
        if cores_of_process(cost, load, processes) <= USED:
            return processes
    return None


TAKES_DECIDERS: frozenset[StoreKind] = frozenset({"redis", "postgresql"})


@dataclass(frozen=True, slots=True)
class LoadLimit:
    """What bounds a load: of all processes, the selects a second at which it is reached."""

    what: str
    selects: float


def limits(cost: Cost, load: Load, store: StoreKind) -> list[LoadLimit]:
    """Return what ends, the first one first."""
    following = _reached(load, lambda more: cost.following(GATHER_S * more.settled) * more.settled)
    writer = USED * SETTLED_A_SECOND[store] * load.selects / max(load.selects, load.settled)
    found = [
        LoadLimit("following: a process that folds all has no time left to decide", following),
        LoadLimit(f"{store}: what one writer commits", writer),
    ]
    if store in TAKES_DECIDERS:
        learner = _reached(load, lambda more: 1e6 * cores_of_learner(cost, more))
        found.append(LoadLimit("learning: the one process that folds for deciders", learner))
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

    services    that share the load, each with a log of its own: more than one where no log takes it
    processes   of each, that all fold; None: no number of them is enough
    deciders    of each, beside one that folds; None: that one is not enough, or the store has none
    by          what takes fewer processes
    cores       of all these processes, as the memory
    """

    kind: MeasuredKind
    load: Load
    services: int
    processes: int | None
    deciders: int | None
    by: ServedBy
    cores: float
    memory: float
    bytes_a_day: float
    limits: Sequence[LoadLimit]

    def as_json(self) -> dict[str, object]:
        reached = {one.what: round(one.selects) for one in self.limits if one.selects < inf}
        return asdict(self) | {"limits": reached}

    def text(self) -> str:
        """Lay out what is needed, and what ends first."""
        load, learner = self.load, "none"
        if self.deciders is not None:
            learner = f"{self.deciders:,} and a learner"
        rows = [
            ["services", f"{self.services:,}"],
            [
                "processes that all fold",
                "none" if self.processes is None else f"{self.processes:,}",
            ],
            ["deciders", learner],
            ["cores", f"{self.cores:,.1f}"],
            ["memory", gigabytes(self.memory)],
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
                f"What works: {self._works()}.",
                f"First to end, at {first.selects:,.0f} selects a second{beyond}: {first.what}.",
                *(
                    f"Then, at {one.selects:,.0f}: {one.what}."
                    for one in self.limits[1:]
                    if one.selects < inf
                ),
            ]
        )

    def _works(self) -> str:
        """Say which processes serve the load."""
        if self.by == "deciders":
            some = "a decider" if self.deciders == 1 else f"{self.deciders:,} deciders"
            served = f"a learner and {some} (--role decider)"
        elif self.processes == 1:
            served = "one process"
        else:
            served = f"{self.processes:,} processes that all fold (--workers)"
        if self.services == 1:
            return served
        return (
            f"{self.services:,} services with experiments and a store of their own, each {served}"
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
    cost, store = COSTS[kind], storage.store
    found = limits(cost, load, store)
    own = {one.what.partition(":")[0]: one.selects for one in found}
    most = min(own[store], max(own["following"], own.get("learning", 0.0)))
    services = max(1, ceil(load.selects / most - 1e-9))
    while not (forms := _forms(cost, load.times(1 / services), store)):
        services += 1
    by = min(forms, key=lambda one: forms[one].processes)
    return ScalePlan(
        kind,
        load,
        services,
        forms["processes"].processes if "processes" in forms else None,
        forms["deciders"].processes - 1 if "deciders" in forms else None,
        by=by,
        cores=services * forms[by].cores,
        memory=services * forms[by].processes * PROCESS_BYTES,
        bytes_a_day=DAY_S * load.selects * storage.decision_bytes,
        limits=found,
    )


@dataclass(frozen=True, slots=True)
class _Form:
    """What takes a load: so many processes, a learner among them, and the cores of them all."""

    processes: int
    cores: float


def _forms(cost: Cost, load: Load, store: StoreKind) -> dict[ServedBy, _Form]:
    """Return what takes a load."""
    found: dict[ServedBy, _Form] = {}
    if (processes := processes_for(cost, load)) is not None:
        cores = processes * cores_of_process(cost, load, processes)
        found["processes"] = _Form(processes, cores)
    if store in TAKES_DECIDERS and (deciders := deciders_for(cost, load)) is not None:
        cores = cores_of_learner(cost, load) + deciders * cores_of_decider(cost, load, deciders)
        found["deciders"] = _Form(deciders + 1, cores)
    return found
