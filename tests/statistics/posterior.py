"""What a decision's probabilities have to be, found another way: from the sums `(A, b, rr, n)` of
the head's snapshot, by inverses and independent draws, without its factors, its bank or its rules.
"""

from typing import Any

import numpy as np

from service.policies.learner import Candidates, Learner
from service.policies.rules import TIE
from tests.statistics.shop import Array

CHUNK = 50_000


def rows_of(learner: Learner, context: Array, candidates: Candidates) -> Array:
    """phi of every arm, (K, m)."""
    x = np.hstack([np.tile(context, (len(candidates.ids), 1)), candidates.x])
    return learner.active.encoder(learner.view.rows(x))


def kinds_of(learner: Learner, phi: Array) -> Array:
    """(K,) which distinct arm each is: those of equal rows win together, unless they have a head
    of their own."""
    if learner.per_arm:
        return np.arange(len(phi))
    return np.unique(phi.round(12), axis=0, return_inverse=True)[1].reshape(-1)


def sums_of(learner: Learner, candidates: Candidates) -> tuple[Array, Array, float]:
    """A (K, m, m) and b (K, m) of every arm, and the noise's standard deviation."""
    head: Any = learner.active.head
    arrays = head.arrays()
    A, b = arrays["A"], arrays["b"]
    rr, n = arrays["scalars"]
    if not learner.disjoint:
        stack, own = (A[None], b[None]), [0] * len(candidates.ids)
    else:
        stack, own = (A, b), [head._rows[arm] for arm in candidates.ids]
    explained = sum(bb @ np.linalg.inv(AA) @ bb for AA, bb in zip(*stack, strict=True))
    variance = (0.01 + (rr - explained) / 2) / (1.0 + n / 2 - 1.0)
    return stack[0][own], stack[1][own], float(np.sqrt(variance))


def point_scores(learner: Learner, context: Array, candidates: Candidates) -> Array:
    """Mean of every arm, with alpha widths above it where the policy is an upper bound."""
    phi = rows_of(learner, context, candidates)
    A, b, noise = sums_of(learner, candidates)
    S = np.linalg.inv(A)
    mean = np.einsum("km,kmn,kn->k", phi, S, b) + learner.active.encoder.predict(phi) * (
        learner.family.predicts
    )
    width = noise * np.sqrt(np.einsum("km,kmn,kn->k", phi, S, phi))
    return mean + getattr(learner.settings, "alpha", 0.0) * width


def softmax_of_scores(learner: Learner, context: Array, candidates: Candidates) -> Array:
    """What is often logged instead, and is no propensity."""
    if learner.settings.kind == "popularity":
        assert learner.active.head is not None
        scores = learner.active.head.mean(np.zeros((len(candidates.ids), 0)), candidates.ids)
    else:
        scores = point_scores(learner, context, candidates)
    weights = np.exp(scores - scores.max())
    return weights / weights.sum()


def best_of(scores: Array) -> Array:
    """1 / #ties for the arms that tie for the best."""
    tied = scores >= scores.max() - 100 * TIE * abs(scores.max())
    return tied / tied.sum()


def winning_shares(
    learner: Learner, context: Array, candidates: Candidates, draws: int, seed: int
) -> Array:
    """(K,) how often each arm wins among independent draws of the posterior."""
    rng = np.random.default_rng(seed)
    phi = rows_of(learner, context, candidates)
    kinds = kinds_of(learner, phi)
    _, first, sizes = np.unique(kinds, return_index=True, return_counts=True)
    wins = np.zeros(len(first))
    for start in range(0, draws, CHUNK):
        count = min(CHUNK, draws - start)
        scores = _draw(learner, candidates, phi, first, count, rng)
        wins += np.bincount(scores.argmax(axis=1), minlength=len(first))
    return np.asarray((wins / draws / sizes)[kinds])


def _draw(
    learner: Learner,
    candidates: Candidates,
    phi: Array,
    first: Array,
    count: int,
    rng: np.random.Generator,
) -> Array:  # (count, distinct arms)
    """One weight vector a draw: one for all arms, or one an arm; or one click rate an arm."""
    if learner.settings.kind == "popularity":
        head: Any = learner.active.head
        a, b = np.array([head._beta(arm) for arm in candidates.ids]).T
        return rng.beta(a, b, size=(count, len(a)))
    A, b, noise = sums_of(learner, candidates)
    if not learner.disjoint:
        S = np.linalg.inv(A[0])
        w = rng.multivariate_normal(S @ b[0], noise**2 * S, size=count, method="cholesky")
        return w @ phi[first].T
    columns = []
    for AA, bb, row in zip(A, b, phi, strict=True):
        S = np.linalg.inv(AA)
        w = rng.multivariate_normal(S @ bb, noise**2 * S, size=count, method="cholesky")
        columns.append(w @ row)
    return np.stack(columns, axis=1)
