"""A decision without the wire, of every kind of policy, beside the plain numpy that no such policy
can do without: python -m benchmarks.scoring [--rounds N] [--policies A,B].

Shapes are arms x columns. Before every decision a reward is folded (and counted): the head is
another, so nothing may be kept from one decision to the next but what does not depend on it.
Floors, of a head that all arms share:

ucb        the argmax of mean + width, float32 (Li et al. 2010)
thompson   512 draws from a bank of normals, and how often each arm was the best, float32
mean       the argmax of the mean, float32

A figure is the ratio of two medians of interleaved rounds of the same run. Writes
benchmarks/results/scoring.json.
"""

import argparse
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, Final

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # read when numpy is imported

import numpy as np

from benchmarks.decision import learner, reward
from service.engine import decide
from service.policies.candidates import Candidates
from simulator_client.summary import table

RESULTS: Final = Path(__file__).parent / "results" / "scoring.json"
DRAWS: Final = 512
LEARNED: Final = 32  # rewards before the first decision
SHAPES: Final = ((50, 9), (1_000, 128), (10_000, 32))
ROUND_S: Final = 0.05  # of each side, at least one call
FLOOR_OF: Final = {
    "linucb": "ucb",
    "lints": "thompson",
    "neural_linear_ts": "thompson",
    "neural_linucb": "ucb",
    "neural_ucb": "ucb",
    "neural_ts": "thompson",
    "neural_glm_ts": "thompson",
    "bootstrap_ensemble": "mean",
    "mc_dropout": "mean",
    "greedy": "mean",
    "epsilon_greedy": "mean",
    "popularity": "mean",
    "static": "mean",
    "random": "mean",
}
Work = Callable[[], object]


def floors(arms: int, size: int) -> dict[str, Work]:
    """What each floor does for one decision, from a context to an arm or probabilities."""
    rng = np.random.default_rng(0)
    fixed = rng.standard_normal((arms, size - 1)).astype(np.float32)
    half = rng.standard_normal((size, size))
    factor = np.linalg.inv(np.linalg.cholesky(np.eye(size) + half @ half.T)).astype(np.float32)
    mean = rng.standard_normal(size).astype(np.float32)
    normals = rng.standard_normal((DRAWS, size)).astype(np.float32)

    def rows() -> np.ndarray[Any, Any]:
        return np.concatenate([np.full((arms, 1), 0.5, np.float32), fixed], axis=1)

    def ucb() -> object:
        x = rows()
        white = x @ factor.T
        return np.argmax(x @ mean + np.sqrt(np.einsum("nm,nm->n", white, white)))

    def thompson() -> object:
        scores = (mean + normals @ factor) @ rows().T
        return np.bincount(scores.argmax(axis=1), minlength=arms) / DRAWS

    def least() -> object:
        return np.argmax(rows() @ mean)

    return {"ucb": ucb, "thompson": thompson, "mean": least}


def decision(kind: str, arms: int, size: int) -> Work:
    """One decision of a policy that has learned a little, and the next of a head a reward on."""
    rng = np.random.default_rng(1)
    policy = learner(kind, size)
    rows = rng.standard_normal((arms, size - 1))
    candidates = Candidates(tuple(map(str, range(arms))), rows)
    context = np.array([0.5])
    rewards = [
        reward(str(arm), [0.5, *row], float(arm % 3 == 0))
        for arm, row in enumerate(rows[:LEARNED].tolist())
    ]
    for position, event in enumerate(rewards, start=1):
        policy.fold(position, event)
    count = len(rewards)

    def work() -> object:
        nonlocal count
        count += 1
        policy.fold(count, rewards[count % len(rewards)])
        return decide(policy, context, candidates, 1, count)

    return work


def seconds_each(work: Work) -> float:
    """Of a call, over ROUND_S or one call."""
    start, calls = perf_counter(), 0
    while (took := perf_counter() - start) < ROUND_S or not calls:
        work()
        calls += 1
    return took / calls


def compared(ours: Work, floor: Work, rounds: int) -> dict[str, float]:
    """Medians in microseconds of interleaved rounds, and their ratio."""
    ours()
    floor()
    pairs = [(seconds_each(ours), seconds_each(floor)) for _ in range(rounds)]
    own, least = (median(side) * 1e6 for side in zip(*pairs, strict=True))
    return {"forage_us": own, "floor_us": least, "ratio": own / least}


def measured(policies: Sequence[str], rounds: int) -> dict[str, Any]:
    """Every policy at every shape."""
    found: dict[str, Any] = {}
    for kind in policies:
        by_shape = {}
        for arms, size in SHAPES:
            floor = floors(arms, size)[FLOOR_OF[kind]]
            by_shape[f"{arms:,} x {size}"] = compared(decision(kind, arms, size), floor, rounds)
        found[kind] = {"floor": FLOOR_OF[kind], "by_shape": by_shape}
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scoring", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--rounds", type=int, default=7, help="default: 7")
    parser.add_argument("--policies", default=",".join(FLOOR_OF), help="default: all kinds")
    parser.add_argument("--out", type=Path, default=RESULTS, help="default: the kept results")
    asked = parser.parse_args(arguments)
    found = measured(asked.policies.split(","), asked.rounds)
    shapes = [f"{arms:,} x {size}" for arms, size in SHAPES]
    cells = [["policy", "floor", *shapes]]
    for kind, told in found.items():
        figures = [
            f"{row['forage_us']:,.0f} us ({row['ratio']:.1f})" for row in told["by_shape"].values()
        ]
        cells.append([kind, told["floor"], *figures])
    print(table(cells))
    kept = {"shapes": shapes, "rounds": asked.rounds, "policies": found}
    asked.out.write_text(json.dumps(kept, indent=2) + "\n")


if __name__ == "__main__":
    main()
