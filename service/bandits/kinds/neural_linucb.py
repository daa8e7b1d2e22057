"""`neural_linucb`: the upper confidence bound of a ridge head on a net's features (Xu et al.
2020)."""

from typing import Literal

from service.bandits.kinds.base import Exploring, Network, Ridge, Ucb


class NeuralLinUcb(Ridge, Ucb, Network):
    kind: Literal["neural_linucb"]

    keeps_head = Exploring.keeps_head | {"alpha", "training"}
