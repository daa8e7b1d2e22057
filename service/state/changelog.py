"""The list of an experiment's changes that the fold keeps: what happened when, by whom.

Rewards and decisions are no changes. An entry is small; its event has the details, which are read
from the log by position. Each kind of change has a bound, and its oldest entries go first: a stock
that is patched every second displaces no definition.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import merge
from itertools import islice, takewhile
from typing import Any, NamedTuple

from service.state.events import (
    AnyEvent,
    ArmPatched,
    ArmRemoved,
    ArmUpserted,
    BudgetMoved,
    ChangeDetected,
    Erased,
    Event,
    ExperimentDefined,
    ExperimentDeleted,
    Imported,
    LogTruncated,
    PolicyReset,
    RolloutStarted,
    RolloutStepped,
    Skipped,
    TrafficChanged,
    VersionActivated,
    VersionRejected,
    VersionStaged,
)

KEPT_CHANGES = 10_000
"""Entries that are kept of a kind. A trainer that activates a version every ten minutes fills them
in ten weeks."""

KEPT_ARM_CHANGES = 1_000
"""Entries that are kept of each kind of change of arms, which may come every second."""


@dataclass(frozen=True, slots=True)
class ChangeKind:
    """A kind of change.

    name    as the history says it on the wire
    words   what was done, with fields of the event in braces
    kept    most entries that are kept
    serves  it may change the versions that serve, or the shares that are set
    """

    name: str
    words: str
    kept: int = KEPT_CHANGES
    serves: bool = False


CHANGE_KINDS: Mapping[type[Event], ChangeKind] = {
    ExperimentDefined: ChangeKind("defined", "defined the experiment", serves=True),
    ExperimentDeleted: ChangeKind("deleted", "deleted the experiment", serves=True),
    PolicyReset: ChangeKind("reset", "reset policy {policy}", serves=True),
    TrafficChanged: ChangeKind("shares_set", "set the share of {shares}", serves=True),
    RolloutStarted: ChangeKind(
        "rollout_started", "began to roll out {policy} in place of {baseline}", serves=True
    ),
    RolloutStepped: ChangeKind("rollout_stepped", "{kind} the rollout of {policy}", serves=True),
    BudgetMoved: ChangeKind("budget_moved", "moved the loss budget"),
    VersionStaged: ChangeKind("version_staged", "staged version {version} of {policy}"),
    VersionActivated: ChangeKind(
        "version_activated", "let version {version} of {policy} serve", serves=True
    ),
    VersionRejected: ChangeKind("version_rejected", "rejected version {version} of {policy}"),
    ChangeDetected: ChangeKind(
        "world_changed", "the world of {policy} changed: {stratum}, since position {since}"
    ),
    Erased: ChangeKind("erased", "erased {decisions}"),
    Imported: ChangeKind("imported", "imported visits for {policy}: {visits}"),
    Skipped: ChangeKind("skipped", "skipped the event at position {position}"),
    LogTruncated: ChangeKind("log_lost", "the log had lost its end after position {held}"),
    ArmUpserted: ChangeKind("arm_set", "set arm {arm}", KEPT_ARM_CHANGES),
    ArmPatched: ChangeKind("arm_changed", "changed arm {arm}", KEPT_ARM_CHANGES),
    ArmRemoved: ChangeKind("arm_removed", "removed arm {arm}", KEPT_ARM_CHANGES),
}
"""Events that the history of an experiment lists. A line is all that a further one needs."""

Serving = tuple[dict[str, int], dict[str, float]]
"""Version of each policy, and its share as people and rollouts have set it."""

KINDS_BY_NAME = {kind.name: kind for kind in CHANGE_KINDS.values()}

NOTABLE_KINDS = frozenset(
    {
        "defined",
        "deleted",
        "reset",
        "shares_set",
        "rollout_started",
        "rollout_stepped",
        "version_activated",
        "version_rejected",
        "world_changed",
    }
)
"""Names of the kinds that concern what visitors are served: a webhook sends these changes, and the
console marks them in its charts. A name is all that a further kind needs."""


class NotedChange(NamedTuple):
    """One change.

    kind       name of its `ChangeKind`
    revision   of the experiment after it; 0: it makes none
    versions   versions that served after it, by policy; None: it changes none
    shares     as they were set after it, by policy; None: it changes none
    """

    position: int
    at: float
    kind: str
    by: str
    revision: int
    versions: dict[str, int] | None
    shares: dict[str, float] | None


@dataclass(slots=True)
class ChangeLog:
    """The newest changes of an experiment. `dropped`: position of the newest entry that is no
    longer kept, by kind."""

    _entries: dict[str, deque[NotedChange]] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)

    def note(self, position: int, event: AnyEvent, serving: Callable[[], Serving]) -> None:
        """Note an event that was folded, if it is a change. serving: returns the versions and
        shares of now."""
        kind = CHANGE_KINDS.get(type(event))
        if kind is None or (isinstance(event, Skipped) and event.position == position):
            return
        by, revision = getattr(event, "by", ""), getattr(event, "revision", 0)
        now = serving() if kind.serves else (None, None)
        self._add(NotedChange(position, event.at, kind.name, by, revision, *now))

    def _add(self, change: NotedChange) -> None:
        entries = self._entries.setdefault(change.kind, deque())
        entries.append(change)
        if len(entries) > KINDS_BY_NAME[change.kind].kept:
            self.dropped[change.kind] = entries.popleft().position

    def newest_first(self) -> Iterator[NotedChange]:
        """Yield all changes that are kept, from the last one back."""
        return merge(*map(reversed, self._entries.values()), reverse=True, key=_position)

    def of_kind(self, kind: str) -> Iterator[NotedChange]:
        """Yield the changes of one kind that are kept, from the last one back."""
        return reversed(self._entries.get(kind, ()))

    def newest_notable(self) -> NotedChange | None:
        """Return the last notable change; None: there is none."""
        newest = (change for kind in NOTABLE_KINDS for change in islice(self.of_kind(kind), 1))
        return max(newest, key=_position, default=None)

    def next_notable(self, after: int) -> NotedChange | None:
        """Return the first notable change after a position; None: there is none."""
        later = (
            change
            for kind in NOTABLE_KINDS
            for change in takewhile(lambda one: one.position > after, self.of_kind(kind))
        )
        return min(later, key=_position, default=None)

    def members(self) -> dict[str, dict[str, Any]]:
        """Return a copy as members of a snapshot."""
        entries = {
            str(change.position): change[1:] for own in self._entries.values() for change in own
        }
        return {"changelog": entries, "changelog_dropped": dict(self.dropped)}

    @classmethod
    def restore(cls, entries: Mapping[str, list[Any]], dropped: Mapping[str, int]) -> "ChangeLog":
        """Return the list of a snapshot, from its `members`."""
        found = cls(dropped=dict(dropped))
        for position, values in entries.items():
            found._add(NotedChange(int(position), *values))
        return found


def _position(change: NotedChange) -> int:
    return change.position
