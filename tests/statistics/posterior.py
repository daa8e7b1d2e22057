"""What a decision's probabilities have to be, found another way: from the sums of the head's
snapshot, by inverses and independent draws, without its factors, its bank or its rules.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import expit

from service.bandits.candidates import Candidates
from service.bandits.heads import Bank
from service.bandits.rules import TIE
from service.state.learner import Learner
from tests.statistics.shop import Array

CHUNK = 50_000
RIDGE_SUMS = "A", "b", "s", "rewards"


def rows_of(learner: Learner, context: Array, candidates: Candidates) -> Array:
    """phi of every arm, (K, m)."""
    return learner.active.encoder(design_of(learner, context, candidates))


def design_of(learner: Learner, context: Array, candidates: Candidates) -> Array:
    x = np.hstack([np.tile(context, (len(candidates.ids), 1)), candidates.x])
    return learner.view.rows(x)


def kinds_of(learner: Learner, phi: Array) -> Array:
    """(K,) which distinct arm each is: those of equal rows win together, unless they have a head
    of their own."""
    if learner.policy.per_arm:
        return np.arange(len(phi))
    return np.unique(phi.round(12), axis=0, return_inverse=True)[1].reshape(-1)


@dataclass
class Posterior:
    """Of each arm's score, by the formulas: mean, covariance over arms, noise and settlements."""

    mean: Array  # (K,)
    covariance: Array  # (K, K)
    noise: Array  # (K,)
    held: Array  # (K,)

    @property
    def width(self) -> Array:
        return np.asarray(np.sqrt(np.diag(self.covariance)))


def posterior_of(learner: Learner, context: Array, candidates: Candidates) -> Posterior:
    phi = rows_of(learner, context, candidates)
    arrays = learner.active.head.arrays()  # type: ignore[union-attr]
    if learner.settings.kind == "neural_glm_ts":
        return _logistic(phi, arrays)
    if learner.policy.disjoint:
        found = _disjoint(learner, phi, arrays, candidates)
    elif "gradient.sums" in arrays or "gradient.rows" in arrays:
        found = _gradient(learner, phi, arrays)
    else:
        once = "once." if "once.A" in arrays else ""
        found = _ridge(phi, {name: arrays[once + name] for name in RIDGE_SUMS})
    found.mean = found.mean + learner.active.encoder.predict(phi) * learner.policy.predicts
    return found


def _ridge(phi: Array, sums: dict[str, Array]) -> Posterior:
    """Rewards are centred on their mean, which is the prior's."""
    S, (n, total, rr) = np.linalg.inv(sums["A"]), sums["rewards"]
    level, count = total / n, len(phi)
    b, squares = sums["b"] - level * sums["s"], rr - n * level**2
    rate = 0.01 * squares / n + (squares - b @ S @ b) / 2
    noise = np.sqrt(rate / (1.0 + n / 2 - 1.0))
    mean = level + phi @ S @ b
    return Posterior(mean, noise**2 * phi @ S @ phi.T, np.full(count, noise), np.full(count, n))


def _disjoint(
    learner: Learner, phi: Array, arrays: dict[str, Array], candidates: Candidates
) -> Posterior:
    """The noise of an arm as the head says it: its formula has a test of its own."""
    head: Any = learner.active.head
    n, total, _ = arrays["rewards"]
    level = total.sum() / n.sum()
    S, b = np.linalg.inv(arrays["A"]), arrays["b"] - level * arrays["s"]
    count = len(candidates.ids)
    ridge = learner.settings.ridge  # type: ignore[union-attr]
    mean, squares = np.full(count, level), np.square(phi).sum(axis=1) / ridge  # of arms never shown
    held, noise = head.evidence(candidates.ids)
    for index, arm in enumerate(candidates.ids):
        if (row := head._rows.get(arm)) is not None:
            mean[index] += phi[index] @ S[row] @ b[row]
            squares[index] = phi[index] @ S[row] @ phi[index]
    return Posterior(mean, np.diag(noise**2 * squares), noise, held)


def _gradient(learner: Learner, phi: Array, arrays: dict[str, Array]) -> Posterior:
    """Z from what the head keeps of J, p x p, and inverted."""
    layout, ridge = learner.active.encoder.layout, learner.settings.ridge  # type: ignore[union-attr]
    sums = {name: arrays[f"ridge.{name}"] for name in RIDGE_SUMS}
    size = len(sums["b"])
    found = _ridge(phi[:, :size], sums)
    if "gradient.sums" in arrays:
        Z = np.diag(ridge + arrays["gradient.sums"])
    else:
        J = layout.dense(arrays["gradient.rows"])
        Z = ridge * np.eye(layout.parameters) + (J.T * arrays["gradient.counts"]) @ J
    J = layout.dense(phi[:, size:])
    found.covariance = found.noise[0] ** 2 * J @ np.linalg.inv(Z) @ J.T
    return found


def _logistic(phi: Array, arrays: dict[str, Array]) -> Posterior:
    base, n, _, taken, information = arrays["scalars"]
    variance = 2 * np.sqrt((taken + 1) / (information + 0.25))
    S, count = np.linalg.inv(arrays["A"]), len(phi)
    mean = base + phi @ arrays["beta"]
    noise = np.full(count, np.sqrt(variance))
    return Posterior(mean, variance * phi @ S @ phi.T, noise, np.full(count, n))


def predictions_of(learner: Learner, context: Array, candidates: Candidates) -> Array:
    """(members or masks, K): what each says, one solved and one net evaluated after another."""
    phi = rows_of(learner, context, candidates)
    if learner.settings.kind == "bootstrap_ensemble":
        head: Any = learner.active.head
        noise = posterior_of(learner, context, candidates).noise[0]
        n, total, _ = head.arrays()["once.rewards"]
        level, z = total / n, Bank(learner.settings.members, learner.name).matrix(phi.shape[1])
        b = head.b - level * head.s + np.sqrt(head._ridge) * noise * z
        return level + np.array(
            [phi @ np.linalg.solve(A, own) for A, own in zip(head.A, b, strict=True)]
        )
    encoder = learner.active.encoder
    assert encoder.trained is not None
    assert encoder.output is not None
    rows, said = design_of(learner, context, candidates), []
    for masks in zip(*encoder.masks, strict=True):
        h = rows
        for (weight, bias), mask in zip(encoder.trained.layers, masks, strict=False):
            h = np.maximum(h @ weight + bias, 0.0) * mask
        weight, bias = encoder.trained.layers[-1]
        said.append(((h @ weight + bias) @ encoder.output[0] + encoder.output[1])[:, 0])
    told = np.array(said)
    return told - told.mean(axis=0) + posterior_of(learner, context, candidates).mean


def point_scores(learner: Learner, context: Array, candidates: Candidates) -> Array:
    """Mean of every arm, with alpha widths above it where the policy is an upper bound."""
    kind, settings = learner.settings.kind, learner.settings
    if kind in ("bootstrap_ensemble", "mc_dropout"):
        said = predictions_of(learner, context, candidates)
        return np.asarray(said.mean(axis=0) + settings.alpha * said.std(axis=0))
    if kind == "static":
        return static_scores(learner, context, candidates)
    if not learner.policy.sees_features:
        return rates_of(learner, candidates)
    found = posterior_of(learner, context, candidates)
    if not hasattr(settings, "alpha"):
        return found.mean
    return (
        found.mean + alpha_of(learner, found, rows_of(learner, context, candidates)) * found.width
    )


def alpha_of(learner: Learner, found: Posterior, phi: Array) -> Array:
    """A constant, or the bound that holds at any time."""
    alpha = learner.settings.alpha  # type: ignore[union-attr]
    if alpha != "anytime":
        return np.full(len(phi), alpha)
    seen = found.held * (found.width / found.noise) ** 2
    if learner.policy.per_arm:
        return np.asarray(np.sqrt(1.0 + np.log1p(seen)))
    distinct = len(np.unique(kinds_of(learner, phi)))
    doubt = 2.0 if learner.policy.net is not None else 1.0
    return np.asarray(np.sqrt(0.25 + doubt * np.log1p(seen / distinct)))


def static_scores(learner: Learner, context: Array, candidates: Candidates) -> Array:
    """The trained net layer by layer; before the training all arms are alike."""
    encoder = learner.active.encoder
    h = design_of(learner, context, candidates)
    if encoder.trained is None or encoder.output is None:
        return np.zeros(len(h))
    for weight, bias in encoder.trained.layers:
        h = np.maximum(h @ weight + bias, 0.0)
    return np.asarray(expit((h @ encoder.output[0] + encoder.output[1])[:, 0]))


def clicks_of(learner: Learner, candidates: Candidates) -> Array:  # (K, 2)
    head: Any = learner.active.head
    return np.array([head._beta(arm) for arm in candidates.ids])


def rates_of(learner: Learner, candidates: Candidates) -> Array:
    counts = clicks_of(learner, candidates)
    return np.asarray(counts[:, 0] / counts.sum(axis=1))


def softmax_of_scores(learner: Learner, context: Array, candidates: Candidates) -> Array:
    """What is often logged instead, and is no propensity."""
    kind = learner.settings.kind
    if kind == "popularity":
        scores = rates_of(learner, candidates)
    elif kind in ("bootstrap_ensemble", "mc_dropout"):
        scores = predictions_of(learner, context, candidates).mean(axis=0)
    else:
        scores = point_scores(learner, context, candidates)
    weights = np.exp(scores - scores.max())
    return weights / weights.sum()


def best_of(scores: Array) -> Array:
    """1 / #ties for the arms that tie for the best."""
    tied = scores >= scores.max() - 1_000 * TIE * abs(scores.max())
    return tied / tied.sum()


def winning_shares(
    learner: Learner, context: Array, candidates: Candidates, draws: int, seed: int
) -> Array:
    """(K,) how often each arm wins among independent draws of the posterior."""
    rng = np.random.default_rng(seed)
    phi = rows_of(learner, context, candidates)
    kinds = kinds_of(learner, phi)
    _, first, sizes = np.unique(kinds, return_index=True, return_counts=True)
    if learner.settings.kind == "popularity":
        a, b = clicks_of(learner, candidates).T
    else:
        found = posterior_of(learner, context, candidates)
        covariance = found.covariance[np.ix_(first, first)]
        values, vectors = np.linalg.eigh(covariance)
        root = vectors * np.sqrt(np.maximum(values, 0.0))
    wins = np.zeros(len(first))
    for start in range(0, draws, CHUNK):
        count = min(CHUNK, draws - start)
        if learner.settings.kind == "popularity":
            scores = rng.beta(a, b, size=(count, len(a)))
        else:
            scores = found.mean[first] + rng.standard_normal((count, len(first))) @ root.T
        wins += np.bincount(scores.argmax(axis=1), minlength=len(first))
    return np.asarray((wins / draws / sizes)[kinds])
