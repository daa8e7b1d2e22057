"""Gradients of a net's output: against autograd, and their kernel against the Jacobian."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.bandits.gradients import Layout, factors
from service.bandits.networks import Network, cold_network

widths = st.lists(st.integers(1, 7), min_size=1, max_size=4)
seeds = st.integers(0, 2**32 - 1)


def made(sizes: tuple[int, ...], seed: int, rows: int = 5) -> tuple[Network, np.ndarray]:
    x = np.random.default_rng(seed).standard_normal((rows, sizes[0]))
    return cold_network(sizes, str(seed)), x


def autograd(network: Network, x: np.ndarray, scale: float) -> np.ndarray:
    """The Jacobian by torch, a row at a time."""
    import torch

    jacobian = []
    for row in x:
        theta = [torch.tensor(one, requires_grad=True) for pair in network.layers for one in pair]
        value, depth = torch.tensor(row), len(network.layers)
        for index in range(depth):
            value = value @ theta[2 * index] + theta[2 * index + 1]
            if index < depth - 1:
                value = torch.relu(value)
        gradients = torch.autograd.grad(value[0], theta)
        jacobian.append(np.concatenate([one.numpy().ravel() for one in gradients]))
    return scale * np.array(jacobian)


def test_a_net_of_one_hidden_unit_by_hand() -> None:
    """g = 3 relu(2 x + 1) - 1 at x = 2: h = 5, dg/dW1 = 3 x = 6, dg/db1 = 3, dg/dW2 = 5 and
    dg/db2 = 1; at x = -1 the unit is off. |J|^2 = 36 + 9 + 25 + 1 = 71."""
    one = np.array([[1.0]])
    layers = [(2 * one, one[0]), (3 * one, -one[0])]
    rows = factors(layers, np.array([[2.0], [-1.0]]), 1.0)
    layout = Layout((1, 1, 1))
    assert (layout.parameters, layout.width) == (4, 4)
    assert rows.tolist() == [[2, 5, 3, 1], [-1, 0, 0, 1]]
    assert layout.dense(rows).tolist() == [[6, 3, 5, 1], [0, 0, 0, 1]]
    assert layout.squares(rows).tolist() == [71, 1]
    assert layout.gram(rows, rows).tolist() == [[71, 1], [1, 1]]


@pytest.mark.process
@given(widths, seeds, st.floats(0.1, 3))
def test_the_jacobian_is_that_of_autograd(sizes: list[int], seed: int, scale: float) -> None:
    layout = Layout((*sizes, 1))
    network, x = made(layout.sizes, seed)
    rows = factors(network.layers, x, scale)
    assert rows.shape == (len(x), layout.width)
    expected = autograd(network, x, scale)
    assert expected.shape == (len(x), layout.parameters)
    np.testing.assert_allclose(layout.dense(rows), expected, rtol=1e-12, atol=1e-12)


@given(widths, seeds)
def test_the_kernel_is_the_product_of_jacobians(sizes: list[int], seed: int) -> None:
    layout = Layout((*sizes, 1))
    network, x = made(layout.sizes, seed, rows=7)
    rows = factors(network.layers, x, 0.5)
    J = layout.dense(rows)
    np.testing.assert_allclose(layout.gram(rows[:3], rows), J[:3] @ J.T, rtol=1e-11, atol=1e-11)
    np.testing.assert_allclose(layout.squares(rows), (J * J).sum(axis=1), rtol=1e-11)
