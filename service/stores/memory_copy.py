"""Copies of the store of tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from service.stores.base import Mark
from service.stores.keeping import Instant, KeptMark, Part, Removed

if TYPE_CHECKING:
    from service.stores.memory import _Experiment


def instant(state: _Experiment) -> Instant:
    due = {**dict.fromkeys(state.settled - state.decisions.keys()), **state.waiting}
    return Instant(state.position, state.rows, due, dict(state.counts), state.removed)


def list_marks(state: _Experiment, cursor: str, limit: int) -> tuple[list[KeptMark], str]:
    left = sorted(identity for identity in state.marks if identity > cursor)
    found = [
        KeptMark(
            identity,
            state.marks[identity].value,
            state.marks[identity].position,
            state.keep_until.get(identity),
        )
        for identity in left[:limit]
    ]
    return found, found[-1].identity if len(left) > limit else ""


def load(state: _Experiment, part: Part) -> None:
    for record in part.events:
        state.events[record.position] = record.payload
        state.position = record.position
    state.position = max(state.position, part.position or 0)
    for row in part.rows:
        state.rows += 1
        state.decisions[row.id], state.numbers[row.id] = row.payload, state.rows
    for mark in part.marks:
        state.marks[mark.identity] = Mark(mark.value, mark.position)
        if mark.keep_until is not None:
            state.keep_until[mark.identity] = mark.keep_until
    for decision, due in part.due.items():
        if due is None:
            state.settled.add(decision)
        else:
            state.waiting[decision] = due
    state.counts.update(part.counts)
    if part.removed != Removed():
        state.removed = part.removed
