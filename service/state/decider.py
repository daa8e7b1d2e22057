"""What decides: a policy by one of its versions."""

from collections.abc import Container, Mapping
from random import Random

import msgspec
import numpy as np

from service.bandits.candidates import Candidates
from service.bandits.policy import Policy
from service.bandits.rules import Scores
from service.bandits.version import Version
from service.features.schema import Array
from service.features.view import View
from service.state.decisions import NO_FACTS, DecisionFacts
from service.state.learner import Learner


class Decider(msgspec.Struct, frozen=True, gc=False):
    """A policy, and the version of it that decides: the one that serves, or its challenger in a
    rollout."""

    learner: Learner
    version: Version

    @classmethod
    def serving(cls, learner: Learner) -> "Decider":
        """Return a policy by the version that serves."""
        return cls(learner, learner.active)

    @classmethod
    def challenging(cls, learner: Learner) -> "Decider":
        """Return a policy by its challenger."""
        assert learner.challenger is not None
        return cls(learner, learner.challenger.version)

    @property
    def name(self) -> str:
        """Name of the policy."""
        return self.learner.name

    @property
    def label(self) -> str:
        """Name of the policy and number of the version, as a `model_version` begins."""
        return f"{self.learner.name}/{self.version.number}"

    @property
    def policy(self) -> Policy:
        """Kind and settings of the policy."""
        return self.learner.policy

    @property
    def view(self) -> View:
        """The columns that the policy sees, under the scaling of the version."""
        return self.version.view

    @property
    def epsilon(self) -> float:
        """The share of uniform choice: that of the settings, and that of the rule."""
        own, given = self.policy.rule.floor(self.version), self.learner.settings.epsilon
        return own + (1 - own) * given if own else given

    def score(self, context: Array, candidates: Candidates) -> Scores:
        """Return the scores of the distinct candidates."""
        return self.policy.score(self.version, context, candidates)

    def tells_apart(self, candidates: Candidates) -> bool:
        """Whether candidates differ in what the policy sees: else its scores have no part in a
        choice."""
        return len(candidates.distinct_arms(self.view, self.policy.per_arm).ids) > 1

    def directions(self, context: Array, count: int, seed: int) -> Array:  # (view.width, 1 + count)
        """Return vectors whose product with the arm's part of a row is its score under the mean,
        and under `count` posterior draws that the seed chooses. Those of an upper bound are `alpha`
        times as far from the mean: with |z| = 1 the largest product is the bound."""
        version = self.version
        assert version.head is not None
        posterior = version.head.posterior
        assert posterior is not None
        bank = version.bank if version.bank.draws > count else self.learner.search_directions
        draws = Random(seed).sample(range(bank.draws), count)
        part = self.view.context_part(context)
        return posterior.directions(bank, draws, self.policy.rule.away) * part[:, None]

    def facts(
        self, candidates: Candidates, outside: Container[str] = (), shown: Mapping[str, int] = {}
    ) -> DecisionFacts:
        """Return what bounds the probabilities of a decision among candidates. Those with fewer
        than `min_tries` settlements of what the policy cannot tell apart from them are tried.
        outside: arms that are not of the catalogue; shown: tries that count more, by arm."""
        least = self.policy.min_tries
        if not least or not self.learner.settings.learning:
            return NO_FACTS
        known, ids = self.learner.tries, candidates.ids
        counts = np.array([max(known.get(arm, 0), shown.get(arm, 0)) for arm in ids])
        if not self.policy.per_arm:
            of = candidates.distinct_arms(self.view, per_arm=False).of
            counts = np.bincount(of, weights=counts)[of]
        found: list[int] = np.flatnonzero(counts < least).tolist()
        if not found:
            return NO_FACTS
        return DecisionFacts(tuple(index for index in found if ids[index] not in outside))

    def allows(self, facts: DecisionFacts, candidates: Candidates, outside: Container[str]) -> bool:
        """Whether the facts of a decision can be those of this state. Showings whose rewards are
        open count as well, so there may be fewer to try than this state alone says."""
        return set(facts.untried) <= set(self.facts(candidates, outside).untried)
