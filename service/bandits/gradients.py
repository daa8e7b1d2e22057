"""Gradients of an MLP's output in all of its parameters, in numpy and without a loop over rows.

The gradient of a row in layer l is an outer product: of the layer's input h and of the signal d
that is propagated back to the layer's output. So a row's gradient is kept as its *factors*, all h
and all d side by side: 394 numbers in place of 9,601 for 9 -> 128 -> 64 -> 1.

| symbol     | here           | meaning                                                          |
|------------|----------------|------------------------------------------------------------------|
| g(x;theta) |                | the net's one output                                             |
| J          | `dense`        | scale * gradient of g in theta, a row an x; Zhou, Li, Gu 2020    |
|            |                | (arXiv 1911.04462, algorithm 1) have scale = 1 / sqrt(width)     |
| p          | `parameters`   | length of theta                                                  |
| J J'^T     | `gram`         | the empirical neural tangent kernel                              |
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise

import numpy as np

from service.bandits.linalg import Array as Array


def factors(
    layers: Sequence[tuple[Array, Array]],  # (W, b) each: (inputs, outputs), (outputs,)
    x: Array,  # (n, inputs)
    scale: float,
) -> Array:  # (n, F)
    """[h_0 | h_1 | ... | d_1 | ... | d_L], the signals d times `scale`; `Layout` names the slices.

    ReLU between the layers, none after the last, which has one column.
    """
    inputs, signs = [x], []
    for weight, bias in layers[:-1]:
        z = inputs[-1] @ weight + bias
        signs.append(z > 0)
        inputs.append(np.where(signs[-1], z, 0.0))
    signals = [np.full((len(x), 1), scale)]
    for (weight, _), sign in zip(reversed(layers[1:]), reversed(signs), strict=True):
        signals.append((signals[-1] @ weight.T) * sign)
    return np.hstack([*inputs, *reversed(signals)])


@dataclass(frozen=True)
class Layout:
    """Where the factors of each layer are, for a net of these sizes.

    sizes   inputs, hidden widths, 1
    """

    sizes: tuple[int, ...]

    @cached_property
    def parameters(self) -> int:
        return sum((fan_in + 1) * fan_out for fan_in, fan_out in pairwise(self.sizes))

    @cached_property
    def width(self) -> int:
        """F, columns of a row of factors."""
        return sum(self.sizes[:-1]) + sum(self.sizes[1:])

    @cached_property
    def layers(self) -> list[tuple[slice, slice]]:
        """(input, signal) columns of each layer."""
        ends = [0, *accumulate((*self.sizes[:-1], *self.sizes[1:]))]
        slices = [slice(start, stop) for start, stop in pairwise(ends)]
        depth = len(self.sizes) - 1
        return list(zip(slices[:depth], slices[depth:], strict=True))

    def gram(self, left: Array, right: Array) -> Array:  # (n, F), (k, F) -> (n, k)
        """J J'^T = sum over layers of (d . d') (h . h' + 1); F multiplications a pair, not p."""
        total = np.zeros((len(left), len(right)))
        for inputs, signals in self.layers:
            product = left[:, inputs] @ right[:, inputs].T
            product += 1.0
            product *= left[:, signals] @ right[:, signals].T
            total += product
        return total

    def squares(self, rows: Array) -> Array:  # (n, F) -> (n,)
        """|J|^2 of each row."""
        total = np.zeros(len(rows))
        for inputs, signals in self.layers:
            h, d = rows[:, inputs], rows[:, signals]
            total += np.einsum("nd,nd->n", d, d) * (np.einsum("nh,nh->n", h, h) + 1.0)
        return total

    def dense(self, rows: Array) -> Array:  # (n, F) -> (n, p)
        """Return the Jacobian itself: of each layer W row by row, then b."""
        jacobian = np.empty((len(rows), self.parameters))
        start = 0
        for inputs, signals in self.layers:
            h, d = rows[:, inputs], rows[:, signals]
            stop = start + h.shape[1] * d.shape[1]
            outer = jacobian[:, start:stop].reshape(len(rows), h.shape[1], d.shape[1], copy=False)
            np.multiply(h[:, :, None], d[:, None, :], out=outer)
            jacobian[:, stop : stop + d.shape[1]] = d
            start = stop + d.shape[1]
        return jacobian
