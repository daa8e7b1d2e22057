"""Decisions that were answered before the log had them."""

from itertools import islice

from service.log.stores.base import DecisionRow


class Buffer:
    """At most `limit` rows, oldest first, each id once."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._rows: dict[tuple[str, str], DecisionRow] = {}

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def full(self) -> bool:
        return len(self._rows) >= self._limit

    def find(self, experiment: str, decision: str) -> DecisionRow | None:
        return self._rows.get((experiment, decision))

    def put(self, row: DecisionRow) -> DecisionRow | None:
        """The row that stands under this id: an earlier one stays. None: there is no room."""
        key = row.experiment, row.id
        if key not in self._rows and self.full:
            return None
        return self._rows.setdefault(key, row)

    def oldest(self, count: int) -> list[DecisionRow]:
        return list(islice(self._rows.values(), count))

    def drop(self, row: DecisionRow) -> None:
        """The log has it; nothing where it is not here."""
        self._rows.pop((row.experiment, row.id), None)
