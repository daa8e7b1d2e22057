"""The events of a log, as those who judge its decisions need them: rewards and definitions."""

from array import array
from collections.abc import AsyncIterator
from dataclasses import dataclass
from math import nan

import numpy as np
import numpy.typing as npt

from service.definition.experiment import Definition
from service.errors import StoreError, UnknownSchema
from service.log.reading import Progress
from service.log.replay import origin_of, replay, row_pages
from service.log.stores import Store
from service.log.stores.base import KeptRow
from service.state.decisions import Decision, decode_decision, is_whole, model_version
from service.state.events import (
    AnyEvent,
    ExperimentDefined,
    ExperimentDeleted,
    Learned,
    LogTruncated,
    PolicyReset,
    Tombstone,
    outcomes,
)
from service.state.fold import State

Array = npt.NDArray[np.float64]

DELETED = "they were made before the experiment was deleted"
UNREADABLE = "their rows are damaged"
OPEN = "their reward may still come, or one before them is waited for"
EARLIER = "made before the log's origin, of which the events were trimmed"


def read_decision(row: KeptRow) -> tuple[Decision, int] | None:
    """A decision, and the position of the state that made it; None where the row is damaged. Raises
    UnknownSchema."""
    try:
        decision = decode_decision(row.payload)
    except UnknownSchema:
        raise
    except StoreError:
        return None
    version = model_version(decision)
    return (decision, version.position) if version and is_whole(decision) else None


async def decision_pages(
    store: Store, experiment: str, progress: Progress
) -> AsyncIterator[list[KeptRow]]:
    """Yield all decision rows, in their order. No page is empty."""
    done, rows = 0, (await store.describe(experiment)).rows
    async for page in row_pages(store, experiment):
        yield page
        done += len(page)
        progress.share("decisions read", done, rows)


@dataclass(frozen=True)
class Defined:
    """A definition that held from a position of the log on, and from unix seconds."""

    position: int
    at: float
    schema_version: int
    definition: Definition


@dataclass(frozen=True)
class Start:
    """Where a policy began as it is now: a position of the log, and unix seconds."""

    position: int
    at: float


class Rewards:
    """The last reward of each shown arm, by the hash of (decision, arm), and all definitions.

    end      the largest `at` of an event
    defined  since the experiment was last deleted, if it was
    first_schema   version of the first of these
    erased   positions of events that were erased
    begins   settlements up to here were trimmed
    lost     decision rows that the log is known to have lost
    """

    def __init__(self) -> None:
        self._keys, self._values, self._positions = array("q"), array("d"), array("q")
        self._resets: list[tuple[str, Start]] = []
        self.defined: list[Defined] = []
        self.first_schema = 0
        self.end = 0.0
        self.erased: set[int] = set()
        self.begins = 0
        self.lost = 0

    async def read(self, store: Store, experiment: str, progress: Progress) -> None:
        """Raises UnknownSchema, Damaged or LogGap where the events cannot be read."""
        first, end = True, (await store.describe(experiment)).position
        async for position, event in replay(store, experiment):
            if first and position > 1:
                self.begins = position - 1
                await self._read_origin(store, experiment)
            first = False
            self._take(position, event)
            progress.share("events read", position, end)
        keys = np.frombuffer(self._keys, np.int64)
        self._order = np.argsort(keys, kind="stable")
        self._sorted = keys[self._order]

    async def _read_origin(self, store: Store, experiment: str) -> None:
        """Take the definition that held where a trimmed log begins."""
        if (kept := await origin_of(store, experiment)) is not None:
            state = State.restore(kept)
            if not state.deleted:
                self._define(kept.position, state.log_time, state.schema_version, state.definition)
                self.first_schema = state.first_schema

    def _take(self, position: int, event: AnyEvent) -> None:
        self.end = max(self.end, event.at)
        if isinstance(event, ExperimentDefined):
            definition = Definition.model_validate(event.definition)
            self._define(position, event.at, event.schema_version, definition)
        elif isinstance(event, ExperimentDeleted):
            self.defined.clear()
            self.lost = 0
        elif isinstance(event, PolicyReset):
            self._resets.append((event.policy, Start(position, event.at)))
        elif isinstance(event, Tombstone):
            self.erased.add(position)
        elif isinstance(event, LogTruncated):
            self.lost += event.rows
        elif isinstance(event, Learned):
            for outcome in outcomes(event):
                self._keys.append(hash((event.decision, outcome.settled.arm)))
                self._values.append(nan if outcome.learned is None else outcome.learned)
                self._positions.append(position)

    def _define(self, position: int, at: float, schema: int, definition: Definition) -> None:
        if not self.defined or position > self.defined[-1].position:
            self.first_schema = schema if not self.defined else self.first_schema
            self.defined.append(Defined(position, at, schema, definition))

    @property
    def default(self) -> float | None:
        """The reward of a decision that got none; None: its outcome is unknown."""
        return self.defined[-1].definition.reward.default if self.defined else None

    def of(self, decision: str, arm: str) -> tuple[float, int] | None:
        """The current reward, and the position at which it was settled first."""
        key = hash((decision, arm))
        first, last = (int(np.searchsorted(self._sorted, key, side)) for side in ("left", "right"))
        if first == last:
            return None
        return self._values[self._order[last - 1]], self._positions[self._order[first]]

    def latest(self, keys: npt.NDArray[np.int64]) -> tuple[Array, npt.NDArray[np.bool_]]:
        """The current rewards of arms, by the hashes of (decision, arm), and whether they are
        settled. An arm that is not settled, or of which the user saw nothing, has reward 0."""
        if not len(keys) or not len(self._sorted):
            return np.zeros(len(keys)), np.zeros(len(keys), dtype=bool)
        last = np.searchsorted(self._sorted, keys, "right") - 1
        settled = self._sorted[last] == keys
        values = np.array(self._values)[self._order[last]]
        return np.where(settled & ~np.isnan(values), values, 0.0), settled

    def shares(self, names: set[str], positions: npt.NDArray[np.int64]) -> Array:
        """The chance that one of these policies is drawn, at each position, (n,)."""
        chances = list[float]()
        for each in self.defined:
            shares = {name: policy.share for name, policy in each.definition.policies.items()}
            chances.append(sum(shares.get(name, 0.0) for name in names) / sum(shares.values()))
        held = np.searchsorted([each.position for each in self.defined], positions, "right") - 1
        return np.array(chances)[held]

    def starts(self) -> dict[str, Start]:
        """Where each policy with a share, and each shadow, began as it is now: when it got its
        share, at the last change of another of its settings, of the features or of the reward
        rules, or at its last reset."""
        starts, before = dict[str, Start](), None
        for each in self.defined:
            rules, policies = each.definition.reward, each.definition.policies
            for name, policy in policies.items():
                same = (
                    before is not None
                    and name in starts
                    and (each.schema_version, rules)
                    == (before.schema_version, before.definition.reward)
                    and policy.model_copy(update={"share": 0.0})
                    == before.definition.policies[name].model_copy(update={"share": 0.0})
                )
                if not same:
                    starts[name] = Start(each.position, each.at)
            starts = {
                name: start
                for name, start in starts.items()
                if name in policies and (policies[name].share or policies[name].shadow)
            }
            before = each
        for name, reset in self._resets:
            if name in starts and reset.position > starts[name].position:
                starts[name] = reset
        return starts
