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
from benchmarks.following import append, events
from benchmarks.tables import Cells, Json, conclude, parser_of, publish_option, say
from service.decide.scoring import decide
from service.log.deciding import DecidingReplicas
from service.log.presence import Presence
from service.log.publisher import Publisher
from service.log.replicas import Replicas
from service.log.stores import open_store
from service.state.fold import State
from tests.support.redis_server import redis_server

SETTLED: Final = 25  # between two publications
PER_SECOND: Final = 20
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
    name, source = f"{kind} published", events(kind, 1)
    await append(learner, name, source, WARM)
    folding, deciding = Replicas(learner), DecidingReplicas(decider)
    publisher = Publisher(learner, folding, Presence(learner))
    await folding.join(name)
    await publisher.publish([name])
    await deciding.follow(0.0)
    spent: dict[str, list[float]] = {"publish": [], "follow": [], "idle": []}
    size = 0
    for _ in range(rounds):
        await append(learner, name, source, SETTLED)
        await folding.catch_up(name)
        own = decided(folding.by_name[name].state)
        start = process_time()
        await publisher.publish([name])
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
    return {**{part: round(own, 3) for part, own in told.items()}, "bytes": size}


def tables(results: Json) -> dict[str, Cells]:
    """Return the table of docs/performance.md."""
    cells = [["policy", "kB a publication", "decider, % of a core", "idle", "learner, % of a core"]]
    for kind, own in results["kinds"].items():
        shares = [own[part] * PER_SECOND / 10 for part in ("follow", "idle", "publish")]
        cells.append([f"`{kind}`", f"{own['bytes'] / 1e3:.1f}", *(f"{one:.1f}" for one in shares)])
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
