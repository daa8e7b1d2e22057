"""A policy's settlements, read from the log: what nets are trained on and heads rebuilt from."""

from collections.abc import Collection

from service.bandits.memory import Memory
from service.bandits.order import Batch, DecisionOrder, Settlement
from service.bandits.training_set import TrainingSet
from service.errors import StoreUnavailable
from service.log.replay import replay
from service.log.stores import Store
from service.state.events import (
    AnyEvent,
    ChangeDetected,
    Corrected,
    Erased,
    ExperimentDefined,
    Expired,
    Outcome,
    PolicyReset,
    Rewarded,
    Tombstone,
    erased_rewards,
    settlements_of,
)
from service.state.fold import State, is_change_of
from service.state.learner import Learner

BIRTHS = (ExperimentDefined, PolicyReset)
"""Events from which on a policy's head holds what was settled, where they have its revision."""


async def collect(
    store: Store,
    state: State,
    learner: Learner,
    count: int | None = None,
    without: Collection[str] | None = None,
) -> TrainingSet:
    """Read a policy's settlements since its head was born, as they were corrected until then;
    without those that a window or a change of the world made stale.

    count     of rewards that are enough; None: up to the position of the state
    without   decisions that nothing is learned of; None: those that the policy leaves out already

    Raises StoreUnavailable where the log does not hold them.
    """
    training: TrainingSet | None = None
    end = state.position
    gone = learner.active.without if without is None else frozenset(without)
    async for position, event in replay(store, state.name):
        if isinstance(event, BIRTHS) and event.revision == learner.births[0]:
            layout, settings = state.schema.layout, learner.settings
            order = DecisionOrder(layout) if learner.policy.in_order else None
            training = TrainingSet(Memory(layout, settings.window), order, position, gone)
        elif training is not None:
            _take(training, position, event, state, learner)
        if training is not None and (
            position >= end if count is None else training.rewards >= count
        ):
            training.watermark = position
            training.memory.trim()
            return training
    raise StoreUnavailable("the log ends before the rewards that it should hold")


def _take(
    training: TrainingSet, position: int, event: AnyEvent, state: State, learner: Learner
) -> None:
    """Take what an event says of a policy's settlements. Those that are left out count as rewards:
    a training falls due as it would."""
    if isinstance(event, ChangeDetected) and is_change_of(event, learner):
        training.memory.drop(state.present_columns(event), event.since)
        training.begins = max(training.begins, event.since)
    elif isinstance(event, Erased):
        training.memory.forget(event.decisions)
        if training.order is not None:
            training.order.forget(event.decisions)
    elif not isinstance(event, Tombstone | Rewarded | Expired | Corrected):
        pass
    elif state.knows(event.schema_version):
        _learn(training, position, event, state, learner)


def _learn(
    training: TrainingSet,
    position: int,
    event: Tombstone | Rewarded | Expired | Corrected,
    state: State,
    learner: Learner,
) -> None:
    """Take what an event settles, and count what of it was erased."""
    if isinstance(event, Tombstone | Expired) and learner.learns_from(event.policy, position):
        rewards, inline = erased_rewards(event)
        training.rewards += rewards - (inline if learner.policy.per_arm else 0)
    settlements = [state.present(one) for one in settlements_of(event)]
    for settlement, found in learner.told(settlements, position):
        fresh = sum(one.was is None for one in found)
        training.rewards += fresh
        training.left_out += fresh if settlement.decision in training.without else 0
        for decision, batch in _in_order(training, settlement, found, learner.settings.window):
            if decision not in training.without:
                _remember(training.memory, position, decision, batch)
    if training.memory.overfull:
        training.memory.trim()


def _in_order(
    training: TrainingSet, settlement: Settlement, found: list[Outcome], window: int | None
) -> list[Batch]:
    """Order settlements as `Version.in_order` does."""
    if training.order is None:
        return [(settlement.decision, found)]
    anew, batches = training.order.take(settlement, found)
    if anew:
        training.memory = Memory(training.memory.rows.layout, window)
    return batches


def _remember(memory: Memory, position: int, key: str, found: list[Outcome]) -> None:
    for outcome in found:
        if outcome.was is None:
            memory.add(position, key, outcome)
        elif memory.holds(key, outcome.arm):
            memory.revise(key, outcome.arm, outcome.learned, outcome.weight)
