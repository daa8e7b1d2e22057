"""Fit a net to logged rewards: minibatch SGD, a time-ordered validation split, early stopping."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from service.bandits.networks import Network
from service.bandits.settings import Training
from service.state.version_gate import LEAST_CHANCE

Array = npt.NDArray[np.float64]

WORTHWHILE = 1e-4
"""Least improvement of the validation loss that counts, as a share of the rewards' variance."""


RIDGE = 1.0
"""Penalty of the regression that a net is compared with."""


@dataclass(frozen=True, slots=True)
class NetPlan:
    """What net is fitted, and to what.

    sizes       inputs, hidden layers, features
    rectified   the features end in a ReLU
    dropout     share of each ReLU layer that a training step leaves out
    log_loss    of rewards in [0, 1]; otherwise squares
    groups      inputs that are embedded together, each group in `embedding` numbers, before the
                first hidden layer (the batched recommender's users and products)
    """

    sizes: list[int]
    training: Training
    rectified: bool = False
    dropout: float = 0.0
    log_loss: bool = False
    groups: Sequence[slice] = ()
    embedding: int = 0


@dataclass(frozen=True, slots=True)
class Fitted:
    """Net that was fitted.

    network           features of mean square 1 over the rows
    output            (w, b), a column an output
    validation_loss   of the net on the rows held out: squares over the rewards' variance, or a log
                      loss
    ridge_loss        the same of a ridge regression
    explained         standard errors by which the net's loss on these rows is below that of the
                      rewards' level; 0 where the descent diverged
    unseen            the first row that no gradient came from
    """

    network: Network
    output: tuple[Array, Array]
    passes: int
    validation_loss: float
    ridge_loss: float
    explained: float
    unseen: int


def fit(
    x: Array,  # (n, inputs), in the order of the log
    column: npt.NDArray[np.int64],  # (n,) the output that each reward belongs to
    reward: Array,  # (n,)
    plan: NetPlan,
    seed: int,
    weight: Array | None = None,  # (n,); None: all 1
) -> Fitted:
    """Fit a net. The loss reads the shown arm's output, each row's by its weight; the latest share
    of the rows stops the descent."""
    weight = np.ones(len(reward)) if weight is None else weight
    torch.manual_seed(seed)
    body = _body(plan)
    head = nn.Linear(plan.sizes[-1], int(column.max()) + 1)
    center = float(np.average(reward, weights=weight))
    scale = float(np.sqrt(np.average((reward - center) ** 2, weights=weight))) or 1.0
    if plan.log_loss:
        center, scale = 0.0, 1.0
    split = max(1, round(len(x) * (1 - plan.training.validation)))
    rows = _Rows(
        x=torch.tensor(x, dtype=torch.float32),
        columns=torch.tensor(column),
        targets=torch.tensor((reward - center) / scale, dtype=torch.float32),
        weights=torch.tensor(weight, dtype=torch.float32),
        split=split,
        log_loss=plan.log_loss,
    )
    best = _descend(body, head, rows, plan.training)
    explained = _explained(body, head, rows)

    network = Network(_layers(body), plan.rectified)
    output, bias = _arrays(head)
    size = float(np.sqrt(np.square(network(x)).sum(axis=1).mean())) or 1.0
    last_weight, last_bias = network.layers[-1]
    network = Network(
        [*network.layers[:-1], (last_weight / size, last_bias / size)], plan.rectified
    )
    ridge = _ridge_loss(x, (reward - center) / scale, weight, split, log_loss=plan.log_loss)
    own = output * size * scale, bias * scale + center
    return Fitted(network, own, *best, ridge, explained, split)


def _ridge_loss(x: Array, target: Array, weight: Array, split: int, *, log_loss: bool) -> float:
    """Return the loss of a ridge regression with an intercept, fitted to the rows before the split,
    on those after it; on all where none are after it."""
    z = np.hstack([x, np.ones((len(x), 1))])
    seen = z[:split] * weight[:split, None]
    a = z[:split].T @ seen + RIDGE * np.eye(z.shape[1])
    theta = np.linalg.solve(a, seen.T @ target[:split])
    held_out = slice(split, None) if split < len(x) else slice(None)
    predicted, told = z[held_out] @ theta, target[held_out]
    if log_loss:
        p = np.clip(predicted, LEAST_CHANCE, 1 - LEAST_CHANCE)
        each = -told * np.log(p) - (1 - told) * np.log(1 - p)
    else:
        each = np.square(predicted - told)
    return float(np.average(each, weights=weight[held_out]))


@dataclass(frozen=True, slots=True)
class _Rows:
    """What a net is fitted to, in the order of the log.

    x          (n, inputs)
    columns    (n,) the output that each row's target belongs to
    targets    (n,)
    weights    (n,)
    split      the first row that is held out
    log_loss   of targets in [0, 1]; otherwise squares
    """

    x: torch.Tensor
    columns: torch.Tensor
    targets: torch.Tensor
    weights: torch.Tensor
    split: int
    log_loss: bool

    def losses(
        self, body: nn.Module, head: nn.Module, chosen: torch.Tensor | slice
    ) -> torch.Tensor:
        """Return the loss of a net on each of the chosen rows."""
        outputs = head(body(self.x[chosen]))
        return self.losses_of(outputs.gather(1, self.columns[chosen][:, None])[:, 0], chosen)

    def losses_of(self, output: torch.Tensor, chosen: torch.Tensor | slice) -> torch.Tensor:
        """Return the loss of an output for each of the chosen rows."""
        targets = self.targets[chosen]
        if self.log_loss:
            loss = nn.functional.binary_cross_entropy_with_logits
            return loss(output, targets, reduction="none")
        return nn.functional.mse_loss(output, targets, reduction="none")


def _explained(body: nn.Module, head: nn.Module, rows: _Rows) -> float:
    """Return by how many standard errors the net's loss on the rows held out is below that of the
    level of those before; 0 where that is no number, or no row is held out."""
    fitted, held_out = slice(rows.split), slice(rows.split, None)
    with torch.no_grad():
        weights = rows.weights[fitted]
        level = (weights * rows.targets[fitted]).sum() / weights.sum()
        if rows.log_loss:
            level = torch.logit(level.clamp(LEAST_CHANCE, 1 - LEAST_CHANCE))
        flat = rows.losses_of(level.expand_as(rows.targets[held_out]), held_out)
        gains = rows.weights[held_out] * (flat - rows.losses(body, head, held_out))
        found = float(gains.sum() / (gains - gains.mean()).square().sum().sqrt())
    return found if isfinite(found) else 0.0


class _Embeddings(nn.Module):
    """Each group of inputs in numbers of its own, side by side; they start as torch's own do."""

    def __init__(self, groups: Sequence[slice], embedding: int) -> None:
        super().__init__()
        self.groups = groups
        self.tables = nn.ParameterList(
            [torch.randn(group.stop - group.start, embedding) for group in groups]
        )

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        tables = zip(self.groups, self.tables, strict=True)
        return torch.cat([rows[:, group] @ table for group, table in tables], dim=1)

    def weight(self) -> Array:  # (inputs, groups * embedding)
        """Return all tables as one matrix."""
        whole: torch.Tensor = torch.block_diag(*self.tables)
        return np.asarray(whole.detach().double().numpy())


def _body(plan: NetPlan) -> nn.Sequential:
    layers: list[nn.Module] = []
    sizes = plan.sizes
    if plan.groups:
        layers.append(_Embeddings(plan.groups, plan.embedding))
        sizes = [len(plan.groups) * plan.embedding, *sizes[1:]]
    for width_in, width_out in pairwise(sizes):
        layers += [nn.Linear(width_in, width_out), nn.ReLU(), nn.Dropout(plan.dropout)]
    return nn.Sequential(*(layers if plan.rectified else layers[:-2]))


def _layers(body: nn.Sequential) -> list[tuple[Array, Array]]:
    """Return the linear layers; embeddings become part of the first of them."""
    layers = [_arrays(layer) for layer in body if isinstance(layer, nn.Linear)]
    if isinstance(body[0], _Embeddings):
        weight, bias = layers[0]
        layers[0] = body[0].weight() @ weight, bias
    return layers


def _descend(
    body: nn.Module, head: nn.Module, rows: _Rows, training: Training
) -> tuple[int, float]:
    """Adam until `patience` passes bring no gain; leaves the best parameters in place."""
    split = rows.split
    parameters = [*body.parameters(), *head.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=training.learning_rate)
    batch = max(training.batch, -(-split // training.steps))

    def loss(chosen: torch.Tensor | slice) -> torch.Tensor:
        weights = rows.weights[chosen]
        return (weights * rows.losses(body, head, chosen)).sum() / weights.sum()

    held_out = slice(split, None) if split < len(rows.x) else slice(None)
    best, kept, bad, passes = float("inf"), [p.detach().clone() for p in parameters], 0, 0
    while passes < training.epochs and bad < training.patience:
        passes += 1
        body.train()
        for chosen in torch.split(torch.randperm(split), batch):
            optimizer.zero_grad()
            loss(chosen).backward()
            optimizer.step()
        body.eval()
        with torch.no_grad():
            current = float(loss(held_out))
        bad += 1
        if current < best - WORTHWHILE:
            best, kept, bad = current, [p.detach().clone() for p in parameters], 0
    with torch.no_grad():
        for parameter, value in zip(parameters, kept, strict=True):
            parameter.copy_(value)
    return passes, best


def _arrays(layer: nn.Linear) -> tuple[Array, Array]:
    weight = layer.weight.detach().double().numpy().T.copy()
    return weight, layer.bias.detach().double().numpy().copy()
