"""Every kind of policy in one table: a head and a rule. A net before the head is in the settings of
the kinds that have one (`settings.Network`)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from service.policies.encoder import Encoder
from service.policies.rules import highest
from service.policies.settings import PolicySettings, Thompson
from service.policies.version import Version
from service.posterior import (
    Array,
    BetaHead,
    DisjointRidgeHead,
    EnsembleHead,
    GradientHead,
    Head,
    LogisticHead,
    RidgeHead,
)
from service.posterior.rows import Rows, Single, Whole, safe, slack

Rule = Callable[[Version, Array, Array, Sequence[str], Any], Array]
"""(version, rows (n, view.width), phi (n, m), arms, settings) -> scores (M, n)."""

Counts = npt.NDArray[np.intp]
Chances = Callable[[Version, Rows, Sequence[str], Counts, Any], Array | None]
"""(version, phi (n, m), arms, arms like each row (n,), settings) -> (n,): the share of the draws
that an arm of each row wins; None where the table of the rule is as good."""

TABLE = 2**17
"""Scores up to which arms with draws of their own are put into a table: 256 arms at 512 draws."""

MANY = 2**21
"""Multiplications from which on single precision says first which rows have a chance."""

FIRST_DOUBT, NET_DOUBT = 0.25, 2.0
"""The 1/4 and, with a net, the k of `anytime`."""


def ucb(version: Version, rows: Array, phi: Array, arms: Sequence[str], settings: Any) -> Array:
    """x^T mu + alpha sigma_hat sqrt(x^T S x) (Li et al. 2010; Chu et al. 2011)."""
    assert version.head is not None
    if isinstance(version.head, RidgeHead):
        return _ridge_ucb(version, version.head, phi, settings)
    width = version.head.width(phi, arms)
    return bound(version, phi, version.mean(phi, arms), width, arms, settings)


def _ridge_ucb(version: Version, head: RidgeHead, phi: Array, settings: Any) -> Array:
    """The same where all rows share a ridge head: widths and means in one product."""
    scores = upper(head, *head.posterior.spread(phi), min(phi.shape), settings)
    if version.predicts:
        scores += version.offset(phi)
    return np.asarray(scores[None])


def upper(head: RidgeHead, mean: Any, variance: Any, rank: int, settings: Any) -> Any:
    """mean + alpha width, of the mean's type, the terms of `anytime` in place."""
    noise, alpha = head.posterior.noise, settings.alpha
    if alpha == "anytime":
        bonus = np.log1p(variance * (head.n / rank))
        if settings.has_net:
            bonus *= NET_DOUBT
        bonus += FIRST_DOUBT
        bonus *= variance
        width = np.sqrt(bonus, out=bonus)
        width *= noise
    else:
        width = np.sqrt(variance)
        width *= alpha * noise
    width += mean
    return width


def ucb_chances(
    version: Version, rows: Rows, arms: Sequence[str], like: Counts, settings: Any
) -> Array | None:
    """Where single precision leaves few rows to be looked at."""
    head = version.head
    if not isinstance(head, RidgeHead) or len(rows) * len(head.b) ** 2 < MANY:
        return None
    posterior, shift = head.posterior, version.shift
    found = posterior.spread_roughly(rows, shift)
    if found is None:
        return None
    rank, mean, variance = min(len(rows), len(head.b)), found.mean, found.variance
    scores = upper(head, mean, variance, rank, settings)
    steepest = 1.0
    if settings.alpha != "anytime":
        steepest = settings.alpha
    else:  # of s sqrt(1/4 + k log(1 + r s^2)), k <= 2
        steepest = 8.0 + float(np.sqrt(2 * np.log1p(head.n * float(variance.max()))))
    doubt = found.error * (1.0 + posterior.noise * steepest)
    doubt += 1e-6 * float(np.abs(scores).max() + np.abs(mean).max())

    def exact(phi: Array) -> Array:
        found: Array = upper(head, *posterior.spread(phi), rank, settings)
        return found if shift is None else found + phi @ shift

    return _exactly(scores, 2 * doubt, rows, like, exact)


def bound(
    version: Version, phi: Array, mean: Array, width: Array, arms: Sequence[str], settings: Any
) -> Array:
    """mean + alpha width, (1, n)."""
    alpha = settings.alpha
    if alpha == "anytime":
        assert version.head is not None
        alpha = anytime(version.head, min(phi.shape), width, arms, settings)
    return np.atleast_2d(mean + alpha * width)


def anytime(
    head: Head, rank: int, width: Array, arms: Sequence[str], settings: Any
) -> Array:  # (n,)
    """alpha of each row, from v = (width / sigma_hat)^2 and the n settlements of its head.

        sqrt(1/4 + k log(1 + n v / U))   where U rows share a head (as many of them as can differ:
                                         at most its dimensions); k = 2 on features that a net was
                                         fitted to the same rewards for, else 1
        sqrt(1 + log(1 + n v))           where each row has a head of its own

    A constant alpha that is good on the mean gets stuck on one stream in ten: a row that failed a
    few times by chance is never shown again. Here what is passed over is shown again in time, at a
    regret that grows with the log of it, as in the indices of Audibert & Bubeck 2009 (MOSS) and
    Lattimore 2015: 1 / v is the count of a row, n / U what it would be by even shares.

    Zooplus, linucb on crossed features, 16 streams: mean .5072, worst .5052; constant 2: .5059,
    worst .4823; 3: .5058, worst .5038. neural_linucb, 4 streams: k = 2 .5044, worst .5037; k = 1
    .4987, worst .4822. Disjoint linucb with 1/4 in place of 1 got stuck on one stream in four.
    """
    held, noise = head.evidence(arms)
    ratio = held * np.square(width / noise)
    if settings.per_arm:
        return np.asarray(np.sqrt(1.0 + np.log1p(ratio)))
    doubt = NET_DOUBT if settings.has_net else 1.0
    return np.asarray(np.sqrt(FIRST_DOUBT + doubt * np.log1p(ratio / rank)))


def thompson(
    version: Version, rows: Array, phi: Array, arms: Sequence[str], settings: Any
) -> Array:
    """One row a posterior draw (Agrawal & Goyal 2013)."""
    assert version.head is not None
    draws = version.head.draw(phi, arms, version.bank)
    if version.predicts:
        draws = draws + version.offset(phi)
    scale = scale_of(settings)
    if scale == 1.0:
        return draws
    center = draws.mean(axis=0)
    return np.asarray(center + scale * (draws - center))


def scale_of(settings: Any) -> float:
    """1 where the kind has no such setting: to ask a model for one takes 6 microseconds."""
    return settings.scale if isinstance(settings, Thompson) else 1.0


def thompson_chances(
    version: Version, rows: Rows, arms: Sequence[str], like: Counts, settings: Any
) -> Array | None:
    head, bank, scale = version.head, version.bank, scale_of(settings)
    if isinstance(head, RidgeHead | LogisticHead):
        return head.posterior.win_shares(rows, like, bank, scale, version.shift)
    if version.predicts or scale != 1.0:
        return None
    if isinstance(head, BetaHead):
        return head.win_shares(arms, bank)
    if isinstance(head, DisjointRidgeHead) and len(arms) * bank.draws > TABLE:
        assert isinstance(rows, Whole)
        return head.win_shares(rows.phi, arms, bank)
    return None


def greedy(version: Version, rows: Array, phi: Array, arms: Sequence[str], settings: Any) -> Array:
    return np.atleast_2d(version.mean(phi, arms))


def greedy_chances(
    version: Version, rows: Rows, arms: Sequence[str], like: Counts, settings: Any
) -> Array | None:
    """Where single precision leaves few rows to be looked at."""
    head = version.head
    if not isinstance(head, RidgeHead):
        return None
    weights, times = head.solved, rows.times
    if isinstance(rows, Whole):
        return highest(rows.phi.dot(weights), like)
    used = weights if times is None else weights * times
    length, size = rows.length, float(np.linalg.norm(used))
    if not (safe(length, length) and safe(size, size)):
        return None
    scores = rows.single.dot(used.astype(np.float32))
    margin = slack(len(used), length, np.array(size))
    return _exactly(scores, float(margin), rows, like, lambda phi: phi.dot(weights))


def _exactly(
    scores: Single, margin: float, rows: Rows, like: Counts, exact: Callable[[Array], Array]
) -> Array | None:
    """The shares of the highest scores, where few are within a margin of them."""
    open_ = (scores >= scores.max() - margin).nonzero()[0]
    if len(open_) > len(rows) // 4:
        return None
    shares = np.zeros(len(rows))
    shares[open_] = highest(exact(rows.exact(open_)), like[open_])
    return shares


def net_chances(
    version: Version, rows: Rows, arms: Sequence[str], like: Counts, settings: Any
) -> Array | None:
    return highest(version.offset(rows.phi), like) if isinstance(rows, Whole) else None


def uniform(version: Version, rows: Array, phi: Array, arms: Sequence[str], settings: Any) -> Array:
    """All tie, and ties share equally."""
    return np.zeros((1, len(phi)))


def uniform_chances(
    version: Version, rows: Rows, arms: Sequence[str], like: Counts, settings: Any
) -> Array:
    return np.full(len(like), 1.0 / like.sum())


def by_setting(
    version: Version, rows: Array, phi: Array, arms: Sequence[str], settings: Any
) -> Array:
    rule = thompson if settings.rule == "thompson" else ucb
    return rule(version, rows, phi, arms, settings)


def dropout(version: Version, rows: Array, phi: Array, arms: Sequence[str], settings: Any) -> Array:
    """One row a dropout mask (Gal & Ghahramani 2016), or their mean and standard deviation. What
    came since the training moves all masks alike; before the first, the head's posterior draws."""
    if version.encoder.trained is None:
        return by_setting(version, rows, phi, arms, settings)
    masked, mean = version.encoder.predict_masked(rows), version.mean(phi, arms)
    if settings.rule == "thompson":
        return np.asarray(masked + (mean - masked.mean(axis=0)))
    return bound(version, phi, mean, masked.std(axis=0), arms, settings)


def ridge(settings: Any, encoder: Encoder, rows: int, key: str) -> Head:
    if not settings.sees_features:
        return BetaHead()
    disjoint = getattr(settings, "disjoint", False)
    kind: Callable[..., Head] = DisjointRidgeHead if disjoint else RidgeHead
    return kind(encoder.features(rows), settings.ridge, settings.noise)


def gradient(settings: Any, encoder: Encoder, rows: int, key: str) -> Head:
    if settings.form == "last_layer":
        return ridge(settings, encoder, rows, key)
    return GradientHead(
        encoder.features(rows),
        encoder.layout,
        settings.form,
        settings.ridge,
        settings.noise,
        settings.rank,
    )


def logistic(settings: Any, encoder: Encoder, rows: int, key: str) -> Head:
    return LogisticHead(encoder.features(rows), settings.ridge, settings.batch)


def ensemble(settings: Any, encoder: Encoder, rows: int, key: str) -> Head:
    return EnsembleHead(
        encoder.features(rows), settings.ridge, settings.noise, settings.members, key
    )


def beta(settings: PolicySettings, encoder: Encoder, rows: int, key: str) -> Head:
    return BetaHead()


@dataclass(frozen=True, slots=True)
class Family:
    """head: makes an empty one for an encoder over rows of a width, None where nothing is learned
    between trainings.

    predicts   the net's own output is the mean, the head holds what is left of the reward
    chances    what follows from the rule's scores, without them, where there is a shorter way
    """

    head: Callable[[Any, Encoder, int, str], Head] | None
    rule: Rule
    predicts: bool = False
    chances: Chances | None = None


FAMILIES = {
    "linucb": Family(ridge, ucb, chances=ucb_chances),
    "lints": Family(ridge, thompson, chances=thompson_chances),
    "neural_linear_ts": Family(ridge, thompson, chances=thompson_chances),
    "neural_linucb": Family(ridge, ucb, chances=ucb_chances),
    "neural_ucb": Family(gradient, ucb, predicts=True, chances=ucb_chances),
    "neural_ts": Family(gradient, thompson, predicts=True, chances=thompson_chances),
    "neural_glm_ts": Family(logistic, thompson, chances=thompson_chances),
    "bootstrap_ensemble": Family(ensemble, by_setting),
    "mc_dropout": Family(ridge, dropout, predicts=True),
    "popularity": Family(beta, thompson, chances=thompson_chances),
    "greedy": Family(ridge, greedy, chances=greedy_chances),
    "epsilon_greedy": Family(ridge, greedy, chances=greedy_chances),
    "static": Family(None, greedy, predicts=True, chances=net_chances),
    "random": Family(None, uniform, chances=uniform_chances),
}
