"""A decision of each kind of policy without the wire, and a fold, beside plain numpy:
python -m benchmarks.scoring [--rounds N] [--policies A,B].

Shapes are arms x columns. Every fifth decision folds a reward first, which is counted: the derived
parts of a head serve five decisions. Nets are trained ones of random weights, 128-64-32 (`static`:
64-32). `benchmarks/floors.py` has the floors; kinds of another shape have none. The fold is one
reward into a ridge head of 64 columns.

A ratio compares two medians of interleaved rounds of the same run.
"""

import os
from collections.abc import Sequence
from statistics import median
from time import perf_counter, thread_time
from typing import Final

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # read when numpy is imported

import numpy as np

from benchmarks import floors
from benchmarks.floors import SELECTS, Work
from benchmarks.tables import Cells, Json, conclude, parser_of, publish_option
from service.bandits.candidates import Candidates
from service.bandits.networks import Network, cold_network
from service.bandits.version import Version
from service.decide.scoring import decide
from service.definition.experiment import Definition
from service.features.row import Row
from service.features.schema import Schema
from service.server.allocator import keep_freed_memory
from service.state.decider import Decider
from service.state.events import Outcome, Rewarded
from service.state.learner import Learner

LEARNED: Final = 32  # rewards before the first decision
SHAPES: Final = ((50, 9), (1_000, 128))
FOLD_COLUMNS: Final = 64
ROUND_S: Final = 0.05  # of each side, at least one batch
BATCH: Final = 4 * SELECTS  # calls that are timed together
FLOOR_OF: Final[dict[str, str | None]] = {
    "linucb": "ucb",
    "lints": "thompson",
    "neural_linear_ts": "net thompson",
    "neural_linucb": "net ucb",
    "neural_ucb": "net ucb",
    "neural_ts": "net thompson",
    "neural_glm_ts": "net thompson",
    "bootstrap_ensemble": None,
    "mc_dropout": None,
    "greedy": "mean",
    "epsilon_greedy": "mean",
    "squarecb": "mean",
    "popularity": None,
    "static": None,
    "random": None,
}


def learner(kind: str, size: int) -> Learner:
    """Return a policy over one context number and an arm vector, `size` columns in all."""
    seen = {} if kind in ("popularity", "random") else {"features": ["hour", "image"]}
    definition = Definition.model_validate(
        {
            "features": {
                "context": {"hour": {"type": "numeric"}},
                "arm": {"image": {"type": "vector", "size": size - 1}},
            },
            "policies": {"policy": {"kind": kind} | seen},
        }
    )
    policy = definition.policies["policy"]
    return Learner("bench", "policy", policy, definition, Schema(definition.features), 1)


def reward(arm: str, row: Row, value: float) -> Rewarded:
    """Return the event of one reward of `learner`'s policy."""
    return Rewarded(
        at=0.0, decision="", policy="policy", schema_version=1, settled=[Outcome(arm, value, row)]
    )


def trained(policy: Learner) -> Version:
    """Return a version of the policy with a net of random weights."""
    net = policy.policy.net
    assert net is not None
    sizes = [policy.view.width, *net.hidden, *([] if net.rectified else [net.embedding])]
    rng = np.random.default_rng(0)
    network = Network(cold_network(sizes, "trained").layers, rectified=net.rectified)
    output = rng.standard_normal((sizes[-1], 1)), np.zeros(1)
    return policy.version(1, policy.trained(network, output))


def decision(kind: str, arms: int, size: int) -> Work:
    """Return one decision of a policy with a few rewards; every fifth folds a reward first."""
    rng = np.random.default_rng(1)
    policy = learner(kind, size)
    if policy.policy.net is not None:
        policy.active = trained(policy)
    rows = rng.standard_normal((arms, size - 1))
    candidates = Candidates(tuple(map(str, range(arms))), rows)
    context = np.array([0.5])
    rewards = [
        reward(str(arm), policy.schema.row(context, row), float(arm % 3 == 0))
        for arm, row in enumerate(rows[:LEARNED])
    ]
    for position, event in enumerate(rewards, start=1):
        policy.fold(position, [event])
    count = len(rewards)

    def work() -> object:
        nonlocal count
        count += 1
        if count % SELECTS == 0:
            policy.fold(count, [rewards[count // SELECTS % len(rewards)]])
        return decide(Decider.serving(policy), context, candidates, 1, count)

    return work


def fold(size: int) -> Work:
    """Return the fold of one reward into a head of `size` columns."""
    policy, position = learner("lints", size), 0
    row = policy.schema.layout.pack(np.random.default_rng(0).standard_normal(size))
    event = reward("0", row, 1.0)

    def work() -> None:
        nonlocal position
        position += 1
        policy.fold(position, [event])

    return work


def seconds_each(work: Work) -> float:
    """Return the processor time of a call: the median over the batches of ROUND_S.

    Processor time leaves out what other programs take of the core.
    """
    batches: list[float] = []
    end = perf_counter() + ROUND_S
    while perf_counter() < end or not batches:
        start = thread_time()
        for _ in range(BATCH):
            work()
        batches.append(thread_time() - start)
    return median(batches) / BATCH


def compared(ours: Work, floor: Work | None, rounds: int) -> dict[str, float]:
    """Return medians of interleaved rounds in microseconds, and their ratio if there is a floor."""
    sides = [side for side in (ours, floor) if side]
    for side in sides:
        side()
    times = [[seconds_each(side) for side in sides] for _ in range(rounds)]
    own, *least = (median(side) * 1e6 for side in zip(*times, strict=True))
    found = {"us": round(own, 1)}
    for floor_us in least:
        found |= {"floor_us": round(floor_us, 1), "ratio": round(own / floor_us, 2)}
    return found


def tables(results: Json) -> dict[str, Cells]:
    """Return the tables of docs/performance.md."""

    def cell(row: dict[str, float], form: str = "{:,.0f}") -> str:
        return form.format(row["us"]) + (f" ({row['ratio']:.1f})" if "ratio" in row else "")

    scoring = [["policy", "floor", *(f"{shape}: µs (ratio)" for shape in results["shapes"])]]
    for kind, by_shape in results["policies"].items():
        scoring.append([f"`{kind}`", FLOOR_OF[kind] or "", *map(cell, by_shape)])
    fold = [["fold", "µs (ratio)"], ["ridge, 64 columns", cell(results["fold"], "{:.1f}")]]
    return {"scoring": scoring, "fold": fold}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print and keep."""
    keep_freed_memory()  # as the service does
    parser = parser_of("scoring", __doc__)
    parser.add_argument("--rounds", type=int, default=7, help="default: 7")
    parser.add_argument("--policies", default=",".join(FLOOR_OF), help="default: all kinds")
    publish_option(parser)
    asked = parser.parse_args(arguments)
    policies = {
        kind: [
            compared(
                decision(kind, *shape),
                floors.decision(least, *shape) if least else None,
                asked.rounds,
            )
            for shape in SHAPES
        ]
        for kind, least in FLOOR_OF.items()
        if kind in asked.policies.split(",")
    }
    results = {
        "shapes": [f"{arms:,} x {size}" for arms, size in SHAPES],
        "policies": policies,
        "fold": compared(fold(FOLD_COLUMNS), floors.fold(FOLD_COLUMNS), asked.rounds),
    }
    conclude("scoring", results, tables(results), publish=asked.publish)


if __name__ == "__main__":
    main()
