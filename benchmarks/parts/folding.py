"""A reward folded into the head of every kind of policy that learns from it, beside the plain numpy
update of the same head."""

from collections.abc import Callable, Sequence
from itertools import cycle, pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from benchmarks.decision import learner, reward
from benchmarks.floors import MEMBERS, NET, Work
from benchmarks.medians import medians_us, turn_of
from benchmarks.scoring import trained
from benchmarks.tables import Json
from service.state.learner import Learner

Array = npt.NDArray[np.float64]
COLUMNS: Final = (9, 64)
ARMS: Final = 50
REWARDS: Final = 64  # events that come again and again
BATCH: Final = 16
CALLS: Final = 5 * BATCH  # that are timed together
FLOOR_OF: Final = {
    "linucb": "ridge",
    "lints": "ridge",
    "greedy": "ridge",
    "epsilon_greedy": "ridge",
    "neural_linear_ts": "net, ridge",
    "neural_linucb": "net, ridge",
    "neural_ucb": "net, ridge",
    "neural_ts": "net, ridge",
    "mc_dropout": "net, ridge",
    "neural_glm_ts": "net, logistic",
    "bootstrap_ensemble": "net, ridges",
    "popularity": "counts",
}


def rewards(size: int) -> list[tuple[str, list[float], float]]:
    """Arm, row and reward; every third is a click."""
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((REWARDS, size)).tolist()
    return [(str(n % ARMS), row, float(n % 3 == 0)) for n, row in enumerate(rows)]


def policy_of(kind: str, size: int) -> Learner:
    """One over `size` columns, its net as it is after a training."""
    policy = learner(kind, size)
    if policy.settings.has_net:
        policy.active = trained(policy)
    return policy


def fold(policy: Learner, size: int) -> Work:
    """The event of one reward, into the head of a policy that has met all of them."""
    events, position = cycle([reward(*one) for one in rewards(size)]), 0

    def work() -> None:
        nonlocal position
        position += 1
        policy.fold(position, next(events))

    for _ in range(REWARDS):
        work()
    return work


def floors(size: int) -> dict[str, Work]:
    """What each head cannot do without, from a row of numbers and a reward on: no event, no arm, no
    checks."""
    pairs = [(np.array(row), value) for _, row, value in rewards(size)]
    net = _net(size)
    wide = len(net(pairs[0][0]))
    return {
        "ridge": _each(pairs, _ridge(size)),
        "net, ridge": _each(pairs, _ridge(wide), net),
        "net, ridges": _each(pairs, _ridges(wide), net),
        "net, logistic": _each(pairs, _logistic(wide), net),
        "counts": _counts(size),
    }


Update = Callable[[Array, float], object]


def _each(
    pairs: list[tuple[Array, float]],
    update: Update,
    features: Callable[[Array], Array] = np.asarray,
) -> Work:
    coming = cycle(pairs)

    def work() -> None:
        row, value = next(coming)
        update(features(row), value)

    return work


def _net(size: int) -> Callable[[Array], Array]:  # (size,) -> (2 * NET[-1] + size + 1,)
    """The features of two nets 128-64-32, beside the row and a constant."""
    rng = np.random.default_rng(1)
    nets = [
        [rng.standard_normal(pair) / np.sqrt(pair[0]) for pair in pairwise((size, *NET))]
        for _ in range(2)
    ]

    def features(row: Array) -> Array:
        parts = []
        for *body, last in nets:
            x = row
            for weight in body:
                x = np.maximum(x @ weight, 0)
            parts.append(x @ last)
        return np.concatenate([*parts, row, [1.0]])

    return features


def _ridge(size: int) -> Update:
    """A += x x^T, b += r x, and the sums for the noise."""
    matrix, total, sums = np.eye(size), np.zeros(size), np.zeros(2)

    def update(x: Array, value: float) -> None:
        np.add(matrix, np.multiply.outer(x, x), out=matrix)
        np.add(total, value * x, out=total)
        np.add(sums, (value * value, 1.0), out=sums)

    return update


def _ridges(size: int) -> Update:
    """The same for ten bootstraps, each of which sees a reward Poisson(1) times."""
    rng = np.random.default_rng(2)
    matrices, totals = np.tile(np.eye(size), (MEMBERS, 1, 1)), np.zeros((MEMBERS, size))

    def update(x: Array, value: float) -> None:
        times = rng.poisson(1.0, MEMBERS)
        outer = np.multiply.outer(x, x)
        for member in np.flatnonzero(times):
            matrices[member] += times[member] * outer
        totals[:] += np.multiply.outer(times * value, x)

    return update


def _logistic(size: int) -> Update:
    """A += x x^T, and a Newton step every 16 rewards."""
    matrix, information, beta = np.eye(size), np.eye(size), np.zeros(size)
    waiting: list[tuple[Array, float]] = []

    def update(x: Array, value: float) -> None:
        np.add(matrix, np.multiply.outer(x, x), out=matrix)
        waiting.append((x, value))
        if len(waiting) == BATCH:
            rows = np.array([row for row, _ in waiting])
            p = 1 / (1 + np.exp(-(rows @ beta)))
            information[:] += (rows.T * (p * (1 - p))) @ rows
            missed = np.array([clicked for _, clicked in waiting]) - p
            beta[:] += np.linalg.solve(information, missed @ rows)
            waiting.clear()

    return update


def _counts(size: int) -> Work:
    """A click or a miss more of an arm."""
    coming = cycle([(int(arm), value) for arm, _, value in rewards(size)])
    table = np.ones((ARMS, 2))

    def work() -> None:
        arm, value = next(coming)
        table[arm] += (value, 1 - value)

    return work


def measured(rounds: int, columns: Sequence[int] = COLUMNS) -> Json:
    """Microseconds of both sides by policy and columns, and how many events a second that makes."""
    works: dict[tuple[str, int], Work] = {}
    for size in columns:
        works |= {(name, size): work for name, work in floors(size).items()}
        works |= {(kind, size): fold(policy_of(kind, size), size) for kind in FLOOR_OF}
    us = medians_us({key: turn_of(work, CALLS) for key, work in works.items()}, rounds, "folding")
    policies = {
        kind: {
            "floor": floor,
            "by_columns": {str(size): _told(us[kind, size], us[floor, size]) for size in columns},
        }
        for kind, floor in FLOOR_OF.items()
    }
    return {"columns": list(columns), "policies": policies}


def _told(own: float, least: float) -> dict[str, float]:
    return {
        "events_per_second": 1e6 / own, "forage_us": own, "floor_us": least, "ratio": own / least
    }  # fmt: skip
