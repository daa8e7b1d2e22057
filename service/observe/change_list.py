"""The history of an experiment: who changed what and when, and what held at an instant.

The list is in the state (`state/changelog.py`), so no question reads the whole log: it reads the
events of one page by their positions.
"""

import asyncio
from collections.abc import Collection
from dataclasses import dataclass

from pydantic import BaseModel, Field

from service.definition.difference import Difference, difference
from service.definition.experiment import Definition
from service.errors import NotFound
from service.log.replay import record_at
from service.log.stores import Store
from service.observe.change_sentences import author, defined_sentence, lost_sentence, sentence
from service.state.changelog import CHANGE_KINDS, NOTABLE_KINDS, NotedChange
from service.state.events import ExperimentDefined, decode_event
from service.state.fold import State

DEFINITION, DELETION = "defined", "deleted"
REVISING_KINDS = (
    DEFINITION, DELETION, "reset", "shares_set", "rollout_started", "rollout_stepped",
)  # fmt: skip
SERVING_KINDS = tuple(kind.name for kind in CHANGE_KINDS.values() if kind.serves)
ARM_KINDS = ("arm_set", "arm_changed", "arm_removed")


class ChangeEntry(BaseModel):
    """A change of an experiment."""

    position: int
    at: float = Field(description="Unix seconds.")
    by: str = Field(description="Name of the key; empty where keys are off, or nobody did it.")
    revision: int | None = Field(description="Revision that it made; null: it makes none.")
    kind: str
    sentence: str


class HeldThen(BaseModel):
    """What held at an instant."""

    position: int = Field(description="Position of the last change up to then.")
    at: float = Field(description="Time of this change, unix seconds.")
    revision: int | None = Field(
        description="The revision that held; null: revisions of that time are no longer listed."
    )
    definition: Definition | None = Field(
        description="The definition, with its own arms and, where they are known, the shares of "
        "then; null: see `gone`."
    )
    shares: dict[str, float] | None = Field(
        description="Share of each policy; null: changes of that time are no longer listed."
    )
    versions: dict[str, int] | None = Field(description="Version of each policy; null: as shares.")
    gone: str | None = Field(description="Why there is no definition; null where there is one.")


class ChangeList(BaseModel):
    """A page of changes, newest first."""

    changes: list[ChangeEntry]
    next: int | None = Field(description="`before` of the next page; null: this is the last.")
    complete_after: dict[str, int] = Field(
        description="Kinds whose oldest changes are no longer listed: the rest comes after this "
        "position."
    )
    deleted: bool = Field(description="The experiment is deleted now.")
    then: HeldThen | None = Field(description="What held then, where an instant is asked for.")


@dataclass(frozen=True, slots=True)
class ChangePage:
    """A page to read. before: changes of earlier positions; at: unix seconds, what held then;
    revision: what held once this was made; notable: changes of `NOTABLE_KINDS` alone."""

    limit: int = 20
    before: int | None = None
    at: float | None = None
    revision: int | None = None
    notable: bool = False


async def changes_of(store: Store, state: State, page: ChangePage) -> ChangeList:
    """Return a page of an experiment's changes. Raises NotFound where nothing is known of the
    instant, or of the revision."""
    changes, last = list(state.changelog.newest_first()), None
    dropped = dict(state.changelog.dropped)
    if page.at is not None or page.revision is not None:
        last = _last_of(changes, page, dropped)
        changes = [change for change in changes if change.position <= last.position]
    reader = _Reader(store, state, changes, dropped)
    then = None if last is None else await reader.then(last)
    if page.before is not None:
        changes = [change for change in changes if change.position < page.before]
    if page.notable:
        changes = [change for change in changes if change.kind in NOTABLE_KINDS]
    shown = changes[: page.limit]
    return ChangeList(
        changes=[await reader.entry(change) for change in shown],
        next=shown[-1].position if len(changes) > len(shown) else None,
        complete_after=dropped,
        deleted=state.deleted,
        then=then,
    )


async def entry_of(store: Store, state: State, change: NotedChange) -> ChangeEntry:
    """Return one of an experiment's changes with its sentence. Raises StoreError."""
    changes = list(state.changelog.newest_first())
    return await _Reader(store, state, changes, dict(state.changelog.dropped)).entry(change)


def _last_of(changes: list[NotedChange], page: ChangePage, dropped: dict[str, int]) -> NotedChange:
    """Find the last change up to an instant, or the one that made a revision. Raises NotFound."""
    for change in changes:
        if page.at is not None and change.at <= page.at:
            return change
        if page.revision is not None and change.revision == page.revision:
            return change
    if page.at is not None:
        listed_so_far = "changes are not listed so far back" if dropped else None
        raise NotFound(listed_so_far or "the experiment did not exist then", path="at")
    say = "is not listed, or was never made" if dropped else "was never made"
    raise NotFound(f"revision {page.revision} {say}", path="revision")


class _Reader:
    """Reads what a page says of its changes. changes: newest first."""

    def __init__(
        self, store: Store, state: State, changes: list[NotedChange], dropped: dict[str, int]
    ) -> None:
        self._store, self._state = store, state
        self._changes, self._dropped = changes, dropped
        self._definitions: dict[int, Definition | None] = {}

    async def entry(self, change: NotedChange) -> ChangeEntry:
        return ChangeEntry(
            position=change.position,
            at=change.at,
            by=change.by,
            revision=change.revision or None,
            kind=change.kind,
            sentence=await self._sentence(change),
        )

    async def then(self, last: NotedChange) -> HeldThen:
        """Say what held after a change, which is the newest of the list."""
        defined = self._newest((DEFINITION, DELETION), last.position)
        definition, gone = None, f"the definition before position {last.position} is not listed"
        if defined is not None and defined.kind == DELETION:
            gone = f"revision {defined.revision} deleted the experiment"
        elif defined is not None:
            definition = await self._definition(defined, last.position)
            gone = f"the log no longer holds the definition of revision {defined.revision}"
        revised = self._newest(REVISING_KINDS, last.position)
        serving = self._newest(SERVING_KINDS, last.position)
        return HeldThen(
            position=last.position,
            at=last.at,
            revision=revised and revised.revision,
            definition=definition,
            shares=serving and serving.shares,
            versions=serving and serving.versions,
            gone=gone if definition is None else None,
        )

    async def _sentence(self, change: NotedChange) -> str:
        if change.kind == DEFINITION:
            return await self._defined(change)
        record = await record_at(self._store, self._state.name, change.position)
        if record is None:
            return lost_sentence(change.kind, change.by)
        return sentence(decode_event(record.payload))

    async def _defined(self, change: NotedChange) -> str:
        """Say what a definition changed. Arms are compared only where none changed by itself since
        the definition before, which does not have those changes."""
        former = self._newest((DEFINITION, DELETION), change.position - 1)
        if former is None and self._dropped.get(DEFINITION, 0):
            return f"{author(change.by)} defined the experiment; the one before is not listed"
        if former is None or former.kind == DELETION:
            return f"{author(change.by)} defined the experiment"
        before = await self._definition(former, change.position - 1)
        after = await self._definition(change, change.position)
        if before is None or after is None:
            return lost_sentence(change.kind, change.by)
        found = await asyncio.to_thread(difference, before, after)
        if self._arms_changed(former.position, change.position):
            return defined_sentence(change.by, _without_arms(found), arms=False)
        return defined_sentence(change.by, found)

    def _arms_changed(self, after: int, before: int) -> bool:
        if any(self._dropped.get(kind, 0) > after for kind in ARM_KINDS):
            return True
        return any(
            after < each.position < before and each.kind in ARM_KINDS for each in self._changes
        )

    def _newest(self, kinds: Collection[str], position: int) -> NotedChange | None:
        """Return the last change of some kinds up to a position; None: there is none, or it may be
        one that is no longer listed."""
        made = (each for each in self._changes if each.kind in kinds and each.position <= position)
        found = next(made, None)
        dropped = max(self._dropped.get(kind, 0) for kind in kinds)
        return found if found is not None and found.position > dropped else None

    async def _definition(self, change: NotedChange, position: int) -> Definition | None:
        """Return the definition that a change made, with the shares of a position where they are
        known; None: it is gone from the log."""
        definition, serving = await self._defined_by(change), self._newest(SERVING_KINDS, position)
        return definition and definition.with_shares((serving and serving.shares) or {})

    async def _defined_by(self, change: NotedChange) -> Definition | None:
        state, position = self._state, change.position
        if position not in self._definitions:
            present = None if state.deleted else next(state.changelog.of_kind(DEFINITION), None)
            if present == change:
                self._definitions[position] = state.definition
            else:
                record = await record_at(self._store, state.name, position)
                payload = None if record is None else record.payload
                self._definitions[position] = await asyncio.to_thread(_definition_in, payload)
        return self._definitions[position]


def _definition_in(payload: bytes | None) -> Definition | None:
    event = None if payload is None else decode_event(payload)
    if not isinstance(event, ExperimentDefined):
        return None
    return Definition.model_validate(event.definition)


def _without_arms(found: Difference) -> Difference:
    """Leave out the arms of a difference."""
    return Difference(
        [path for path in found.added if not path.startswith("arms.")],
        [path for path in found.removed if not path.startswith("arms.")],
        {path: change for path, change in found.changed.items() if not path.startswith("arms.")},
    )
