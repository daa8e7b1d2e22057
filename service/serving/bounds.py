"""What one decision may take of memory and of the log."""

from service.bandits.policies.candidates import SELECTED, Candidates
from service.definition.select_request import RequestedArms
from service.errors import Invalid
from service.settings import Settings
from service.state.learner import Learner

CHEAP_MS = 0.5
"""What is estimated to take no longer takes little memory as well."""

SELECTION_MS = 6e-4
"""Of each arm of a selection that is too long to be remembered: to tell which of them differ."""

LEAST_CHANCE = 2
"""Bytes of a probability in the log, at least."""


class Bounds:
    """decision_bytes   of a row whose request names its arms: a catalogue's length is its owner's
    too_long         what is said of one that is longer
    """

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
        """Before it is decided. Raises Invalid where it would take too much; else milliseconds that
        looking through arms which nobody named before will take.

        named: by the request; inline: how many of them lie outside the catalogue
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
