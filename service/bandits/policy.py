"""What a kind of policy is made of: encoder, head and rule, which turn contexts into chances."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np

from service.bandits.candidates import Candidates, DistinctArms
from service.bandits.heads import KEPT_DRAWS
from service.bandits.linalg import Index
from service.bandits.makers import HeadMaker, Sizes
from service.bandits.net import Net
from service.bandits.rules import Formula, Scores, win_shares
from service.bandits.settings import Training
from service.bandits.version import Version
from service.features.schema import Array

BLOCK_CELLS = 2**16
"""Numbers of phi in a block of contexts: the block stays in the cache. 50 arms of 10 columns: 131
contexts at a time; 1,000 arms of 128: each context alone, since its own work outweighs the calls
of numpy, and blocks of two took twice as long."""

BLOCK_SCORES = 2**19
"""Scores of all draws in a block, 2 MB in single precision."""


class Rule(ABC):
    """How scores and probabilities follow from a version.

    explores   chance has a part in the choice, other than among ties
    draws      posterior draws that scores are ranked by: 1 of a bound, 0 where the mean says all
    away       how far a direction to search in lies from the mean, in posterior widths
    """

    explores: bool = False
    draws: int = 0
    away: float = 1.0

    @abstractmethod
    def scores(
        self, version: Version, rows: Array, phi: Array, arms: Sequence[str]
    ) -> Array:  # (n, view.width), (n, m) -> (M, n)
        """Return a row for each posterior draw; one row where nothing is drawn."""

    def shares(
        self, version: Version, rows: Array, phi: Array, arms: Sequence[str], like: Index
    ) -> Array:  # (b U, view.width), (b U, m) -> (b, U)
        """Return the share of the draws that an arm of each row wins, in each of b contexts; b is 1
        unless the rule `batches`. like: (U,) arms that are like each row."""
        return win_shares(self.scores(version, rows, phi, arms), like)[None]

    def formula(self, version: Version) -> Formula | None:
        """Return the closed form of `shares` by `scores`; None: they are shares of draws."""
        return None

    def floor(self, version: Version) -> float:
        """Return the share of uniform choice that is part of the rule."""
        return 0.0

    def batches(self, version: Version) -> bool:
        """Whether `shares` of several contexts at once have the bits of each alone."""
        return False


@dataclass(frozen=True)
class Policy:
    """The parts of a kind; its settings are converted once (`Kind.policy`).

    head        makes what is learned from every settlement; None: nothing is between trainings
    rule        scores, and shares of wins
    net         whose features the head sees; None: it sees rows
    predicts    the net's own output is the mean, the head holds what is left of the reward
    training    when a net would be trained, even where the policy has none
    in_order    rewards are learned in the order of their decisions (`service.bandits.order`)
    draws       of the bank
    bank_seed   of the bank; another seed gives other draws
    retrieve    arms a direction that are searched for where a request names none
    min_tries   settlements up to which arms are tried for their own sake
    """

    head: HeadMaker | None
    rule: Rule
    net: Net | None = None
    predicts: bool = False
    training: Training | None = None
    in_order: bool = False
    draws: int = 1
    bank_seed: int = 0
    retrieve: int | None = None
    min_tries: int = 0

    @property
    def learns(self) -> bool:
        """Whether rewards change what it shows."""
        return self.head is not None or self.net is not None

    @property
    def sees_features(self) -> bool:
        """Whether it looks at context and arm features at all."""
        return self.net is not None if self.head is None else self.head.sees_features

    @property
    def disjoint(self) -> bool:
        """Whether each arm has a head of its own."""
        return self.head is not None and self.head.disjoint

    @cached_property
    def per_arm(self) -> bool:
        """Whether arms of equal features are told apart by their ids."""
        return self.net is None if self.head is None else self.head.per_arm

    def draw_numbers(self, sizes: Sizes) -> float:
        """Count the numbers of the draws: of each weight of the first two layers under a mask, of
        each arm, or of each column of a shared head in four forms."""
        if self.net is not None and self.net.masks:
            return 2.0 * self.net.masks * prod([*self.net.hidden, 1][:2])
        if self.per_arm:
            return float(min(sizes.arms * self.draws, KEPT_DRAWS))
        return 4.0 * sizes.columns * self.draws

    def propensities(
        self, version: Version, contexts: Array, candidates: Candidates
    ) -> Array:  # (B, context.width) -> (B, K)
        """Return the probability of each candidate in each context, before the floor of epsilon."""
        arms = candidates.distinct_arms(version.view, self.per_arm)
        times = self._times(version, contexts)
        size = self._block_size(version, arms) if len(times) > 1 else 1
        blocks = [
            self._shares(version, arms, times[start : start + size])
            for start in range(0, len(times), size)
        ]
        shares = blocks[0] if len(blocks) == 1 else np.concatenate(blocks)
        return shares if arms.in_order else shares[:, arms.of]

    def score(self, version: Version, context: Array, candidates: Candidates) -> Scores:
        """Return the scores of the distinct candidates, from which slates are drawn."""
        arms = candidates.distinct_arms(version.view, self.per_arm)
        rows = arms.part * version.view.context_part(context)
        phi = version.encoder(rows)
        table = self.rule.scores(version, rows, phi, arms.ids)
        return Scores(table, arms.of, arms.counts, self.rule.formula(version))

    def _times(self, version: Version, contexts: Array) -> Array:  # (b, view.width)
        if not version.view.width:
            return np.empty((len(contexts), 0))
        if len(contexts) == 1:  # in half the time
            return version.view.context_part(contexts[0])[None]
        return version.view.context_part(contexts)

    def _block_size(self, version: Version, arms: DistinctArms) -> int:
        """Choose the number of contexts at a time."""
        if not self.rule.batches(version):
            return 1
        count = len(arms.part)
        cells = BLOCK_CELLS // (count * max(version.columns, 1))
        return max(1, min(cells, BLOCK_SCORES // (count * max(self.rule.draws, 1))))

    def _shares(self, version: Version, arms: DistinctArms, times: Array) -> Array:  # (b, U)
        rows = arms.part * times[:, None, :]
        rows = rows.reshape(len(times) * len(arms.part), rows.shape[2])
        return self.rule.shares(version, rows, version.encoder(rows), arms.ids, arms.counts)
