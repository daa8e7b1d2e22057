"""MLPs in numpy: serving evaluates what the trainer fitted, without torch."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from service.bandits.linalg import Array as Array


@dataclass(frozen=True, slots=True)
class Network:
    """Linear layers with ReLU between them, none after the last: an embedding that ends in a ReLU
    has directions that never grow, and the head's smallest eigenvalue with them.

    layers      (W, b) each: W (inputs, outputs), b (outputs,)
    rectified   ReLU after the last layer too
    """

    layers: Sequence[tuple[Array, Array]]
    rectified: bool = False

    @property
    def width(self) -> int:
        return len(self.layers[-1][1])

    def __call__(self, x: Array, out: Array | None = None) -> Array:  # (n, inputs) -> (n, width)
        """Return the outputs of the last layer. out: where to write, if not into a new array."""
        for weight, bias in self.layers[:-1]:
            x = x @ weight
            x += bias
            np.maximum(x, 0.0, out=x)
        weight, bias = self.layers[-1]
        x = np.matmul(x, weight, out=out)
        x += bias
        return np.maximum(x, 0.0, out=x) if self.rectified else x

    def arrays(self) -> dict[str, Array]:
        return {
            f"{kind}{index}": array
            for index, layer in enumerate(self.layers)
            for kind, array in zip(("weight", "bias"), layer, strict=True)
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array], *, rectified: bool = False) -> "Network":
        """Read a network. Raises KeyError or ValueError where the arrays are none."""
        count = sum(name.startswith("weight") for name in arrays)
        layers = [(arrays[f"weight{index}"], arrays[f"bias{index}"]) for index in range(count)]
        if not layers:
            raise ValueError("no layers")
        for (left, bias), following in zip(layers, [*layers[1:], None], strict=True):
            fits = left.ndim == 2 and bias.shape == left.shape[1:]
            if not fits or (following and following[0].shape[0] != left.shape[1]):
                raise ValueError("layers do not fit each other")
            if not (np.isfinite(left).all() and np.isfinite(bias).all()):
                raise ValueError("a weight is not finite")
        return cls(layers, rectified)


def cold_network(sizes: Sequence[int], key: str) -> Network:
    """Random features (He et al. 2015 scaling), a pure function of the sizes and the key."""
    rng = _generator(key)
    layers = []
    for index, (fan_in, fan_out) in enumerate(pairwise(sizes)):
        gain = 1.0 if index == len(sizes) - 2 else 2.0
        weight = rng.standard_normal((fan_in, fan_out)) * np.sqrt(gain / fan_in)
        layers.append((weight, 0.1 * rng.standard_normal(fan_out)))
    return Network(layers)


def dropout_masks(network: Network, count: int, share: float, key: str) -> list[Array]:
    """`count` masks for each layer that a ReLU follows: 0 with chance `share`, else 1 / (1 - share)
    (Gal & Ghahramani 2016); a pure function of its arguments."""
    rng = _generator(key)
    widths = [len(bias) for _, bias in network.layers]
    hidden = widths if network.rectified else widths[:-1]
    return [(rng.random((count, width)) >= share) / (1 - share) for width in hidden]


def _generator(key: str) -> np.random.Generator:
    digest = hashlib.blake2b(key.encode(), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "big")))
