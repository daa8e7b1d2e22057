"""Catching up: what the log holds beyond the watermark of a version is folded into it.

The trainer does so before it hands a version over, which takes its time. A service does the rest
where the version is staged, and every replica at the same position: from there on the version folds
each event as the one that serves does.
"""

from collections.abc import Set

from service.bandits.version import Version
from service.errors import LogGap
from service.log.replay import erasures, replay
from service.log.stores import Store
from service.state.fold import ErasedParts, State
from service.state.learner import Learner


async def catch_up(
    store: Store,
    state: State,
    learner: Learner,
    version: Version,
    skips: frozenset[int] | None = None,
    passed: Set[int] = frozenset(),
) -> None:
    """Fold the events after its watermark into a version, in slices, up to the state's position.

    skips    positions of skipped events, where they are known
    passed   positions that are passed over, beside those erased before the state's position

    Raises LogGap where an event is missing or was erased since, StoreUnavailable.
    """
    after, upto = version.trained_to, state.position
    positions, decisions = set(passed), set[str]()
    async for event in erasures(store, state.name, after, upto + 1):
        positions.update(event.positions)
        decisions.update(event.decisions)
    gone = ErasedParts(positions, decisions)
    if after < upto:
        async for position, one in replay(
            store, state.name, after, upto=upto, skips=skips, dense=True
        ):
            state.catch_up(learner, version, position, one, gone)
            after = position
    if after < upto:
        raise LogGap(f"experiment {state.name}: the log lacks position {after + 1}")
