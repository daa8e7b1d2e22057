"""A decision without the wire, of every kind of policy, beside the plain numpy that no such policy
can do without: python -m benchmarks.scoring [--rounds N] [--policies A,B].

Shapes are arms x columns. A reward is folded before every fifth decision, and counted: what is
kept of a head serves for five. Floors, of a head that all arms share, its factor kept by a rank-1
update at each reward, as often:

ucb        the argmax of mean + width, float32 (Li et al. 2010)
thompson   512 draws from a bank of normals, and how often each arm was the best, float32
mean       the argmax of the mean, float32
net        the features of a net 128-64-32, float32, then thompson on them

full: neural_ucb with Z of all parameters of a net 9-128-64-1 (9,601), a decision over 50 arms and a
reward, against the inverse of Z for each decision, as published code has it.

A figure is the ratio of two medians of interleaved rounds of the same run. Writes
benchmarks/results/scoring.json.
"""

import argparse
import json
import os
from collections.abc import Callable, Sequence
from itertools import pairwise
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
SELECTS: Final = 5  # decisions a reward
NET: Final = (128, 64, 32)
LEARNED: Final = 32  # rewards before the first decision
SHAPES: Final = ((50, 9), (1_000, 128), (10_000, 32))
ROUND_S: Final = 0.05  # of each side, at least one call
FLOOR_OF: Final = {
    "linucb": "ucb",
    "lints": "thompson",
    "neural_linear_ts": "net",
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

    inverse, total = factor.T @ factor, mean.copy()

    def update() -> None:
        """A reward: S <- S - S x (S x)^T / (1 + x^T S x), and the same of its factor."""
        nonlocal mean
        x = fixed[0, :1].repeat(size)
        total[:] += x
        moved = inverse @ x
        share = 1 + x @ moved
        inverse[:] -= np.multiply.outer(moved, moved / share)
        half = factor @ x
        factor[:] -= np.multiply.outer(
            half, (half @ factor) * (1 - 1 / np.sqrt(share)) / (share - 1)
        )
        mean = inverse @ total

    found = {"ucb": ucb, "thompson": thompson, "mean": least, "net": _net(rows, size)}
    return {name: _rewarded(work, update) for name, work in found.items()}


def _net(rows: Callable[[], np.ndarray[Any, Any]], size: int) -> Work:
    """The floor `net`."""
    rng = np.random.default_rng(1)
    layers = [
        (rng.standard_normal((wide, narrow)) / np.sqrt(wide)).astype(np.float32)
        for wide, narrow in pairwise((size, *NET))
    ]
    root = np.eye(NET[-1], dtype=np.float32)
    normals = rng.standard_normal((DRAWS, NET[-1])).astype(np.float32)

    def net() -> object:
        x = rows()
        for weight in layers[:-1]:
            x = np.maximum(x @ weight, 0)
        scores = (normals @ root) @ (x @ layers[-1]).T
        return np.bincount(scores.argmax(axis=1), minlength=len(x)) / DRAWS

    return net


def _rewarded(work: Work, update: Callable[[], None]) -> Work:
    """With a reward before every fifth call."""
    count = 0

    def one() -> object:
        nonlocal count
        count += 1
        if count % SELECTS == 0:
            update()
        return work()

    return one


def decision(kind: str, arms: int, size: int) -> Work:
    """One decision of a policy that has learned a little, every fifth of a head a reward on."""
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
        if count % SELECTS == 0:
            policy.fold(count, rewards[count // SELECTS % len(rewards)])
        return decide(policy, context, candidates, 1, count)

    return work


def seconds_each(work: Work) -> float:
    """Of a call, over ROUND_S or one call."""
    start, calls = perf_counter(), 0
    while (took := perf_counter() - start) < ROUND_S or calls % SELECTS or not calls:
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


def full() -> dict[str, float]:
    """A decision and its reward, milliseconds, and how many times the book's inverse takes."""
    rng = np.random.default_rng(0)
    policy = learner("neural_ucb", 9, form="full", hidden=[128, 64])
    rows = rng.standard_normal((50, 8))
    candidates = Candidates(tuple(map(str, range(50))), rows)
    took: dict[str, list[float]] = {"select": [], "update": []}
    for position in range(1, 301):
        context, arm = rng.standard_normal(1), int(rng.integers(50))
        start = perf_counter()
        decide(policy, context, candidates, 1, position)
        chosen = perf_counter()
        x = [*context.tolist(), *rows[arm].tolist()]
        policy.fold(position, reward(str(arm), x, float(arm % 3 == 0)))
        took["select"].append(chosen - start)
        took["update"].append(perf_counter() - chosen)
    parameters = 9_601
    z = np.eye(parameters, dtype=np.float32)
    row = rng.standard_normal(parameters).astype(np.float32)
    start = perf_counter()
    z += np.outer(row, row)
    updated = perf_counter()
    np.linalg.inv(z)
    inverted = perf_counter()
    select, update = (median(took[name][-100:]) * 1e3 for name in ("select", "update"))
    book_select, book_update = (inverted - updated) * 1e3, (updated - start) * 1e3
    return {
        "select_ms": select,
        "update_ms": update,
        "book_select_ms": book_select,
        "book_update_ms": book_update,
        "times": (book_select + book_update) / (select + update),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scoring", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--rounds", type=int, default=7, help="default: 7")
    parser.add_argument("--policies", default=",".join(FLOOR_OF), help="default: all kinds")
    parser.add_argument("--full", action="store_true", help="neural_ucb of 9,601 parameters too")
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
    if asked.full:
        kept["full"] = whole = full()
        print(table([[name, f"{value:,.1f}"] for name, value in whole.items()]))
    asked.out.write_text(json.dumps(kept, indent=2) + "\n")


if __name__ == "__main__":
    main()
