"""One decision and one fold against the plain numpy they cannot do without.

Machines are shared and noisy: a figure is the ratio of two medians of the same run, whose rounds
were taken in turn. Writes out/benchmarks/decision.json.
"""

import argparse
import os
from collections.abc import Callable, Sequence
from statistics import median
from time import perf_counter

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # read when numpy is imported

import numpy as np

from benchmarks.tables import OUT, keep
from service.bandits.policies.candidates import Candidates
from service.definition.experiment import Definition
from service.definition.features import Schema
from service.serving.scoring import decide
from service.state.events import Rewarded, Settled
from service.state.learner import Learner

ROUNDS = 9
DRAWS = 512


def seconds_each(work: Callable[[], object], calls: int) -> float:
    start = perf_counter()
    for _ in range(calls):
        work()
    return (perf_counter() - start) / calls


def compare(
    ours: Callable[[], object], floor: Callable[[], object], calls: int
) -> dict[str, float]:
    """Medians in microseconds of interleaved rounds, and their ratio."""
    pairs = [(seconds_each(ours, calls), seconds_each(floor, calls)) for _ in range(ROUNDS)]
    own, least = (median(side) * 1e6 for side in zip(*pairs, strict=True))
    return {"forage_us": own, "floor_us": least, "ratio": own / least}


def learner(kind: str, size: int, **settings: object) -> Learner:
    """A policy over one context number and an arm vector, `size` columns in all."""
    seen = {} if kind in ("popularity", "random") else {"features": ["hour", "image"]}
    definition = Definition.model_validate(
        {
            "features": {
                "context": {"hour": {"type": "numeric"}},
                "arm": {"image": {"type": "vector", "size": size - 1}},
            },
            "policies": {"policy": {"kind": kind} | seen | settings},
        }
    )
    policy = definition.policies["policy"]
    return Learner("bench", "policy", policy, definition, Schema(definition.features), 1)


def decision(kind: str, arms: int, size: int, calls: int) -> dict[str, float]:
    """A decision over `arms` arms, each unlike the others, after every reward a new head."""
    rng = np.random.default_rng(0)
    policy = learner(kind, size)
    context = np.array([0.5])
    candidates = Candidates(tuple(map(str, range(arms))), rng.standard_normal((arms, size - 1)))
    rows = np.hstack([np.full((arms, 1), 0.5), candidates.x])
    factor = np.linalg.inv(np.linalg.cholesky(np.eye(size) + rows.T @ rows))
    normals = rng.standard_normal((DRAWS, size))
    mean = rng.standard_normal(size)

    def floor() -> object:
        half = rows @ factor.T
        if kind == "linucb":
            return np.argmax(rows @ mean + np.sqrt(np.einsum("nm,nm->n", half, half)))
        scores = rows @ mean + normals @ half.T
        return np.bincount(scores.argmax(axis=1), minlength=arms) / DRAWS

    return compare(lambda: decide(policy, context, candidates, 1, 7), floor, calls)


def reward(arm: str, x: Sequence[float], value: float) -> Rewarded:
    """The event of one reward of `learner`'s policy."""
    return Rewarded(
        at=0.0, decision="", policy="policy", schema_version=1, settled=[Settled(arm, value, [*x])]
    )


def fold(size: int, calls: int) -> dict[str, float]:
    """One reward into a head of `size` columns, against A += phi phi^T alone."""
    policy = learner("lints", size)
    x = np.random.default_rng(0).standard_normal(size)
    event, matrix, position = reward("0", x.tolist(), 1.0), np.eye(size), 0

    def ours() -> None:
        nonlocal position
        position += 1
        policy.fold(position, event)

    def floor() -> None:
        np.add(matrix, np.multiply.outer(x, x), out=matrix)

    return compare(ours, floor, calls)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, keep."""
    argparse.ArgumentParser(prog="python -m benchmarks decision", description=__doc__).parse_args(
        arguments
    )
    results = {
        f"decision {kind} K={arms} d={size}": decision(kind, arms, size, calls)
        for kind in ("linucb", "lints")
        for arms, size, calls in ((50, 9, 300), (1_000, 128, 10))
    }
    results["fold m=64"] = fold(64, 2_000)
    print(f"{'':32}{'forage, us':>12}{'floor, us':>12}{'ratio':>8}")
    for name, row in results.items():
        print(f"{name:32}{row['forage_us']:12.1f}{row['floor_us']:12.1f}{row['ratio']:8.2f}")
    keep(results, OUT / "decision.json")


if __name__ == "__main__":
    main()
