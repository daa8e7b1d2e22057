"""Candidates from the arms of a request: catalogue arms by their rows, inline arms encoded."""

import numpy as np

from service.bandits.candidates import LARGE, Candidates
from service.definition.select_request import InlineArm, RequestedArms
from service.errors import Fault, Invalid
from service.features.attributes import attribute_faults
from service.features.schema import Array
from service.naming import listed, quoted, repeated, suggestion
from service.state.fold import State

Found = tuple[Candidates, dict[str, InlineArm]]
"""Candidates, and those of them outside the catalogue."""

INLINE_ARMS_AT_ONCE = 100
"""Inline arms that are encoded on the event loop, in 2 to 4 ms."""


def are_many(arms: RequestedArms | None) -> bool:
    """Say whether the arms bring so many features of their own that encoding them takes long."""
    if arms is None or len(arms) <= INLINE_ARMS_AT_ONCE:
        return False
    return sum(isinstance(arm, InlineArm) for arm in arms) > INLINE_ARMS_AT_ONCE


def find(state: State, arms: RequestedArms | None, most: int) -> Found:
    """Find the arms of a request. Raises Invalid that names each fault, or where there are more
    than `most`."""
    if arms is None:
        if not state.arms:
            raise Invalid("the catalogue is empty: name arms with features", path="arms")
        return state.candidates, {}
    if not 1 <= len(arms) <= most:
        raise Invalid(f"give 1 to {most} arms", path="arms")
    named, large = tuple(arms), len(state.rows) > LARGE
    try:
        found = state.selections.get(named)
    except TypeError:  # one is outside the catalogue
        return _mixed(state, arms)
    if found:
        return found, {}
    known = [] if large else [*map(state.candidates.row_of.get, named)]  # type: ignore[arg-type]
    if large or None in known or len(set(known)) < len(known):  # one is at fault
        found, _ = _mixed(state, arms)
    else:
        found = state.candidates.choose(named, known)  # type: ignore[arg-type]
    state.selections.remember(named, found)
    return found, {}


def _mixed(state: State, arms: RequestedArms) -> Found:
    mixture = _Mixture(state)
    for arm in arms:
        mixture.add(arm)
    return mixture.found()


class _Mixture:
    """Catalogue and inline arms, in the order of the request."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._ids: list[str] = []
        self._rows: list[Array] = []
        self._faults: list[Fault] = []
        self._inline: dict[str, InlineArm] = {}

    def add(self, arm: str | InlineArm) -> None:
        rows, path = self._state.rows, f"arms.{len(self._ids)}"
        if isinstance(arm, InlineArm):
            self._ids.append(arm.id)
            self._inline[arm.id] = arm
            if arm.id in rows:
                self._faults.append(Fault(path, "is in the catalogue: give its id alone"))
            else:
                row = self._state.schema.encode_arm(arm.features, f"{path}.features")
                self._rows.append(row)
                if arm.attributes:
                    declared = self._state.definition.attributes
                    self._faults += attribute_faults(declared, arm.attributes, f"{path}.attributes")
        else:
            self._ids.append(arm)
            if arm in rows:
                self._rows.append(rows[arm])
            else:
                near = "" if self._faults else suggestion(arm, rows)  # once: it takes a while
                self._faults.append(Fault(path, f"{quoted(arm)} is not in the catalogue{near}"))

    def found(self) -> Found:
        """Return what was found. Raises Invalid that names each fault."""
        if len(set(self._ids)) < len(self._ids):
            twice = listed(repeated(self._ids))
            self._faults.append(Fault("arms", f"given more than once: {twice}"))
        if self._faults:
            raise Invalid("an arm cannot be shown", faults=self._faults)
        x = np.array(self._rows).reshape(len(self._rows), -1)
        return Candidates(tuple(self._ids), x), self._inline
