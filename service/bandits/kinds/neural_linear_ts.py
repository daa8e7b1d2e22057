"""`neural_linear_ts`: posterior draws of a ridge head on a net's features (Riquelme, Tucker, Snoek
2018)."""

from typing import Literal

from service.bandits.kinds.base import Exploring, Network, Ridge, Thompson


class NeuralLinearTs(Ridge, Thompson, Network):
    kind: Literal["neural_linear_ts"]

    keeps_head = Exploring.keeps_head | {"draws", "bank", "scale", "training"}
