"""Arms that policies have tried too seldom, with showings whose rewards are still open."""

from collections.abc import Container, Sequence
from weakref import WeakKeyDictionary

from service.bandits.candidates import Candidates
from service.bandits.policy import Policy
from service.state.decider import Decider
from service.state.decisions import DecisionFacts
from service.state.learner import Learner


class _Shown:
    """What this process shows of one policy.

    tries    of each arm, with those whose rewards are open
    found    of recent candidates, which to try, and under which settings and counts
    """

    def __init__(self) -> None:
        self.tries: dict[str, int] = {}
        self.changes = 0
        self.found = WeakKeyDictionary[Candidates, tuple[Policy, int, int, DecisionFacts]]()


class Tries:
    """Counts what this process shows. A restart forgets it; the log has what was settled."""

    def __init__(self) -> None:
        self._of = WeakKeyDictionary[Learner, _Shown]()

    def facts(
        self, decider: Decider, candidates: Candidates, outside: Container[str]
    ) -> DecisionFacts:
        """Return which candidates the policy is to try for their own sake. outside: those that are
        not of the catalogue."""
        learner = decider.learner
        shown = self._shown(learner)
        counts = learner.counted, shown.changes
        found = shown.found.get(candidates)
        # Settings that change make another policy.
        if found is not None and found[0] is learner.policy and found[1:3] == counts:
            return found[3]
        facts = decider.facts(candidates, outside, shown.tries)
        shown.found[candidates] = learner.policy, *counts, facts
        return facts

    def show(self, learner: Learner, arms: Sequence[str]) -> None:
        """Count arms that are about to be shown."""
        shown = self._shown(learner)
        for arm in arms:
            tries = max(shown.tries.get(arm, 0), learner.tries.get(arm, 0))
            if tries < learner.policy.min_tries:
                shown.tries[arm] = tries + 1
                shown.changes += 1

    def _shown(self, learner: Learner) -> _Shown:
        found = self._of.get(learner)
        if found is None:
            found = self._of[learner] = _Shown()
        return found
