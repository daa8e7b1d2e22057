"""Several decisions of one policy over the same candidates at once: a few products of matrices in
place of as many small ones each, since at fifty arms a call of numpy takes longer than its work.

What comes out is what each would come to by itself (`Learner.chances`, `rules.choose`): shares are
counts of wins, and where rounding might tell a count, that decision is made by itself.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from service.errors import NoFiniteScores, NotPositiveDefinite
from service.features import Array
from service.policies import rules
from service.policies.candidates import Candidates, Design
from service.policies.learner import Learner
from service.policies.rules import Slate
from service.policies.table import scale_of, thompson, ucb, upper
from service.posterior import RidgeHead
from service.posterior.rows import Index, safe, slack
from service.posterior.wins import TIE, Weights

MOST_ROWS = 1_024
"""Candidates up to which rows are put together; a decision on more has work enough."""

BLOCK_ROWS = 2560
"""Rows at a time: what is made of them stays in the cache."""


def decide(
    learner: Learner, contexts: Sequence[Array], candidates: Candidates, seeds: Sequence[int]
) -> list[tuple[Array, Slate]]:
    """As `engine.decide` of each, for one arm: probabilities, and what is shown.

    contexts: (context.width,) each. Raises NoFiniteScores.
    """
    try:
        chances = _chances(learner, np.array(contexts), candidates)
        p = rules.expect_whole(rules.floor(chances, learner.settings.epsilon))
    except (NotPositiveDefinite, FloatingPointError) as fault:
        raise NoFiniteScores(learner.name) from fault
    points = [rules.point_of(seed) for seed in seeds]
    found = []
    for own, index in zip(p, _choose(p, points).tolist(), strict=True):
        propensity = float(own[index])
        found.append((own, Slate([index], [propensity], propensity)))
    return found


def _choose(p: Array, points: Sequence[float]) -> Index:  # (B, K), (B,) -> (B,)
    """`rules.choose` by row."""
    index: Index = p.argmax(axis=1)
    open_ = (p[np.arange(len(p)), index] < 1).nonzero()[0]
    if len(open_):
        totals = p[open_].cumsum(axis=1)
        at = np.array(points)[open_] * totals[:, -1]
        drawn = (totals <= at[:, None]).sum(axis=1)
        for row in (drawn == p.shape[1]).nonzero()[0]:  # the product may round up to the end
            drawn[row] = np.flatnonzero(p[open_[row]])[-1]
        index[open_] = drawn
    return index


def _chances(learner: Learner, contexts: Array, candidates: Candidates) -> Array:  # (B, K)
    version, rule = learner.active, learner.family.rule
    head, encoder = version.head, version.encoder
    design = candidates.design(learner.view, learner.settings.per_arm)
    known = rule in (ucb, thompson) and isinstance(head, RidgeHead) and not version.predicts
    if not known or encoder.gradient is not None or len(design.part) > MOST_ROWS:
        return np.array([learner.chances(context, candidates) for context in contexts])
    assert isinstance(head, RidgeHead)
    size = max(1, BLOCK_ROWS // len(design.part))
    blocks = []
    for start in range(0, len(contexts), size):
        block = contexts[start : start + size]
        rows = design.part * learner.view.context_part(block)[:, None, :]
        phi = encoder(rows.reshape(-1, rows.shape[-1]))
        if rule is ucb:
            blocks.append(_highest(head, phi, design, learner))
        else:
            blocks.append(_most_wins(head, phi, design, learner, block, candidates))
    return np.concatenate(blocks)


def _highest(head: RidgeHead, phi: Array, design: Design, learner: Learner) -> Array:  # (B, K)
    """Of the arms with the highest bound, each an equal share."""
    count = len(design.part)
    rank = min(count, phi.shape[1])
    scores = upper(head, *head.posterior.spread(phi), rank, learner.settings).reshape(-1, count)
    best = scores.max(axis=1, keepdims=True)
    tied = scores >= best - TIE * np.abs(best)
    shares = tied / (tied @ design.counts)[:, None]
    return np.asarray(shares.take(design.of, axis=1))


def _most_wins(
    head: RidgeHead,
    phi: Array,  # (B U, m)
    design: Design,
    learner: Learner,
    contexts: Array,
    candidates: Candidates,
) -> Array:  # (B, K)
    """The share of the draws that each arm wins. A decision with ties is made by itself."""
    bank, count = learner.active.bank, len(design.part)
    weights = head.posterior.draws(bank, scale_of(learner.settings))
    alike = design.counts.max() > 1
    wins = None if alike else _wins(phi.reshape(-1, count, phi.shape[1]), weights)
    if wins is None:
        return np.array([learner.chances(context, candidates) for context in contexts])
    p = (wins / bank.draws).take(design.of, axis=1)
    for tied in (wins.sum(axis=1) != bank.draws).nonzero()[0]:
        p[tied] = learner.chances(contexts[tied], candidates)
    return np.asarray(p)


def _wins(phi: Array, weights: Weights) -> Index | None:  # (B, U, m) -> (B, U)
    """Draws that each row wins, by decision: some twice where rows tie. None where single precision
    cannot tell."""
    width, draws = weights.exact.shape
    apart = phi - phi.mean(axis=1, keepdims=True)  # what rows have in common decides nothing
    size = float(np.sqrt(np.vecdot(apart, apart).max()))
    lengths = weights.lengths
    if not (safe(size, size) and safe(lengths.min(), lengths.max())):
        return None
    margin = slack(width, size, lengths)
    table = apart.astype(np.float32).reshape(-1, width).dot(weights.single)
    table = table.reshape(len(phi), -1, draws)
    least = table.max(axis=1, keepdims=True)
    least -= margin.astype(np.float32)
    close = table >= least
    bits = np.packbits(close, axis=2)
    words = bits.view(np.uint64) if bits.shape[2] % 8 == 0 else bits
    wins = np.asarray(np.bitwise_count(words).sum(axis=2, dtype=np.intp))
    open_ = (wins.sum(axis=1) > draws).nonzero()[0]
    if len(open_):
        wins[open_] = _settled(phi[open_], weights.exact, close[open_], wins[open_])
    return wins


def _settled(
    phi: Array,  # (B, U, m)
    weights: Array,  # (m, M)
    close: npt.NDArray[np.bool_],  # (B, U, M)
    wins: Index,
) -> Index:  # (B, U)
    """Without the wins of those close to the largest product that do not have it in float64."""
    decision, draw = (np.add.reduce(close, axis=1, dtype=np.uint16) > 1).nonzero()
    which, row = close[decision, :, draw].nonzero()
    decision, draw = decision[which], draw[which]
    scores = np.vecdot(phi[decision, row], weights.T[draw])
    first = np.flatnonzero(np.diff(which, prepend=-1))
    best = np.maximum.reduceat(scores, first)[which]
    lost = scores < best - TIE * np.abs(best)
    np.subtract.at(wins, (decision[lost], row[lost]), 1)
    return wins
