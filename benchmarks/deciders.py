"""What deciders pay for following a learner: python -m benchmarks.deciders [--kinds A,B].

The experiment of `benchmarks.http` with one policy, on Redis. A learner folds 25 settlements, as
500 decisions a second make in 50 ms, and publishes; a decider reads that, and decides once, so that
it derives what it reads. The processor time of each, as often as the learner would publish, is a
share of a core. A decider looks 20 times a second where nothing has moved: `idle`. With
`auto, no features` arms have no features, so that each has regressions of its own in all members.
"""

import asyncio
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from time import process_time
from typing import Final

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # read when numpy is imported

from benchmarks import following
from benchmarks.following import append, settlements
from benchmarks.tables import Cells, Json, conclude, parser_of, publish_option, say
from service.decide.scoring import decide
from service.log.deciding import DecidingReplicas
from service.log.presence import Presence
from service.log.publisher import BUSY_SHARE, PUBLISH_SECONDS, Publisher
from service.log.replicas import Replicas
from service.log.stores import open_store
from service.state.fold import State
from tests.support.redis_server import redis_server

SETTLED: Final = 25  # between two publications
WARM: Final = 2_000
CONTEXT: Final = ["hour", "basket", "visits", "on_phone"]
KINDS: Final[dict[str, Json]] = following.KINDS | {
    "lints disjoint": {"kind": "lints", "features": CONTEXT, "disjoint": True},
    "auto, no features": {"kind": "auto", "features": CONTEXT},
}


def decided(state: State) -> bytes:
    """Decide once; the probabilities."""
    [learner] = state.learners.values()
    context = state.schema.encode_context(
        dict.fromkeys(("hour", "basket", "visits"), 1.0)
        | {"on_phone": False}
        | ({"more": [0.5] * 54} if "more" in str(state.definition.features) else {})
    )
    p, _ = decide(state.decider(learner.name, ""), context, state.candidates, 1, seed=1)
    return p.tobytes()


async def measure(kind: str, url: str, rounds: int) -> Json:
    """Return milliseconds of processor time a publication, and its bytes."""
    learner, decider = open_store(url), open_store(url)
    await learner.open()
    await decider.open()
    name, source = f"{kind} published", settlements(kind, 1)
    await append(learner, name, source, WARM)
    folding, deciding = Replicas(learner), DecidingReplicas(decider)
    publisher = Publisher(learner, folding, Presence(learner))
    await folding.join(name)
    await publisher.publish([name])
    await deciding.follow(0.0)
    spent: dict[str, list[float]] = {"publish": [], "follow": [], "idle": []}
    size, pauses = 0, list[float]()
    for _ in range(rounds):
        await append(learner, name, source, SETTLED)
        await folding.catch_up(name)
        own = decided(folding.by_name[name].state)
        publisher._spent = 0.0
        start = process_time()
        await publisher.publish([name])
        pauses.append(max(PUBLISH_SECONDS, publisher._spent / BUSY_SHARE))
        spent["publish"].append(process_time() - start)
        start = process_time()
        await deciding.follow(0.0)
        theirs = decided(deciding.by_name[name].state)
        spent["follow"].append(process_time() - start)
        start = process_time()
        await deciding.follow(0.0)
        spent["idle"].append(process_time() - start)
        start = process_time()
        decided(deciding.by_name[name].state)
        spent["follow"][-1] -= process_time() - start  # that of the decision itself
        if theirs != own:
            raise SystemExit(f"{kind}: a decider decides otherwise")
        parts = await decider.get(name, "published", ["heads", "moved"])
        large = "moved" in parts
        size = len(parts["moved" if large else "heads"])
    await learner.close()
    await decider.close()
    told = {part: 1e3 * median(times) for part, times in spent.items()}
    say(f"{kind}: {told}, {size:,} bytes")
    rounded = {part: round(own, 3) for part, own in told.items()}
    return {**rounded, "bytes": size, "per_second": round(1 / median(pauses), 1)}


def tables(results: Json) -> dict[str, Cells]:
    """Return the table of docs/performance.md."""
    head = ["policy", "kB", "a second", "decider, % of a core", "idle", "learner, % of a core"]
    cells = [head]
    for kind, own in results["kinds"].items():
        idle = own["idle"] / PUBLISH_SECONDS / 10
        follow = own["follow"] * own["per_second"] / 10
        shares = [follow, idle, own["publish"] * own["per_second"] / 10]
        kilobytes, rate = f"{own['bytes'] / 1e3:.1f}", f"{own['per_second']:.1f}"
        cells.append([f"`{kind}`", kilobytes, rate, *(f"{one:.1f}" for one in shares)])
    return {"deciders": cells}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print and keep."""
    parser = parser_of("deciders", __doc__)
    parser.add_argument("--kinds", default=";".join(KINDS), help="of policies, by ;; default: all")
    parser.add_argument("--rounds", type=int, default=100, help="default: 100")
    publish_option(parser)
    asked = parser.parse_args(arguments)
    following.KINDS.update(KINDS)
    with tempfile.TemporaryDirectory() as place, redis_server(Path(place)) as redis:
        kinds = asked.kinds.split(";")
        found = {kind: asyncio.run(measure(kind, redis.url, asked.rounds)) for kind in kinds}
    results = {"kinds": found}
    conclude("deciders", results, tables(results), publish=asked.publish)


if __name__ == "__main__":
    main()
