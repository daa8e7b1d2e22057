"""The head of `neural_ucb` and `neural_ts`: uncertainty in all of a net's parameters."""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from service.bandits.gradients import Layout
from service.bandits.heads.base import Array, Bank, HeadHealth, Observation, Stored, part, removable
from service.bandits.heads.gradient_diagonal import Diagonal
from service.bandits.heads.gradient_full import Full
from service.bandits.heads.gradient_rows import Covariance, cholesky, distinct
from service.bandits.heads.head import Head
from service.bandits.heads.ridge import RidgeHead

Form = Literal["diagonal", "full"]


class GradientHead(Head):
    """Means of a ridge head on the last layer, widths of Z = lambda I + sum J J^T in all of theta.

    A row phi is [last-layer features (m) | factors of J (F)], as `gradients.factors` makes
    them; rewards are what the net's own output g(x; theta) leaves. The mean and the noise are the
    ridge head's, which is the regression of Z's last layer; the score's spread is

        width = sigma_hat sqrt(J^T Z^-1 J)                          Zhou, Li, Gu 2020 (1911.04462)
        draw  ~ N(mean, sigma_hat^2 J Z^-1 J^T), over all arms       Zhang et al. 2021 (2010.00827)

    Zhang et al. draw each arm by itself; here a draw is one theta for all, so arms that are alike
    are high together, and each arm's marginal is theirs. Rows of one x share one draw.

    form   "diagonal" p numbers; "full" exact, over the distinct rows
    """

    def __init__(
        self,
        size: int,  # m
        layout: Layout,
        form: Form,
        ridge: float,  # lambda
        noise: float | None,
    ) -> None:
        self._size, self._layout, self._ridge = size, layout, ridge
        self._ridge_head = RidgeHead(size, ridge, noise)
        self._covariance: Covariance
        self._covariance = Full(layout, ridge) if form == "full" else Diagonal(layout, ridge)

    def mean(self, phi: Array, arms: Sequence[str]) -> Array:
        return self._ridge_head.mean(phi[:, : self._size], arms)

    def width(self, phi: Array, arms: Sequence[str]) -> Array:
        return self._noise * np.sqrt(self._covariance.variances(phi[:, self._size :]))

    @property
    def held(self) -> float:
        return self._ridge_head.held

    def evidence(self, arms: Sequence[str]) -> tuple[Array, Array]:
        return self._ridge_head.evidence(arms)

    @property
    def stale(self) -> int:
        return self._ridge_head.stale

    @property
    def _noise(self) -> float:
        return self._ridge_head.posterior.noise

    def draw(self, phi: Array, arms: Sequence[str], bank: Bank) -> Array:
        """Draw mean + sigma L z: L L^T = J Z^-1 J^T of the distinct rows, z the columns of the bank
        named by the first arm of each."""
        first, of = distinct(phi)
        rows = phi[first]
        gradients = rows[:, self._size :]
        prior = self._layout.squares(gradients) / self._ridge
        factor = cholesky(self._covariance.covariance(gradients), prior)
        normals = bank.columns([arms[index] for index in first])
        drawn = self.mean(rows, arms) + self._noise * (normals @ factor.T)
        return np.asarray(drawn[:, of])

    def observe(self, row: Observation) -> None:
        self._ridge_head.observe(self._last_layer(row))
        self._covariance.observe(row.phi[self._size :], row.weight)

    def revise(self, row: Observation, was: float, left: float = 1.0) -> None:
        """Change the mean alone: rewards are not in Z."""
        self._ridge_head.revise(self._last_layer(row), was, left)

    def withdraw(self, row: Observation, left: float = 1.0) -> None:
        """Undo a row. Z may hold it for longer (`Covariance.withdraw`)."""
        if removable(row.phi, self._ridge, left * row.weight):
            self._ridge_head.withdraw(self._last_layer(row), left)
            self._covariance.withdraw(row.phi[self._size :], left * row.weight)

    def _last_layer(self, row: Observation) -> Observation:
        return row._replace(phi=row.phi[: self._size])

    def decay(self, share: float) -> None:
        self._covariance.decay(share)
        self._ridge_head.decay(share)

    def distrust(self, factor: float) -> None:
        self._ridge_head.distrust(factor)

    def health(self) -> HeadHealth:
        """Return the eigenvalues and rank of Z, the count and noise of the last layer."""
        count, noise = self._ridge_head.n, self._ridge_head.posterior.noise
        return HeadHealth.of_worst([self._covariance.spectrum()], self._ridge, count, noise)

    def decision_numbers(self, arms: int, draws: int) -> float:
        return self._layout.parameters + (arms if draws > 1 else 0)

    def arrays(self) -> dict[str, Stored]:
        return {
            **{f"ridge.{name}": array for name, array in self._ridge_head.arrays().items()},
            **{f"gradient.{name}": array for name, array in self._covariance.arrays().items()},
        }

    def restore(self, arrays: dict[str, Stored]) -> None:
        self._ridge_head.restore(part(arrays, "ridge."))
        self._covariance.restore(part(arrays, "gradient."))
