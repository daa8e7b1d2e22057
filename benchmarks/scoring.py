"""A decision without the wire, of every kind of policy, beside the plain numpy that no such policy
can do without: python -m benchmarks.scoring [--rounds N] [--policies A,B].

Shapes are arms x columns. A reward is folded before every fifth decision, and counted: what is
kept of a head serves for five. Nets are trained ones of random weights, 128-64-32 (`static`:
64-32). Floors are in float32, the factor of a head that all arms share kept by a rank-1 update:

ucb        the argmax of mean + width (Li et al. 2010)
thompson   512 draws from a bank of normals, and how often each arm was the best
mean       the argmax of the mean
net ...    the same on what the head of a net sees by its definition (docs/policies.md): the
           features of the trained net and of its untrained twin, 32 each, the row and a constant
members    on the same, 10 regressors, each with a factor of its own, and how often each arm was
           the best
masks      the net under 64 dropout masks, all in one product, and the mean of `net mean` added
output     the argmax of what the net says
clicks     512 draws of a Beta an arm, drawn anew for the arm that was rewarded, and how often each
           arm was the best; what came out serves until the next reward
nothing    1 / K for every arm

bare ...   beside the floor of a net: one net without its twin, and a head on its 32 features alone,
           as Riquelme et al. 2018 and Xu et al. 2020 have it

full: neural_ucb with Z of all parameters of a net 9-128-64-1 (9,601), a decision over 50 arms and a
reward, against the inverse of Z for each decision, as published code has it.

A figure is the ratio of two medians of interleaved rounds of the same run. Writes
benchmarks/results/scoring.json.
"""

import os
from collections.abc import Sequence
from statistics import median
from time import perf_counter
from typing import Any, Final

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # read when numpy is imported

import numpy as np

from benchmarks.decision import learner, reward
from benchmarks.floors import SELECTS, Work, floor
from benchmarks.tables import keep, out_option, parser_of
from service.bandits.networks import Network, cold_network
from service.bandits.policies.candidates import Candidates
from service.bandits.policies.version import Version
from service.server.allocator import keep_freed_memory
from service.serving.scoring import decide
from service.state.learner import Learner
from simulator_client.summary import table

LEARNED: Final = 32  # rewards before the first decision
SHAPES: Final = ((50, 9), (1_000, 128), (10_000, 32))
ROUND_S: Final = 0.05  # of each side, at least one call
FLOOR_OF: Final = {
    "linucb": "ucb",
    "lints": "thompson",
    "neural_linear_ts": "net thompson",
    "neural_linucb": "net ucb",
    "neural_ucb": "net ucb",
    "neural_ts": "net thompson",
    "neural_glm_ts": "net thompson",
    "bootstrap_ensemble": "members",
    "mc_dropout": "masks",
    "greedy": "mean",
    "epsilon_greedy": "mean",
    "popularity": "clicks",
    "static": "output",
    "random": "nothing",
}
BARE: Final = {
    kind: floor.replace("net", "bare")
    for kind, floor in FLOOR_OF.items()
    if floor.startswith("net")
}


def trained(policy: Learner) -> Version:
    """A version of a net of random weights."""
    net = policy.policy.net
    assert net is not None
    sizes = [policy.view.width, *net.hidden, *([] if net.rectified else [net.embedding])]
    rng = np.random.default_rng(0)
    network = Network(cold_network(sizes, "trained").layers, rectified=net.rectified)
    output = rng.standard_normal((sizes[-1], 1)), np.zeros(1)
    return policy.version(1, policy.trained(network, output))


def decision(kind: str, arms: int, size: int) -> Work:
    """One decision of a policy that has learned a little, every fifth of a head a reward on."""
    rng = np.random.default_rng(1)
    policy = learner(kind, size)
    if policy.settings.has_net:
        policy.active = trained(policy)
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


def compared(ours: Work, least: Work, bare: Work | None = None, *, rounds: int) -> dict[str, float]:
    """Medians in microseconds of interleaved rounds, and their ratio; the same to a bare floor."""
    sides = [ours, least, *([bare] if bare else [])]
    for side in sides:
        side()
    times = [[seconds_each(side) for side in sides] for _ in range(rounds)]
    own, floor_us, *bare_us = (median(side) * 1e6 for side in zip(*times, strict=True))
    found = {"forage_us": own, "floor_us": floor_us, "ratio": own / floor_us}
    for other in bare_us:
        found |= {"bare_us": other, "bare_ratio": own / other}
    return found


def measured(policies: Sequence[str], rounds: int) -> dict[str, Any]:
    """Every policy at every shape."""
    found: dict[str, Any] = {}
    for kind in policies:
        by_shape = {}
        for arms, size in SHAPES:
            least = [floor(name, arms, size) for name in (FLOOR_OF[kind], BARE.get(kind)) if name]
            by_shape[f"{arms:,} x {size}"] = compared(
                decision(kind, arms, size), *least, rounds=rounds
            )
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


def bare(row: dict[str, float]) -> str:
    """The ratio to the bare floor, where there is one."""
    return f", bare {row['bare_ratio']:.1f}" if "bare_ratio" in row else ""


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, keep."""
    keep_freed_memory()  # as the service does
    parser = parser_of("scoring", __doc__)
    parser.add_argument("--rounds", type=int, default=7, help="default: 7")
    parser.add_argument("--policies", default=",".join(FLOOR_OF), help="default: all kinds")
    parser.add_argument("--full", action="store_true", help="neural_ucb of 9,601 parameters too")
    out_option(parser, "scoring")
    asked = parser.parse_args(arguments)
    found = measured(asked.policies.split(","), asked.rounds)
    shapes = [f"{arms:,} x {size}" for arms, size in SHAPES]
    cells = [["policy", "floor", *shapes]]
    for kind, told in found.items():
        figures = [
            f"{row['forage_us']:,.0f} us ({row['ratio']:.1f}{bare(row)})"
            for row in told["by_shape"].values()
        ]
        cells.append([kind, told["floor"], *figures])
    print(table(cells))
    kept = {"shapes": shapes, "rounds": asked.rounds, "policies": found}
    if asked.full:
        kept["full"] = whole = full()
        print(table([[name, f"{value:,.1f}"] for name, value in whole.items()]))
    keep(kept, asked.out)


if __name__ == "__main__":
    main()
