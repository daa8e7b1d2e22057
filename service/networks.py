"""MLPs in numpy: serving evaluates what the trainer fitted, without torch."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Network:
    """Linear layers with ReLU between them, none after the last: an embedding that ends in a ReLU
    has directions that never grow, and the head's smallest eigenvalue with them.

    layers   (W, b) each: W (inputs, outputs), b (outputs,)
    """

    layers: Sequence[tuple[Array, Array]]

    @property
    def width(self) -> int:
        return len(self.layers[-1][1])

    def __call__(self, x: Array) -> Array:  # (n, inputs) -> (n, width)
        for weight, bias in self.layers[:-1]:
            x = np.maximum(x @ weight + bias, 0.0)
        weight, bias = self.layers[-1]
        return x @ weight + bias

    def arrays(self) -> dict[str, Array]:
        return {
            f"{kind}{index}": array
            for index, layer in enumerate(self.layers)
            for kind, array in zip(("weight", "bias"), layer, strict=True)
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array]) -> "Network":
        """Raises KeyError or ValueError where the arrays are no network."""
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
        return cls(layers)


def cold_network(sizes: Sequence[int], key: str) -> Network:
    """Random features (He et al. 2015 scaling), a pure function of the sizes and the key."""
    digest = hashlib.blake2b(key.encode(), digest_size=16).digest()
    rng = np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "big")))
    layers = []
    for index, (fan_in, fan_out) in enumerate(pairwise(sizes)):
        gain = 1.0 if index == len(sizes) - 2 else 2.0
        weight = rng.standard_normal((fan_in, fan_out)) * np.sqrt(gain / fan_in)
        layers.append((weight, 0.1 * rng.standard_normal(fan_out)))
    return Network(layers)
