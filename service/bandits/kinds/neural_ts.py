"""`neural_ts`: draws of a net's output, by its gradients (Zhang et al. 2021)."""

from typing import Literal

from service.bandits.kinds.base import Exploring, Gradient, Thompson


class NeuralTs(Gradient, Thompson):
    kind: Literal["neural_ts"]

    keeps_head = Exploring.keeps_head | {"draws", "bank", "scale", "training"}
