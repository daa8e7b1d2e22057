"""Fit a net to logged rewards: minibatch SGD, a time-ordered validation split, early stopping."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from service.networks import Network
from service.policies.settings import Training

Array = npt.NDArray[np.float64]

STEPS_A_PASS = 64
"""At most; batches grow with the log, so that a pass costs about the same."""
WORTHWHILE = 1e-4
"""Improvements of the validation loss below this share of the rewards' variance do not count."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """network: the embedding, mean square 1 over the rows; output: (w, b), a column an output."""

    network: Network
    output: tuple[Array, Array]
    passes: int
    validation_loss: float


def fit(
    x: Array,  # (n, inputs), in the order of the log
    column: npt.NDArray[np.int64],  # (n,) the output that each reward belongs to
    reward: Array,  # (n,)
    sizes: list[int],  # inputs, hidden layers, embedding
    training: Training,
    seed: int,
) -> Fitted:
    """Least squares on the shown arm's output; the latest share of the rows stops it early."""
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for width_in, width_out in pairwise(sizes):
        layers += [nn.Linear(width_in, width_out), nn.ReLU()]
    body = nn.Sequential(*layers[:-1])  # the embedding ends linear
    head = nn.Linear(sizes[-1], int(column.max()) + 1)

    center, scale = float(reward.mean()), float(reward.std()) or 1.0
    rows = torch.tensor(x, dtype=torch.float32)
    columns = torch.tensor(column)
    targets = torch.tensor((reward - center) / scale, dtype=torch.float32)
    split = max(1, round(len(rows) * (1 - training.validation)))
    best = _descend(body, head, rows, columns, targets, split, training)

    linears = [layer for layer in body if isinstance(layer, nn.Linear)]
    network = Network([_arrays(layer) for layer in linears])
    weight, bias = _arrays(head)
    size = float(np.sqrt(np.square(network(x)).sum(axis=1).mean())) or 1.0
    last_weight, last_bias = network.layers[-1]
    network = Network([*network.layers[:-1], (last_weight / size, last_bias / size)])
    return Fitted(network, (weight * size * scale, bias * scale + center), *best)


def _descend(
    body: nn.Module,
    head: nn.Module,
    rows: torch.Tensor,
    columns: torch.Tensor,
    targets: torch.Tensor,
    split: int,
    training: Training,
) -> tuple[int, float]:
    """Adam until `patience` passes brought nothing; leaves the best parameters in place."""
    parameters = [*body.parameters(), *head.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=training.learning_rate)
    batch = max(training.batch, -(-split // STEPS_A_PASS))

    def loss(chosen: Any) -> torch.Tensor:
        outputs = head(body(rows[chosen]))
        own = outputs.gather(1, columns[chosen][:, None])[:, 0]
        return nn.functional.mse_loss(own, targets[chosen])

    held_out = slice(split, None) if split < len(rows) else slice(None)
    best, kept, bad, passes = float("inf"), [p.detach().clone() for p in parameters], 0, 0
    while passes < training.epochs and bad < training.patience:
        passes += 1
        for chosen in torch.split(torch.randperm(split), batch):
            optimizer.zero_grad()
            loss(chosen).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        with torch.no_grad():
            now = float(loss(held_out))
        bad += 1
        if now < best - WORTHWHILE:
            best, kept, bad = now, [p.detach().clone() for p in parameters], 0
    with torch.no_grad():
        for parameter, value in zip(parameters, kept, strict=True):
            parameter.copy_(value)
    return passes, best


def _arrays(layer: nn.Linear) -> tuple[Array, Array]:
    weight = layer.weight.detach().double().numpy().T.copy()
    return weight, layer.bias.detach().double().numpy().copy()
