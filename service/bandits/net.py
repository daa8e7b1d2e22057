"""The net of a policy: its settings, and the random features that it has from the start."""

from dataclasses import dataclass

import numpy as np

from service.bandits.encoder import ROW_SQUARE, Encoder
from service.bandits.networks import Network, cold_network
from service.definition.policies import (
    AnyPolicy,
    Gradient,
    McDropout,
    NeuralGlmTs,
    Static,
    Training,
)
from service.definition.policies import Network as NetworkSettings
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
    gradients: bool
    alone: bool
    log_loss: bool
    unscaled: bool
    masks: int
    dropout: float

    @property
    def rectified(self) -> bool:
        """Whether its features end in a ReLU: only its output or gradient is used."""
        return self.gradients or self.alone


def net_of(settings: AnyPolicy) -> Net | None:
    if not isinstance(settings, NetworkSettings) or not settings.has_net:
        return None
    logistic = isinstance(settings, NeuralGlmTs)
    return Net(
        hidden=tuple(settings.hidden),
        embedding=settings.embedding,
        training=settings.training,
        gradients=isinstance(settings, Gradient) and settings.form != "last_layer",
        alone=isinstance(settings, Static),
        log_loss=logistic or (isinstance(settings, Static) and settings.loss == "log"),
        unscaled=logistic,
        masks=settings.masks if isinstance(settings, McDropout) else 0,
        dropout=settings.dropout if isinstance(settings, McDropout) else 0.0,
    )


def cold_encoder(net: Net | None, view: View, key: str) -> Encoder:
    """The random features that a policy with a net has before its first training."""
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
