"""A look at the shadows of an experiment that goes on where the last one stopped.

The fold, and what was evaluated, are kept as they were before the first decision that did not count
yet: its reward, or that of one before it, may still come. Rewards are not kept, since they may be
corrected.
"""

from collections.abc import Mapping
from contextlib import suppress

import numpy as np

from service.analysis.checkpoints import Checkpoints, shadows_of
from service.analysis.columns import Columns
from service.analysis.history import DecisionHistory
from service.analysis.request import PolicyFields
from service.analysis.selected import SelectedDecisions
from service.analysis.walk import Walk
from service.bandits.heads.base import Meta, Stored, part
from service.errors import Damaged, UnknownSchema
from service.state import codec

LOOK_LAYOUT = 2
"""Number of the layout of a kept look. Raise it with every change of what a look keeps."""


class Look:
    """Look at a log that goes on where the last one stopped. stop: the last position before the
    first decision that does not count yet."""

    def __init__(
        self,
        checkpoints: Checkpoints,
        experiment: str,
        history: DecisionHistory,
        added: Mapping[str, PolicyFields],
        chosen: SelectedDecisions,
    ) -> None:
        end = history.place.position
        self.stop = min(end, end if chosen.open_from is None else chosen.open_from) - 1
        self._checkpoints, self._name, self._chosen = checkpoints, shadows_of(experiment), chosen
        self._same = {"history": history.began, "added": dict(added), "starts": chosen.starts}

    def resume(self, walk: Walk, by_start: Mapping[int, Columns]) -> int:
        """Take up the last look. Return the position up to which it has evaluated all decisions;
        0: there is none, or it cannot go on."""
        kept = self._checkpoints.load(self._name)
        if kept is None:
            return 0
        with suppress(Damaged, UnknownSchema):
            meta, arrays = codec.unpack(kept, LOOK_LAYOUT)
            position = int(meta["position"])
            now = self._chosen.before(position + 1).numbers
            # A row may have come late, and a decision may count that did not.
            if meta["same"] == self._same and np.array_equal(arrays["done"], now):
                walk.resume(meta["walk"], position, arrays["state"].tobytes())
                for start, columns in by_start.items():
                    columns.restore(meta["columns"][str(start)], part(arrays, f"{start}."))
                return position
        return 0

    def keep(self, walk: Walk, by_start: Mapping[int, Columns]) -> None:
        """Keep a walk that has stopped at `stop` for the next look."""
        if (found := walk.dump()) is None:
            return
        told, snapshot = found
        meta: Meta = {"same": self._same, "position": self.stop, "walk": told, "columns": {}}
        arrays: dict[str, Stored] = {
            "state": np.frombuffer(snapshot, np.uint8),
            "done": self._chosen.before(self.stop + 1).numbers,
        }
        for start, columns in by_start.items():
            meta["columns"][str(start)], own = columns.dump()
            arrays |= {f"{start}.{name}": array for name, array in own.items()}
        self._checkpoints.save(self._name, codec.pack(LOOK_LAYOUT, meta, arrays))
