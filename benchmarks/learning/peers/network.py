"""A small ReLU network with one output, learned by Adam, for the neural baselines."""

from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

Array32 = npt.NDArray[np.float32]

HIDDEN: Final = (128, 64)
LEARNING_RATE: Final = 1e-3
BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-8
BATCH: Final = 64


class Network:
    """x -> ReLU -> ... -> phi -> g; in float32, from a generator (He et al. 2015)."""

    def __init__(self, inputs: int, rng: np.random.Generator) -> None:
        sizes = [inputs, *HIDDEN, 1]
        self._weights: list[Array32] = [
            (rng.standard_normal((m, n)) * np.sqrt(2 / m)).astype(np.float32)
            for m, n in pairwise(sizes)
        ]
        self._biases: list[Array32] = [np.zeros(n, np.float32) for n in sizes[1:]]
        self._moments = [
            (np.zeros_like(array), np.zeros_like(array)) for array in self._parameters()
        ]
        self._steps = 0

    def _parameters(self) -> list[Array32]:
        return [*self._weights, *self._biases]

    def features(self, x: Array32) -> Array32:  # (n, inputs) -> (n, HIDDEN[-1])
        """Return phi, the input of the last layer."""
        return self._layers(x)[-1]

    def output(self, phi: Array32) -> Array32:  # (n, HIDDEN[-1]) -> (n,)
        """Return g of phi."""
        out: Array32 = (phi @ self._weights[-1] + self._biases[-1])[:, 0]
        return out

    def _layers(self, x: Array32) -> list[Array32]:
        layers = [x]
        for weight, bias in zip(self._weights[:-1], self._biases[:-1], strict=True):
            layers.append(np.maximum(layers[-1] @ weight + bias, 0))
        return layers

    def fit_output(self, x: Array32, rewards: Array32) -> None:
        """Take one step down the squared error of g."""
        layers = self._layers(x)
        error: Array32 = (self.output(layers[-1]) - rewards)[:, None] * np.float32(2 / len(x))
        self._step(
            *self._backward(layers, error @ self._weights[-1].T),
            (layers[-1].T @ error, error.sum(axis=0)),
        )

    def fit_features(self, x: Array32, rewards: Array32, theta: Array32) -> None:
        """Take one step down the squared error of phi^T theta; theta stays."""
        layers = self._layers(x)
        error: Array32 = (layers[-1] @ theta - rewards)[:, None] * np.float32(2 / len(x))
        nothing = np.zeros_like(self._weights[-1]), np.zeros_like(self._biases[-1])
        self._step(*self._backward(layers, error * theta), nothing)

    def _backward(self, layers: list[Array32], signal: Array32) -> list[tuple[Array32, Array32]]:
        """Return gradients of the hidden weights and biases. signal: of the loss in phi."""
        gradients = []
        for index in reversed(range(len(HIDDEN))):
            signal = signal * (layers[index + 1] > 0)
            gradients.append((layers[index].T @ signal, signal.sum(axis=0)))
            signal = signal @ self._weights[index].T
        return gradients[::-1]

    def _step(self, *gradients: tuple[Array32, Array32]) -> None:
        """Take a step of Adam (Kingma & Ba 2015, algorithm 1)."""
        self._steps += 1
        rate = LEARNING_RATE * np.sqrt(1 - BETA_2**self._steps) / (1 - BETA_1**self._steps)
        flat = [pair[0] for pair in gradients] + [pair[1] for pair in gradients]
        for array, gradient, (first, second) in zip(
            self._parameters(), flat, self._moments, strict=True
        ):
            first += (1 - BETA_1) * (gradient - first)
            second += (1 - BETA_2) * (gradient * gradient - second)
            array -= (rate * first / (np.sqrt(second) + EPSILON)).astype(np.float32)


class Replay:
    """All rewards so far, and random batches of them."""

    def __init__(self, inputs: int, rng: np.random.Generator) -> None:
        self._x: Array32 = np.empty((1024, inputs), np.float32)
        self._rewards: Array32 = np.empty(1024, np.float32)
        self._rng = rng
        self.count = 0

    def add(self, x: Array32, reward: float) -> None:
        """Add one reward."""
        if self.count == len(self._x):
            self._x = np.concatenate([self._x, np.empty_like(self._x)])
            self._rewards = np.concatenate([self._rewards, np.empty_like(self._rewards)])
        self._x[self.count], self._rewards[self.count] = x, reward
        self.count += 1

    def batch(self) -> tuple[Array32, Array32]:
        """Draw a batch with replacement."""
        rows = self._rng.integers(0, self.count, min(BATCH, self.count))
        return self._x[rows], self._rewards[rows]
