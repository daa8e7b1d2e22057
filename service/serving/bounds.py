"""Limits of one decision's memory and of its row."""

from service.bandits.policies.candidates import SELECTED, Candidates
from service.definition.select_request import RequestedArms
from service.errors import Invalid
from service.settings import Settings
from service.state.learner import Learner

CHEAP_MS = 0.5
"""A decision that is estimated to take no longer needs little memory as well."""

SELECTION_MS = 6e-4
"""Per arm of a selection too long for the cache: to find the distinct ones."""

LEAST_CHANCE = 2
"""Bytes of a probability in a row, at least."""


class Bounds:
    """decision_bytes: of a row whose request names its arms; the owner chose a catalogue's size."""

    def __init__(self, settings: Settings) -> None:
        self.decision_bytes = settings.max_decision_bytes
        self._memory = settings.max_select_memory_bytes

    @property
    def too_long(self) -> Invalid:
        most = self.decision_bytes
        return Invalid(f"would make a decision of more than {most} bytes", path="arms")

    def expect_fitting(
        self,
        learner: Learner,
        candidates: Candidates,
        slots: int,
        named: RequestedArms | None = None,
        inline: int = 0,
    ) -> float:
        """Raises Invalid for a decision beyond the limits. Returns the milliseconds of finding the
        distinct ones among arms that no request has named before.

        named: by the request; inline: how many of these lie outside the catalogue
        """
        count = len(candidates.ids)
        if (wanted := learner.prices.bytes(count, slots)) > self._memory:
            raise Invalid(
                f"would take some {wanted:.1e} bytes of memory, and may take {self._memory:.1e}: "
                "name fewer arms, or rank one",
                path="arms",
            )
        if named is None:
            return 0.0
        ids = len(candidates.written_ids) * (1 + inline / count)  # with their features once more
        if ids + LEAST_CHANCE * count > self.decision_bytes:
            raise self.too_long
        return SELECTION_MS * count if count > SELECTED else 0.0
