"""What a policy keeps when its experiment is defined anew: what it learned of columns that stay.

A linear head follows its columns exactly. Without a column, A and b are what they were had it never
been there; a new column was 0 so far, so A gains a row and a column of the prior. A net starts anew
where its inputs change.
"""

from collections.abc import Hashable, Mapping, Sequence

import numpy as np

from service.bandits.heads.base import Stored
from service.bandits.linalg import Index
from service.bandits.version import WARM_UP
from service.features.columns import base_meanings, places, taken, unknown, view_meanings
from service.features.scaling import Scaling
from service.features.schema import Array, Schema
from service.state.learner import Learner

Meanings = Sequence[Hashable]

UNPACKED_ROWS = 1_024
"""Rows that are unpacked at a time."""


def obstacle(kept: Learner, fresh: Learner) -> str:
    """Why a policy cannot go on from what it learned under the definition before; '' if it can."""
    old, new = map(_head_settings, (kept, fresh))
    changed = sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
    if changed:
        return f"it learned with another {', '.join(changed)}"
    head = kept.active.head
    if head is not None and not head.standardises and kept.limits != fresh.limits:
        return "it learned rewards of another range"
    before, after = view_meanings(kept.view), view_meanings(fresh.view)
    if fresh.policy.net is not None and before != after:
        return "its net has other inputs"
    own = fresh.active.head
    if head is None or own is None:
        return ""
    return own.obstacle(head, places(before, after))


def _head_settings(learner: Learner) -> dict[str, object]:
    settings = learner.settings
    return settings.model_dump(exclude={*settings.keeps_head, "features"})


def succeed(kept: Learner, fresh: Learner, position: int) -> None:
    """Give a policy what it learned under the definition before.

    kept, fresh   before and after, with no `obstacle` between them
    position      of the new definition
    """
    meta, arrays = kept.dump()
    meta |= {"challenger": None, "trained_on": kept.active.rewards}  # it has other columns
    old, new = base_meanings(kept.schema), base_meanings(fresh.schema)
    columns = places(view_meanings(kept.view), view_meanings(fresh.view))
    head, own = kept.active.head, fresh.active.head
    if head is not None and own is not None and fresh.policy.net is None:
        own.follow(head, columns)
        arrays |= {f"head.{name}": array for name, array in own.arrays().items()}
    moved = places(old, new)
    for part in ("memory", "order"):
        if f"{part}.positions" in arrays or f"{part}.keys" in arrays:
            arrays |= _rows(arrays, part, kept.schema, fresh.schema, moved)
    for name, array in arrays.items():
        if name.startswith("detector."):
            strata = [_strata(each, own) for each, own in ((kept, old), (fresh, new))]
            arrays[name] = taken(array, places(*strata))
    scaling, wanted = kept.view.scaling, fresh.view.scaling
    if wanted is None:
        meta["scaled_on"] = WARM_UP
    else:
        arrays["scaling"] = values = _values(scaling, wanted, old, new)
        whole = kept.active.scaled_on >= kept.active.warm_up
        if whole and not np.isfinite(values).all():
            meta |= {"scaled_on": 0, "late": True}
    fresh.load({**meta, "births": [*kept.births, fresh.born]}, arrays)
    if fresh.settings.learning and not kept.settings.learning:
        fresh.active.begins = position


def _rows(
    arrays: Mapping[str, Stored], part: str, old: Schema, new: Schema, columns: Index
) -> dict[str, Stored]:
    """Return the rows of a part of a policy, with the present columns."""
    names = f"{part}.rows.numbers", f"{part}.rows.places"
    numbers, places = (arrays[name] for name in names)
    fill, found = unknown(new), list[tuple[Stored, Stored]]()
    for start in range(0, max(len(numbers), 1), UNPACKED_ROWS):
        some = slice(start, start + UNPACKED_ROWS)
        x = taken(old.layout.join(numbers[some], places[some]), columns, fill)
        found.append(new.layout.split(x))
    return dict(zip(names, map(np.concatenate, zip(*found, strict=True)), strict=True))


def _strata(learner: Learner, meanings: Meanings) -> Meanings:
    """Return what the sums of a detector are of: all visits, then a column each."""
    assert learner.detector is not None
    return [None, *(meanings[column] for column in learner.detector.columns)]


def _values(kept: Scaling | None, fresh: Scaling, old: Meanings, new: Meanings) -> Array:
    """Values of a scaling: measured ones of columns that stay; new columns are not measured."""
    measured = [] if kept is None else [old[column] for column in kept.columns]
    index = places(measured, [new[column] for column in fresh.columns])
    values = np.empty((2, 0)) if kept is None else kept.values
    return taken(values, index, fresh.unmeasured)
