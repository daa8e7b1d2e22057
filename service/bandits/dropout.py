"""The output of a net under dropout masks."""

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from service.bandits.networks import Network
from service.features.schema import Array

FOLDED = 2**20
"""Weights with masks in them that are made at once, 8 MB: 128 masks of a layer 128 x 64."""

NUMBERS = 2**18
"""Numbers of a layer under the masks that are made at once, 2 MB: they stay in the cache."""


class Dropout:
    """g under each of T masks (Gal & Ghahramani 2016).

    A mask of a layer's outputs is as well one of the next layer's weights: so the second layer
    under all masks is one product, and the linear layers after the last ReLU are one vector a mask.

    masks   (T, layer width) for each layer that a ReLU follows
    """

    def __init__(
        self, network: Network, output: tuple[Array, Array], masks: Sequence[Array]
    ) -> None:
        weight, bias = output
        last = len(network.layers) if network.rectified else len(network.layers) - 1
        self._hidden, self._masks = network.layers[:last], masks
        for inner, own in reversed(network.layers[last:]):
            weight, bias = inner @ weight, own @ weight + bias
        self._output, self._bias = masks[-1] * weight[:, 0], float(bias[0])  # (T, h)
        sizes = [len(own) for _, own in self._hidden[:2]]
        self._group = max(1, FOLDED // int(np.prod(sizes)))
        self._block = max(1, NUMBERS // (sizes[-1] * min(self._group, len(masks[0]))))

    def __call__(self, rows: Array) -> Array:  # (n, inputs) -> (T, n)
        outputs = np.empty((len(self._output), len(rows)))
        weight, bias = self._hidden[0]
        for start in range(0, len(rows), self._block):
            block = slice(start, start + self._block)
            first = rows[block] @ weight
            first += bias
            np.maximum(first, 0.0, out=first)
            if len(self._hidden) == 1:
                outputs[:, block] = self._output @ first.T
                continue
            for begin in range(0, len(outputs), self._group):
                own = slice(begin, begin + self._group)
                outputs[own, block] = self._second(first, own)
        outputs += self._bias
        return outputs

    def _second(self, first: Array, own: slice) -> Array:  # (n, h), masks -> (t, n)
        """Return the outputs of the net from those of its first layer."""
        table = first @ self._folded(own)
        table = table.reshape(len(first), -1, len(self._hidden[1][1]))  # (n, t, h)
        table += self._hidden[1][1]
        np.maximum(table, 0.0, out=table)
        deeper = zip(self._hidden[2:], self._masks[1:-1], strict=True)
        for (weight, bias), mask in deeper:
            table *= mask[own]
            table = table @ weight
            table += bias
            np.maximum(table, 0.0, out=table)
        return np.asarray(np.einsum("nth,th->tn", table, self._output[own]))

    def _folded(self, own: slice) -> Array:  # (h, t h')
        if own.start == 0 and self._group >= len(self._output):
            return self._all
        return self._fold(own)

    @cached_property
    def _all(self) -> Array:
        return self._fold(slice(None))

    def _fold(self, own: slice) -> Array:
        weight, mask = self._hidden[1][0], self._masks[0][own]
        return (mask.T[:, :, None] * weight[:, None, :]).reshape(len(weight), -1)
