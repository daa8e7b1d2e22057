"""The list of changes that the fold keeps."""

import pytest

from service.state import changelog
from service.state.changelog import ChangeKind, ChangeLog, NotedChange
from service.state.events import (
    AnyEvent,
    ArmPatched,
    ExperimentDefined,
    ExperimentDeleted,
    PolicyReset,
    Skipped,
)
from service.state.fold import State

DEFINITION = {
    "features": {"arm": {"kind": {"type": "categorical", "values": ["food", "toy"]}}},
    "attributes": {"stock": "number"},
    "policies": {"main": {"kind": "linucb"}, "other": {"kind": "random"}},
    "arms": {"ball": {"kind": "toy"}},
}


def defined(at: float, revision: int, by: str = "anna") -> ExperimentDefined:
    return ExperimentDefined(
        at=at, by=by, revision=revision, schema_version=1, definition=DEFINITION
    )


def patched(at: float, stock: float) -> ArmPatched:
    return ArmPatched(at=at, by="stock", arm="ball", attributes={"stock": stock})


def folded(events: list[AnyEvent]) -> State:
    state = State("shop")
    for position, event in enumerate(events, 1):
        state.apply(position, event)
    return state


LOG: list[AnyEvent] = [
    defined(1.0, 1),
    patched(2.0, 5.0),
    PolicyReset(at=3.0, by="ben", policy="main", revision=2),
    Skipped(at=0.0, position=4, reason="read as skipped"),
    Skipped(at=5.0, by="ops", position=4, reason="damaged"),
    ExperimentDeleted(at=6.0, by="ben", revision=3),
    defined(7.0, 4),
]
NONE, HALF = {"main": 0, "other": 0}, {"main": 1.0, "other": 1.0}
NOTED = [
    NotedChange(7, 7.0, "defined", "anna", 4, NONE, HALF),
    NotedChange(6, 6.0, "deleted", "ben", 3, {}, {}),
    NotedChange(5, 5.0, "skipped", "ops", 0, None, None),
    NotedChange(3, 3.0, "reset", "ben", 2, NONE, HALF),
    NotedChange(2, 2.0, "arm_changed", "stock", 0, None, None),
    NotedChange(1, 1.0, "defined", "anna", 1, NONE, HALF),
]


def test_the_fold_notes_changes_across_a_deletion_newest_first() -> None:
    assert list(folded(LOG).changelog.newest_first()) == NOTED


def test_a_snapshot_keeps_the_list() -> None:
    state = folded(LOG)
    restored = State.restore(state.snapshot())
    assert list(restored.changelog.newest_first()) == NOTED
    assert restored.snapshot().payload == state.snapshot().payload


def test_each_kind_keeps_its_newest_and_displaces_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    few = ChangeKind("arm_changed", "changed arm {arm}", kept=2)
    monkeypatch.setitem(changelog.CHANGE_KINDS, ArmPatched, few)  # type: ignore[arg-type]
    monkeypatch.setitem(changelog.KINDS_BY_NAME, few.name, few)
    events: list[AnyEvent] = [defined(1.0, 1), *(patched(at, at) for at in (2.0, 3.0, 4.0, 5.0))]
    found = folded(events).changelog
    assert [change.position for change in found.newest_first()] == [5, 4, 1]
    assert found.dropped == {"arm_changed": 3}
    members = found.members()
    restored = ChangeLog.restore(members["changelog"], members["changelog_dropped"])
    assert (restored.dropped, [*restored.newest_first()]) == (
        found.dropped,
        [*found.newest_first()],
    )
    restored.note(6, patched(6.0, 6.0), lambda: ({}, {}))
    assert restored.dropped == {"arm_changed": 4}
