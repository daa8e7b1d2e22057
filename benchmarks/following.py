"""What a replica pays for a settled decision of another process: python -m benchmarks.following
[--kinds A,B] [--stores memory,redis].

A log of settled decisions, four defaults to a reward, of the experiment of `benchmarks.http` with
one policy: an event for each reward, and one for the defaults of a page, as expiry writes them. A
replica catches up each time that a page of so many decisions is there, and the processor time of
that is divided by them: once it folds events in runs, and once one after the other. With `linucb63`
the context has 54 more numbers.

A ratio compares two medians of interleaved rounds of the same run.
"""

import asyncio
import os
import random
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any, Final

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # read when numpy is imported

from msgspec import structs

from benchmarks.tables import Cells, Json, conclude, parser_of, publish_option, say
from service.definition.experiment import Definition
from service.log.replica import Replica, Watcher
from service.log.stores import Store, open_store
from service.log.stores.base import Append
from service.settle.expiry import BLOCK_ARMS
from service.state.events import (
    Default,
    ExperimentDefined,
    Expired,
    Learned,
    Outcome,
    Rewarded,
    encode_event,
)
from service.state.fold import State
from service.telemetry.drift import Drift
from tests.support.redis_server import redis_server

EXPERIMENT: Final = Path(__file__).parent / "http" / "experiment.toml"
SEEN: Final = ["hour", "basket", "visits", "on_phone", "price", "taste"]
KINDS: Final[dict[str, Json]] = {
    "linucb": {"kind": "linucb", "features": SEEN},
    "linucb63": {"kind": "linucb", "features": [*SEEN, "more"]},
    "lints": {"kind": "lints", "features": SEEN},
    "neural_linear_ts": {"kind": "neural_linear_ts"},
    "auto": {"kind": "auto"},
}
PAGES: Final = (1, 10, 100)
WARM: Final = 600  # decisions before the first measurement: scalings are measured by then
ROUND: Final = 600  # decisions of a measurement


class Drifting(Watcher):
    """What a service notes of rewards that it folds."""

    def __init__(self) -> None:
        self._drift = Drift()

    def folding(self, state: State, event: Learned) -> None:
        self._drift.learned(state, event)


def definition_of(kind: str) -> Json:
    """Return the experiment with one policy."""
    told: Json = tomllib.loads(EXPERIMENT.read_text())
    told.pop("name")
    if kind == "linucb63":
        told["features"]["context"]["more"] = {"type": "vector", "size": 54}
    return told | {"policies": {"policy": KINDS[kind]}}


def settlements(kind: str, seed: int) -> Iterator[ExperimentDefined | Learned]:
    """Yield the definition, and settled decisions without end."""
    definition = definition_of(kind)
    defined = ExperimentDefined(at=0.0, revision=1, schema_version=1, definition=definition)
    state, rng = State("bench"), random.Random(seed)
    state.apply(1, defined)
    yield defined
    arms, number = sorted(Definition.model_validate(definition).arms), 0
    while True:
        number += 1
        context: dict[str, Any] = {
            "hour": rng.randrange(24),
            "basket": round(rng.uniform(0, 90), 2),
            "visits": rng.randrange(20),
            "on_phone": rng.random() < 0.5,
        }
        if kind == "linucb63":
            context["more"] = [rng.gauss(0, 1) for _ in range(54)]
        arm = rng.choice(arms)
        row = state.schema.row(state.schema.encode_context(context), state.rows[arm])
        make, reward = (Rewarded, 1.0) if rng.random() < 0.2 else (Default, 0.0)
        yield make(
            at=0.1 * number,
            decision=f"decision {number:012}",
            policy="policy",
            schema_version=1,
            settled=[Outcome(arm, reward, row)],
            reward_by=0.1 * number,
        )


def _parts(defaults: Sequence[Default], size: int) -> Iterator[Sequence[Default]]:
    return (defaults[start : start + size] for start in range(0, len(defaults), size))


async def append(
    store: Store, name: str, source: Iterator[ExperimentDefined | Learned], count: int
) -> None:
    """Append what another process settles: so many decisions."""
    given = list(islice(source, count))
    defaults = [one for one in given if isinstance(one, Default)]
    events = [one for one in given if isinstance(one, ExperimentDefined | Rewarded)]
    blocks = [
        Expired.of([structs.replace(one, at=defaults[-1].at) for one in block])
        for block in _parts(defaults, BLOCK_ARMS)
    ]
    entries = [Append(name, encode_event(event), {}) for event in (*events, *blocks)]
    for start in range(0, len(entries), 250):
        await store.commit(entries[start : start + 250])


async def microseconds(store: Store, kind: str, page: int, rounds: int) -> tuple[float, float]:
    """Return the processor time of a decision, its events in runs and one after the other."""
    name, source = f"{kind}-{page}", settlements(kind, page)
    await append(store, name, source, WARM)
    pair = [Replica(store, State(name), watcher=Drifting()) for _ in range(2)]
    pair[1].in_runs = False
    found: tuple[list[float], list[float]] = [], []
    for replica in pair:
        await replica.recover()
    pages = ROUND // max(page, 4)
    for _ in range(rounds):
        spent = [0.0, 0.0]
        for number in range(pages):
            await append(store, name, source, page)
            for side in (0, 1) if number % 2 else (1, 0):
                start = process_time()
                await pair[side].catch_up()
                spent[side] += process_time() - start
        for own, seconds in zip(found, spent, strict=True):
            own.append(1e6 * seconds / (page * pages))
    digests = {each.state.snapshot().payload for each in pair}
    if len(digests) > 1:
        raise SystemExit(f"{kind}: the two replicas differ")
    return median(found[0]), median(found[1])


@contextmanager
def urls(stores: Sequence[str]) -> Iterator[dict[str, str]]:
    """Serve the stores, and yield the URL of each."""
    with tempfile.TemporaryDirectory() as place:
        found = {"memory": "memory://", "sqlite": f"sqlite:///{place}/forage.db"}
        if "redis" not in stores:
            yield {name: found[name] for name in stores}
            return
        with redis_server(Path(place)) as redis:
            yield {name: (found | {"redis": redis.url})[name] for name in stores}


async def measure(kinds: Sequence[str], stores: dict[str, str], rounds: int) -> Json:
    """Return microseconds by kind, store and page."""
    results: Json = {}
    for kind in kinds:
        for name, url in stores.items():
            for page in PAGES:
                store = open_store(url)
                await store.open()
                run, single = await microseconds(store, kind, page, rounds)
                await store.close()
                say(f"{kind} {name} {page}: {run:.1f} in runs, {single:.1f} singly")
                own = results.setdefault(kind, {}).setdefault(name, {})
                own[str(page)] = {"runs": round(run, 1), "singly": round(single, 1)}
    return results


def tables(results: Json) -> dict[str, Cells]:
    """Return the table of docs/performance.md."""
    cells = [["policy", "store", *(f"pages of {page}: µs (ratio)" for page in PAGES)]]
    for kind, stores in results["kinds"].items():
        for store, pages in stores.items():
            each = [pages[str(page)] for page in PAGES]
            said = [f"{one['runs']:.0f} ({one['runs'] / one['singly']:.2f})" for one in each]
            cells.append([f"`{kind}`", store, *said])
    return {"following": cells}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print and keep."""
    parser = parser_of("following", __doc__)
    parser.add_argument("--kinds", default=",".join(KINDS), help="of policies; default: all")
    parser.add_argument("--stores", default="memory,redis", help="default: memory,redis")
    parser.add_argument("--rounds", type=int, default=5, help="default: 5")
    publish_option(parser)
    asked = parser.parse_args(arguments)
    with urls(asked.stores.split(",")) as stores:
        found = asyncio.run(measure(asked.kinds.split(","), stores, asked.rounds))
    results = {"kinds": found}
    conclude("following", results, tables(results), publish=asked.publish)


if __name__ == "__main__":
    main()
