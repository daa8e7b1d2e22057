"""Encode the rows of a view for the head."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy.special import expit

from service.bandits.dropout import Dropout
from service.bandits.gradients import Layout, factors
from service.bandits.networks import Network
from service.features.schema import Array

COLD_SHARE = 2.0
"""Size of the random features beside the trained ones in a head (whose mean square is 1). They keep
every arm's row apart, so that a net trained on few arms cannot make the others look alike and
certain. Zooplus, nine raw features, 20,000 visits, 5 streams: .4980 (worst .4794) with 0.5, .5045
(worst .5037) with 2."""


ROW_SQUARE = 2.0
"""Size of the rows themselves in a head, where many features make them long: a head is as uncertain
of a row at first as the row is long. Mushroom's 22 categories unscaled: Thompson sampling explored
twice as long."""


ROUND = 8
"""Rows that go through a net together where each has to have the bits that it has alone: a product
of matrices rounds by its size, and so do those of 4 and of 64 rows if they are wide. Few leave the
last round empty; many share the cost of a call."""


@dataclass(frozen=True)
class Encoder:
    """Rows themselves, or the features of a net beside those of its untrained twin and the rows.

    cold_scale      of rows as the untrained net sees them: their mean square is ROW_SQUARE
    row_scale       of rows as the head sees them
    trained         fitted by the trainer; None before the first training
    output          (w, b) of the trained net's last layer, a column an output: g = f(x) w + b
    gradient        the cold net's output (w, b), where the head looks at the gradient of g in
                    theta; it takes part until there is a trained one
    gradient_scale  of that gradient
    masks           dropout masks, one array (T, width) a ReLU layer of the trained net
    logistic        the output is a logit
    """

    cold: Network | None = None
    cold_scale: float = 1.0
    row_scale: float = 1.0
    trained: Network | None = None
    output: tuple[Array, Array] | None = None
    gradient: tuple[Array, Array] | None = None
    gradient_scale: float = 1.0
    masks: Sequence[Array] = ()
    logistic: bool = False

    def features(self, rows: int) -> int:
        """Columns before those of the gradient."""
        if self.cold is None:
            return rows
        return (self.trained.width if self.trained else 0) + self.cold.width + rows + 1

    @property
    def is_linear(self) -> bool:
        """Whether the features are the rows themselves."""
        return self.cold is None and self.trained is None

    @property
    def layers(self) -> list[tuple[Array, Array]]:
        """Layers of the net whose gradient is taken."""
        assert self.cold is not None
        assert self.gradient is not None
        if self.trained is not None and self.output is not None:
            return [*self.trained.layers, self.output]
        return [*self.cold.layers, self.gradient]

    @property
    def layout(self) -> Layout:
        layers = self.layers
        return Layout((len(layers[0][0]), *(len(bias) for _, bias in layers)))

    def __call__(self, rows: Array) -> Array:  # (n, view.width) -> (n, m)
        if self.cold is None:
            return self.trained(rows) if self.trained else rows
        count, width = rows.shape
        gradient = self.layout.width if self.gradient is not None else 0
        phi = np.empty((count, self.features(width) + gradient))
        stop = 0
        if self.trained:
            stop = self.trained.width
            self.trained(rows, out=phi[:, :stop])
        start, stop = stop, stop + self.cold.width
        cold = self.cold(self.cold_scale * rows, out=phi[:, start:stop])
        cold *= COLD_SHARE
        start, stop = stop, stop + width
        np.multiply(rows, self.row_scale, out=phi[:, start:stop])
        phi[:, stop] = 1.0
        if gradient:
            phi[:, stop + 1 :] = factors(self.layers, self._net_input(rows), self.gradient_scale)
        return phi

    def each(self, rows: Array) -> Array:  # (n, view.width) -> (n, m)
        """Encode rows, each with the bits that it has alone."""
        if self.is_linear:
            return rows
        count, width = rows.shape
        whole = np.zeros((-(-count // ROUND) * ROUND, width))
        whole[:count] = rows
        found = [self(whole[start : start + ROUND]) for start in range(0, len(whole), ROUND)]
        return np.concatenate(found)[:count]

    def _net_input(self, rows: Array) -> Array:
        """Rows as the net of `layers` takes them."""
        return rows if self.trained else self.cold_scale * rows

    def predict(self, phi: Array) -> Array:  # (n, m) -> (n,)
        """Return the trained net's own output g(x; theta); 0 before the first training. Each row
        has the bits that it has alone."""
        if self.trained is None or self.output is None:
            return np.zeros(len(phi))
        weight, bias = self.output
        output = np.vecdot(phi[:, : self.trained.width], weight[:, 0]) + bias[0]
        return np.asarray(expit(output)) if self.logistic else output

    def scaled(self, rows: Array) -> "Encoder":
        """Scale the gradient so that its mean square over these rows is that of the features: a row
        is as uncertain at first in every form of Z."""
        phi = self(rows)[:, : self.features(rows.shape[1])]
        squares = self.layout.squares(factors(self.layers, self._net_input(rows), 1.0))
        size = float(squares.mean())
        wanted = float(np.square(phi).sum(axis=1).mean())
        return replace(self, gradient_scale=np.sqrt(wanted / size) if size else 1.0)

    def predict_masked(self, rows: Array) -> Array:  # (n, view.width) -> (T, n)
        """Return the net's output under each of T dropout masks."""
        return self._dropout(rows)

    @cached_property
    def _dropout(self) -> Dropout:
        assert self.trained is not None
        assert self.output is not None
        return Dropout(self.trained, self.output, self.masks)
