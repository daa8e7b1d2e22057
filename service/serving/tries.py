"""Arms that policies have tried too seldom, with showings whose rewards are still open."""

from collections.abc import Container, Sequence
from weakref import WeakKeyDictionary

from service.bandits.candidates import Candidates
from service.state.learner import Learner


class Tries:
    """Counts what this process shows. A restart forgets it; the log has what was settled.

    _found   of recent candidates, which were untried at how many changes of the counts
    """

    def __init__(self) -> None:
        self._shown = WeakKeyDictionary[Learner, dict[str, int]]()
        self._changes = 0
        self._found = WeakKeyDictionary[Candidates, tuple[Learner, int, int, list[int]]]()

    def untried(
        self, learner: Learner, candidates: Candidates, outside: Container[str]
    ) -> list[int]:
        """Return the candidates that the policy is to try for their own sake. outside: those that
        are not of the catalogue."""
        counts = learner.counted, self._changes
        found = self._found.get(candidates)
        if found is not None and found[0] is learner and found[1:3] == counts:
            return found[3]
        untried = learner.untried(candidates, outside, self._shown.get(learner, {}))
        self._found[candidates] = learner, *counts, untried
        return untried

    def show(self, learner: Learner, arms: Sequence[str]) -> None:
        """Count arms that are about to be shown."""
        shown = self._shown.setdefault(learner, {})
        for arm in arms:
            tries = max(shown.get(arm, 0), learner.tries.get(arm, 0))
            if tries < learner.policy.min_tries:
                shown[arm] = tries + 1
                self._changes += 1
