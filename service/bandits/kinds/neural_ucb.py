"""`neural_ucb`: the upper confidence bound of a net's output, by its gradients (Zhou, Li, Gu
2020)."""

from typing import Literal

from service.bandits.kinds.base import Exploring, Gradient, Ucb


class NeuralUcb(Gradient, Ucb):
    kind: Literal["neural_ucb"]

    keeps_head = Exploring.keeps_head | {"alpha", "training"}
