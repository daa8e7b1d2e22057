"""The Bayesian logistic head: rewards in [0, 1], scores on the logit."""

from collections.abc import Sequence

import numpy as np
from scipy.special import expit

from service.bandits.heads.base import (
    LEFT,
    Array,
    Bank,
    Observation,
    fewer,
    pack_names,
    removable,
    unpack_names,
)
from service.bandits.heads.gaussian import Gaussian, GaussianHead
from service.bandits.heads.ridge import solution
from service.bandits.linalg import inverse_root

CONVERGED = 1e-12
"""Newton decrement, in nats, at which one more full step is exact to rounding."""

EVEN = 4.0
"""Observations per unit of information where a click is as likely as none."""

ITERATIONS = 50
BACKTRACKS = 30


class LogisticHead(GaussianHead):
    """Click chances expit(c + phi^T beta), drawn as N(c + phi^T beta, sigma^2 phi^T A^-1 phi).

    | symbol  | attribute   | meaning                                                            |
    |---------|-------------|--------------------------------------------------------------------|
    | Sigma   | `A`         | eps I + sum phi phi^T, each observation once, when it is settled   |
    | F       | `F`         | eps I + sum p (1 - p) phi phi^T of the minibatches taken in        |
    | beta    | `beta`      | coefficients, relative to the base rate                            |
    | c       | `base`      | logit of the rate of clicks, (clicks + 1/2) / (n + 1)              |
    | g       | `g`         | sum p (1 - p) phi, as F                                            |
    | sigma^2 | `noise` ^ 2 | 2 sqrt((n + 1) / (sum p (1 - p) + 1/4)), in observations           |

    Scores as in neural GLM Thompson sampling (Su et al. 2023, arXiv 2305.07764) and SGD-TS (Ding,
    Hsieh, Sharpnack 2021, arXiv 2006.04012). One pass over minibatches of `batch` settlements fits
    beta, by implicit gradient steps beta+ = beta - F^-1 grad L(beta+). Decision 14 in
    docs/decisions has the departures from the papers, their reasons and what was measured.

    An observation of weight w adds w times its loss to a step, and w times its square to Sigma.

    Units: logits, but for `mean`, a probability. A minibatch costs O(batch^3 + m^3).
    """

    standardises = False
    n = 0.0

    def __init__(self, size: int, ridge: float, batch: int) -> None:
        self._ridge, self._batch = ridge, batch
        self.A, self.F = ridge * np.eye(size), ridge * np.eye(size)
        self.beta, self.g = np.zeros(size), np.zeros(size)
        self.base, self.n = 0.0, 0.0
        self._clicks, self._taken, self._information = 0.0, 0.0, 0.0
        self._pending: list[Observation] = []
        self._derived: Gaussian | None = None

    def observe(self, row: Observation) -> None:
        """Add to the weight of the same decision's arm while that waits for its minibatch."""
        self._derived = None
        self.A += np.multiply.outer(row.weight * row.phi, row.phi)
        self.n += row.weight
        place = self._place(row) if row.key else None
        if place is not None:
            self._weigh(place, row.weight)
            return
        self._pending.append(row._replace(phi=np.array(row.phi)))
        if len(self._pending) >= self._batch:
            self._take_in()

    def revise(self, row: Observation, was: float, left: float = 1.0) -> None:
        """Replace the reward in place while the observation waits for its minibatch to fill; later
        take a step along the change of its gradient. left 0: only in place."""
        place, taken = self._place(row), row.weight
        if place is not None:
            taken -= self._pending[place].weight
            self._pending[place] = self._pending[place]._replace(reward=row.reward)
        if left and taken > LEFT:
            self._change(row.phi, was, row.reward, left * taken)

    def _weigh(self, place: int, more: float) -> float:
        """Add to the weight of a pending observation, down to 0. Return what it did not have."""
        pending = self._pending[place]
        weight = pending.weight + more
        if weight > LEFT:
            self._pending[place] = pending._replace(weight=weight)
            return 0.0
        del self._pending[place]
        return -weight

    def _place(self, row: Observation) -> int | None:
        """Find a pending observation, the latest of its key and arm."""
        names = [(pending.key, pending.arm) for pending in self._pending]
        return max((n for n, name in enumerate(names) if name == (row.key, row.arm)), default=None)

    def withdraw(self, row: Observation, left: float = 1.0) -> None:
        """Sigma and n exactly, unless the row is too long; beta, where a step took the observation
        in, as if it had been predicted exactly."""
        phi, share = row.phi, left * row.weight
        if not removable(phi, self._ridge, share):
            return
        self._derived = None
        self.A -= share * np.multiply.outer(phi, phi)
        self.n = fewer(self.n, share)
        place, taken = self._place(row), row.weight
        if place is not None:
            taken = self._weigh(place, -taken)
        if taken > LEFT:
            self._change(phi, row.reward, None, left * taken)

    def _change(self, phi: Array, was: float, reward: float | None, left: float) -> None:
        """Change the reward of an observation that a step took in; None: it never was. Its gradient
        (p - r) phi is linear in r: what the observation says of F stays, and beta moves as by one
        that was predicted, p = r, and came out higher by as much."""
        self._derived = None
        toward, away = solution(self.F, np.array([phi, self.g]).T).T
        self._clicks += left * ((reward or 0.0) - was)
        if reward is None:
            self._taken = fewer(self._taken, left)
            self._clicks = min(max(self._clicks, 0.0), self._taken)
        base, beta = self._rebased(away)
        logit = np.array([base + phi @ beta])
        p = expit(logit)
        change = (p if reward is None else reward) - was
        gram = np.array([[left * (phi @ toward)]])
        dual, _ = implicit_step(gram, logit, p + change)
        self.base, self.beta = base, beta + left * dual[0] * toward

    def _rebased(self, away: Array) -> tuple[float, Array]:  # F^-1 g
        """Return c and beta once the counts of clicks have changed."""
        base = float(np.log((self._clicks + 0.5) / (self._taken - self._clicks + 0.5)))
        return base, self.beta - (base - self.base) * away

    def _take_in(self) -> None:
        """One step over the pending minibatch."""
        phi = np.array([waiting.phi for waiting in self._pending])
        rewards = np.array([waiting.reward for waiting in self._pending])
        weights = np.array([waiting.weight for waiting in self._pending])
        root = inverse_root(self.F)
        self._clicks += float((weights * rewards).sum())
        self._taken += float(weights.sum())
        base, beta = self._rebased(root.T @ (root @ self.g))
        half = phi @ root.T
        dual, logits = implicit_step(half @ half.T, base + phi @ beta, rewards, weights)
        p = expit(logits)
        curvature = weights * p * (1 - p)
        self.base, self.beta = base, beta + root.T @ (half.T @ dual)
        self.F += (curvature[:, None] * phi).T @ phi
        self.g += curvature @ phi
        self._information += float(curvature.sum())
        self._pending = []

    def decay(self, share: float) -> None:
        """Forget A, F and the counts as a ridge head does, towards eps I; beta and c stay. What is
        pending counts whole in the step to come."""
        self._derived = None
        diagonal = np.diag_indices_from(self.A)
        for matrix in (self.A, self.F):
            matrix *= share
            matrix[diagonal] += (1 - share) * self._ridge
        self.g *= share
        self.n *= share
        self._clicks, self._taken = share * self._clicks, share * self._taken
        self._information *= share

    @property
    def stale(self) -> int:
        return int(self._derived is None)

    @property
    def posterior(self) -> Gaussian:
        """Posterior of the coefficients; c adds the same to all."""
        if self._derived is None:
            sightings = (self._taken + 1) / (self._information + 0.25)
            noise = float((EVEN * sightings) ** 0.25)
            root = inverse_root(self.A)
            self._derived = Gaussian.of(self.beta, root, noise, self.base)
        return self._derived

    def _logits(self, phi: Array) -> Array:  # (n, m) -> (n,)
        return np.asarray(self.base + phi @ self.beta)

    def mean(self, phi: Array, arms: Sequence[str]) -> Array:
        """Return the click chance at the posterior's mean logit."""
        return np.asarray(expit(self._logits(phi)))

    def draw(self, phi: Array, arms: Sequence[str], bank: Bank) -> Array:
        """Logits; as a ridge head's draws."""
        half = phi @ self.posterior.root.T
        return self._logits(phi) + self.posterior.noise * (bank.matrix(len(self.beta)) @ half.T)

    def distrust(self, factor: float) -> None:
        """There is no noise to be learned."""

    def unit(self, span: float) -> float:
        """Return that of a logit, whatever the range of rewards."""
        return 1.0

    def arrays(self) -> dict[str, Array]:
        waiting = self._pending
        names = pack_names([name for one in waiting for name in (one.key, one.arm)])
        weights = np.array([one.weight for one in waiting])
        return {
            "A": self.A,
            "F": self.F,
            "beta": self.beta,
            "g": self.g,
            "scalars": np.array([self.base, self.n, self._clicks, self._taken, self._information]),
            "pending.phi": np.array([one.phi for one in waiting]).reshape(-1, len(self.beta)),
            "pending.rewards": np.array([one.reward for one in waiting]),
            "pending.names": names,
            **({"pending.weights": weights} if (weights != 1).any() else {}),
        }

    def restore(self, arrays: dict[str, Array]) -> None:
        self.A, self.F = arrays["A"].copy(), arrays["F"].copy()
        self.beta, self.g = arrays["beta"].copy(), arrays["g"].copy()
        scalars = arrays["scalars"].tolist()
        self.base, self.n, self._clicks, self._taken, self._information = scalars
        names = unpack_names(arrays["pending.names"])
        phi, rewards = arrays["pending.phi"].copy(), arrays["pending.rewards"].tolist()
        weights = arrays.get("pending.weights", np.ones(len(phi))).tolist()
        rows = zip(names[1::2], phi, rewards, names[::2], weights, strict=True)
        self._pending = [Observation(*row) for row in rows]
        self._derived = None


def implicit_step(
    gram: Array, base: Array, rewards: Array, weights: Array | float = 1.0
) -> tuple[Array, Array]:
    """Solve for (a, eta), (k,) each, where a = w (r - expit(eta)) and eta = base + G a.

    With G = phi F^-1 phi^T (k, k), beta + F^-1 phi^T a minimises the weighted log loss of the k
    rewards plus |beta+ - beta|_F^2 / 2. Newton on a; steps are halved until that sum falls, which
    it does from every start (Boyd & Vandenberghe 2004, section 9.5.3).
    """
    dual, logits = np.zeros_like(base), base
    loss = _loss(dual, logits, base, rewards, weights)
    for _ in range(ITERATIONS):
        p = expit(logits)
        left = weights * (rewards - p) - dual
        curvature = weights * p * (1 - p)
        step = _solved(np.eye(len(p)) + curvature[:, None] * gram, left)
        moved = gram @ step
        decrement = float(left @ moved)
        if decrement < CONVERGED:
            return dual + step, logits + moved
        share = 1.0
        for _ in range(BACKTRACKS):
            tried = dual + share * step, logits + share * moved
            reached = _loss(*tried, base, rewards, weights)
            if reached <= loss - 0.25 * share * decrement:
                break
            share /= 2
        (dual, logits), loss = tried, reached
    return dual, logits


def _solved(matrix: Array, right: Array) -> Array:  # (k, k), (k,) -> (k,)
    """Solve, by least squares where rows are alike and so large that their own 1 is lost to
    rounding."""
    try:
        return np.asarray(np.linalg.solve(matrix, right))
    except np.linalg.LinAlgError:
        return np.asarray(np.linalg.lstsq(matrix, right)[0])


def _loss(dual: Array, logits: Array, base: Array, rewards: Array, weights: Array | float) -> float:
    """Log loss in nats, and half the squared length of the step."""
    fit = (weights * np.logaddexp(0.0, logits)).sum() - (weights * rewards) @ logits
    return float(fit + 0.5 * dual @ (logits - base))
