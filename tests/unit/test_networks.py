from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.bandits.networks import Network, cold_network

sizes = st.lists(st.integers(1, 9), min_size=2, max_size=5)


def in_torch(network: Network) -> Any:
    import torch

    layers: list[torch.nn.Module] = []
    for weight, bias in network.layers:
        linear = torch.nn.Linear(*weight.shape, dtype=torch.float64)
        linear.weight.data, linear.bias.data = torch.tensor(weight.T), torch.tensor(bias)
        layers += [linear, torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1])


@pytest.mark.process
@given(sizes, st.integers(0, 6), st.text(max_size=4))
def test_the_forward_pass_equals_torchs(widths: list[int], rows: int, key: str) -> None:
    network = cold_network(widths, key)
    x = np.random.default_rng(0).standard_normal((rows, widths[0]))
    import torch

    with torch.no_grad():
        expected = in_torch(network)(torch.tensor(x)).numpy()
    np.testing.assert_allclose(network(x), expected, atol=1e-12)
    assert network.width == widths[-1]


def test_two_layers_by_hand_with_a_relu_between_and_none_at_the_end() -> None:
    """x = (1, 2): hidden (1 - 2, 1 + 2) -> (0, 3); out -2 * 3 + 1 = -5."""
    hidden = np.array([[1.0, 1.0], [-1.0, 1.0]]), np.zeros(2)
    out = np.array([[5.0], [-2.0]]), np.array([1.0])
    assert Network([hidden, out])(np.array([[1.0, 2.0]])).tolist() == [[-5.0]]


@given(sizes, st.text(max_size=4))
def test_a_cold_network_is_a_pure_function_of_sizes_and_key(widths: list[int], key: str) -> None:
    first, second = cold_network(widths, key), cold_network(widths, key)
    for name, array in first.arrays().items():
        assert np.array_equal(array, second.arrays()[name])
    other = cold_network(widths, key + "!")
    assert not np.array_equal(other.layers[0][0], first.layers[0][0])


def test_cold_features_keep_the_scale_of_their_inputs() -> None:
    """Inputs of mean square 1 through 256-256-256: features of mean square 1 within a fifth."""
    x = np.random.default_rng(0).standard_normal((500, 64))
    features = cold_network([64, 256, 256, 256], "key")(x)
    assert np.square(features).mean() == pytest.approx(1.0, rel=0.2)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"weight1": np.ones((5, 2))}, "do not fit"),
        ({"bias0": np.ones(9)}, "do not fit"),
        ({"weight0": np.ones(4)}, "do not fit"),
        ({"weight1": np.full((4, 2), np.nan)}, "not finite"),
        ({"bias1": np.array([np.inf, 0.0])}, "not finite"),
        ({"weight2": np.ones((2, 2))}, "bias2"),
    ],
)
def test_arrays_that_are_no_network_are_refused(change: dict, fault: str) -> None:
    arrays = cold_network([3, 4, 2], "key").arrays()
    with pytest.raises((KeyError, ValueError), match=fault):
        Network.from_arrays(arrays | change)


def test_no_arrays_are_no_network() -> None:
    with pytest.raises(ValueError, match="no layers"):
        Network.from_arrays({})
