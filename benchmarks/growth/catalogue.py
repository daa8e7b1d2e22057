"""A decision by the catalogue behind it: the request names few of its arms, or they are found by a
search (`retrieve`)."""

from collections.abc import Sequence
from importlib.util import find_spec
from itertools import cycle
from typing import Final

import numpy as np

from benchmarks.floors import Work
from benchmarks.growth.axes import kept
from benchmarks.medians import Turn, medians_us, turn_of
from benchmarks.retrieval import WIDTH, decided, policy, vectors
from benchmarks.tables import Json, say
from service.definition.experiment import Definition
from service.definition.select_request import SelectRequest
from service.log.clock import LogClock
from service.log.commit_gate import CommitGate
from service.log.journal import Journal
from service.log.stores.memory import MemoryStore
from service.observability.telemetry import Telemetry
from service.security.token import TokenSealer
from service.serving.arm_index import ArmIndex
from service.serving.engine import Engine
from service.serving.scoring import decide
from service.settings import Settings
from service.state.events import ArmUpserted, ExperimentDefined, Rewarded, Settled
from service.state.fold import State

NAMED: Final = 50  # arms of a request
RETRIEVED: Final = 20
REQUESTS: Final = 512  # others each, so that no selection is known from before
LEARNED: Final = 200  # rewards
VECTOR: Final = {"type": "vector", "size": WIDTH}
DEFINITION: Final = Definition.model_validate(
    {
        "features": {
            "context": {"taste": VECTOR},
            "arm": {"image": VECTOR},
            "crosses": ["taste x image"],
        },
        "policies": {"p": {"kind": "lints", "features": ["taste x image"]}},
    }
)


def shop(arms: int) -> State:
    """An experiment with so many arms, whose policy has learned a little."""
    state = State("shop")
    definition = DEFINITION.model_dump(mode="json")
    state.apply(
        1, ExperimentDefined(at=0.0, revision=1, schema_version=1, definition=definition)
    )  # fmt: skip
    for number, row in enumerate(vectors(arms, "mixed")):
        upserted = ArmUpserted(at=0.0, arm=str(number), features={"image": row.tolist()})
        state.apply(state.position + 1, upserted)
    rng = np.random.default_rng(1)
    for x in rng.standard_normal((LEARNED, 2 * WIDTH)).tolist():
        settled = [Settled("0", float(rng.random() < 0.3), x)]
        rewarded = Rewarded(at=0.0, decision="", policy="p", schema_version=1, settled=settled)
        state.apply(state.position + 1, rewarded)
    return state


def engine() -> Engine:
    """What answers, without a log."""
    settings, telemetry = Settings(store="memory://"), Telemetry()
    journal = Journal(MemoryStore(), settings, telemetry, CommitGate(), LogClock())
    return Engine(journal, TokenSealer([bytes(32)]), settings, telemetry)


def named(answering: Engine, state: State) -> Work:
    """A decision over arms that the request names, from its JSON values on."""
    rng, arms = np.random.default_rng(2), len(state.rows)
    questions = cycle(
        [
            SelectRequest(
                {"taste": rng.standard_normal(WIDTH).tolist()},
                policy="p",
                arms=[str(arm) for arm in rng.choice(arms, NAMED, replace=False)],
            )
            for _ in range(REQUESTS)
        ]
    )

    def work() -> None:
        asked = answering.look_up(state, next(questions))
        decide(asked.learner, asked.context, asked.candidates, 1, asked.seed)

    return work


def changed(answering: Engine, state: State) -> Work:
    """The same, after another arm has got other features."""
    decision, arms = named(answering, state), cycle(list(state.rows))
    image = np.random.default_rng(3).standard_normal(WIDTH)

    def work() -> None:
        image[0] += 1e-3
        event = ArmUpserted(at=0.0, arm=next(arms), features={"image": image.tolist()})
        state.apply(state.position + 1, event)
        decision()

    return work


def found(state: State) -> Work:
    """A decision over arms that are found among all of them."""
    learner = policy("lints", RETRIEVED, np.random.default_rng(4).standard_normal(WIDTH))
    retriever, rows = ArmIndex(learner.view), dict(state.rows)
    retriever.load(rows)
    if retriever.stale:
        retriever.build_aside().join()
        retriever.settle()
    contexts = cycle(np.random.default_rng(5).standard_normal((REQUESTS, WIDTH)))
    return lambda: decided(learner, retriever, rows, next(contexts), 7)


def by_catalogue(sizes: Sequence[int], rounds: int) -> Json:
    """Arms that a request names, before and after a change of the catalogue, and arms that are
    found, where the extra `retrieval` is installed."""
    answering = engine()
    turns: dict[tuple[str, int], Turn] = {}
    states = {}
    for size in sizes:
        say(f"catalogue: {size:,} arms")
        states[size] = shop(size)
    for size, state in states.items():
        turns[f"{NAMED} arms named", size] = turn_of(named(answering, state))
    for size, state in states.items():
        turns["the same, after an arm changed", size] = turn_of(changed(answering, state))
    if find_spec("faiss"):
        for size, state in states.items():
            say(f"catalogue: an index of {size:,} arms")
            turns[f"`retrieve` {RETRIEVED}, found by search", size] = turn_of(found(state))
    return kept(sizes, medians_us(turns, rounds, "catalogue"))
