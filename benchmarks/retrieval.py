"""A catalogue too large to score, and its arms found by search: python -m benchmarks.retrieval
[--arms N] [--seconds S] [--rate R] [--catalogue mixed|even].

Of a policy with `retrieve` over `image x taste` (32 columns) that has learned some thousands of
rewards, in one process:

latency    of a decision, in milliseconds from when it was due, at so many a second; a reward is
           folded after every fifth, and an arm comes, changes or goes every tenth of a second
equal      share of decisions that an exact search gives too: the same seed, and as candidates the
           best of all arms
recall     share of the candidates of an exact search that are among the ones found

The arms of a mixed catalogue lie around 2,000 kinds, as those of shops do; of an even one, none is
near another, which is the worst that an index can meet. Writes out/benchmarks/retrieval.json.
"""

import os
from collections.abc import Sequence
from resource import RUSAGE_SELF, getrusage
from time import perf_counter, sleep
from typing import Any, Final

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # read when numpy is imported

import numpy as np

from benchmarks.tables import keep, out_option, parser_of
from service.bandits.policies.candidates import Candidates
from service.bandits.posterior import Observation, RidgeHead
from service.definition.experiment import Definition
from service.definition.features import Schema
from service.serving.arm_index import ArmIndex
from service.serving.retrieval import DRAWS
from service.serving.scoring import decide
from service.state.learner import Learner
from simulator_client.summary import table

WIDTH: Final = 32
LEARNED: Final = 5_000  # rewards before the first decision
COMPARED: Final = 100  # decisions held against exact search
KINDS: Final = 2_000


def vectors(arms: int, catalogue: str) -> np.ndarray[Any, Any]:
    """Arms of about unit variance a column."""
    rng = np.random.default_rng(0)
    if catalogue == "even":
        return rng.standard_normal((arms, WIDTH))
    kinds = rng.standard_normal((KINDS, WIDTH))
    return np.asarray(
        0.9 * kinds[rng.integers(KINDS, size=arms)] + 0.45 * rng.standard_normal((arms, WIDTH))
    )


def policy(kind: str, retrieve: int, taste: np.ndarray[Any, Any]) -> Learner:
    """One that has learned who likes what: a reward is a click, more likely where the user's
    vector and the arm's agree."""
    vector = {"type": "vector", "size": WIDTH}
    definition = Definition.model_validate(
        {
            "features": {
                "context": {"taste": vector},
                "arm": {"image": vector},
                "crosses": ["taste x image"],
            },
            "policies": {"p": {"kind": kind, "retrieve": retrieve, "features": ["taste x image"]}},
        }
    )
    settings = definition.policies["p"]
    found = Learner("bench", "p", settings, definition, Schema(definition.features), 1)
    head, rng = found.active.head, np.random.default_rng(1)
    assert isinstance(head, RidgeHead)
    for user, arm in rng.standard_normal((LEARNED, 2, WIDTH)):
        chance = 1 / (1 + np.exp(-(user * taste * arm).sum() / 2))
        head.observe(Observation("", user * arm, float(rng.random() < chance)))
    return found


def timed(
    learner: Learner, found: ArmIndex, rows: dict[str, Any], rate: float, seconds: float
) -> dict[str, float]:
    """Open loop: a decision is late from when it was due."""
    rng = np.random.default_rng(2)
    contexts = rng.standard_normal((4_096, WIDTH))
    late, count, head = [], int(rate * seconds), learner.active.head
    assert head is not None
    start = perf_counter()
    for number in range(count):
        due = start + number / rate
        if (ahead := due - perf_counter()) > 0:
            sleep(ahead)
        context = contexts[number % len(contexts)]
        decided(learner, found, rows, context, number)
        late.append(perf_counter() - due)
        if number % 5 == 0:
            head.observe(Observation("", contexts[number % 97] * context, float(number % 3 == 0)))
        if number % max(int(rate / 10), 1) == 0:
            arm = str(rng.integers(len(rows)))
            if number % 3:
                rows[arm] = rng.standard_normal(WIDTH)
            else:
                rows.pop(arm, None)
            found.change({arm: rows.get(arm)})
            found.settle()
            if found.stale:
                found.build_aside()
    p50, p99, p999 = np.quantile(late, [0.5, 0.99, 0.999]) * 1e3
    return {"p50_ms": p50, "p99_ms": p99, "p999_ms": p999, "most_ms": max(late) * 1e3}


def decided(
    learner: Learner, found: ArmIndex, rows: dict[str, Any], context: Any, seed: int
) -> tuple[str, list[str]]:
    """The arm, and its candidates."""
    count = learner.policy.retrieve
    assert count is not None
    directions = learner.directions(context, DRAWS, seed)
    ids = found.search(directions, count, count // 4 + 1, seed)
    candidates = Candidates(tuple(ids), np.array([rows[arm] for arm in ids]))
    _, slate = decide(learner, context, candidates, 1, seed)
    return ids[slate.arms[0]], ids


def compared(
    learner: Learner, found: ArmIndex, exact: ArmIndex, rows: dict[str, Any]
) -> dict[str, float]:
    """Against a search that looks at every arm."""
    rng, equal, recall = np.random.default_rng(3), 0, 0.0
    for seed in range(COMPARED):
        context = rng.standard_normal(WIDTH)
        arm, ids = decided(learner, found, rows, context, seed)
        best, every = decided(learner, exact, rows, context, seed)
        equal += arm == best
        recall += len(set(ids) & set(every)) / len(every)
    return {"equal": equal / COMPARED, "recall": recall / COMPARED}


def measured(
    kind: str, retrieve: int, rows: dict[str, Any], rate: float, seconds: float
) -> dict[str, float]:
    """Of one policy."""
    learner = policy(kind, retrieve, np.random.default_rng(4).standard_normal(WIDTH))
    found, exact = ArmIndex(learner.view), ArmIndex(learner.view)
    start = perf_counter()
    found.load(rows)
    loaded = perf_counter()
    found.build_aside().join()
    found.settle()
    built = perf_counter()
    exact.load(rows)
    result = {"load_s": loaded - start, "build_s": built - loaded}
    result |= compared(learner, found, exact, rows)
    del exact
    return result | timed(learner, found, dict(rows), rate, seconds)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, keep."""
    parser = parser_of("retrieval", __doc__)
    parser.add_argument("--arms", type=int, default=1_000_000, help="default: 1,000,000")
    parser.add_argument("--retrieve", type=int, default=20, help="default: 20")
    parser.add_argument("--rate", type=float, default=200.0, help="a second; default: 200")
    parser.add_argument("--seconds", type=float, default=30.0, help="default: 30")
    parser.add_argument("--catalogue", choices=("mixed", "even"), default="mixed")
    parser.add_argument("--policies", default="linucb,lints", help="default: linucb,lints")
    out_option(parser, "retrieval", published=False)
    asked = parser.parse_args(arguments)
    rows = dict(zip(map(str, range(asked.arms)), vectors(asked.arms, asked.catalogue), strict=True))
    found = {
        kind: measured(kind, asked.retrieve, rows, asked.rate, asked.seconds)
        for kind in asked.policies.split(",")
    }
    columns = list(next(iter(found.values())))
    cells = [["policy", *columns]]
    cells += [[kind, *(f"{row[name]:,.3f}" for name in columns)] for kind, row in found.items()]
    print(table(cells))
    kept = {
        "arms": asked.arms,
        "retrieve": asked.retrieve,
        "catalogue": asked.catalogue,
        "rate": asked.rate,
        "peak_mb": getrusage(RUSAGE_SELF).ru_maxrss / 1024,
        "policies": found,
    }
    keep(kept, asked.out)


if __name__ == "__main__":
    main()
