"""The net of a policy: its settings, and the random features that it has from the start."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from service.bandits.encoder import ROW_SQUARE, Encoder
from service.bandits.networks import Network, cold_network
from service.bandits.settings import Training
from service.features.schema import Array
from service.features.view import View


@dataclass(frozen=True, slots=True)
class Net:
    """Settings of a net.

    hidden, embedding   widths of the ReLU layers, and of the linear one after them
    gradients           the head takes the gradient in all parameters
    alone               without an untrained twin and the rows beside it, and trained only once
    log_loss            rewards are chances, and the output a logit
    unscaled            the head sees rows as they are
    masks, dropout      dropout masks of the trained net, and the share that each leaves out
    """

    hidden: tuple[int, ...]
    embedding: int
    training: Training
    gradients: bool = False
    alone: bool = False
    log_loss: bool = False
    unscaled: bool = False
    masks: int = 0
    dropout: float = 0.0

    @property
    def rectified(self) -> bool:
        """Whether its features end in a ReLU: only its output or gradient is used."""
        return self.gradients or self.alone

    def parameters(self, rows: int) -> int:
        """Count the parameters, for rows of a width."""
        layers = [rows, *self.hidden, 1 if self.gradients else self.embedding]
        return sum((fan_in + 1) * fan_out for fan_in, fan_out in pairwise(layers))

    def columns(self, rows: int) -> int:
        """Count the columns of a head once it is trained, for rows of a width."""
        last = self.hidden[-1] if self.gradients else self.embedding
        return last if self.alone else 2 * last + rows + 1


def cold_encoder(net: Net | None, view: View, key: str) -> Encoder:
    """Return the random features that a policy with a net has before its first training."""
    if net is None or net.alone:
        return Encoder()
    scale = float(np.sqrt(ROW_SQUARE / view.expected_square))
    if not net.gradients:
        twin = cold_network([view.width, *net.hidden, net.embedding], key)
        # The logit of rare clicks takes large weights: a logistic head sees rows as they are.
        return Encoder(twin, scale, 1.0 if net.unscaled else scale)
    *body, output = cold_network([view.width, *net.hidden, 1], key).layers
    encoder = Encoder(Network(body, rectified=True), scale, scale, gradient=output)
    return encoder.scaled(_probes(view))


def _probes(view: View) -> Array:  # (256, view.width)
    """Rows of the size that the view's rows are expected to have, to scale a gradient by."""
    rows = np.random.Generator(np.random.Philox(key=0)).standard_normal((256, view.width))
    return np.asarray(rows * np.sqrt(view.expected_square / view.width))
