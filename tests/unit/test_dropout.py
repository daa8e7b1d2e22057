"""Masks that are folded into weights say what masks of the layers say."""

import numpy as np
import pytest

from service.bandits import dropout
from service.bandits.dropout import Dropout
from service.bandits.networks import Array, Network, cold_network, dropout_masks


def by_definition(
    network: Network, output: tuple[Array, Array], masks: list[Array], rows: Array
) -> Array:
    """One mask and one layer after the other."""
    said = []
    for mask in zip(*masks, strict=True):
        x = rows
        for index, (weight, bias) in enumerate(network.layers):
            x = x @ weight + bias
            if index < len(mask):
                x = np.maximum(x, 0.0) * mask[index]
        said.append((x @ output[0] + output[1])[:, 0])
    return np.array(said)


@pytest.mark.parametrize("hidden", [[6], [6, 5], [6, 5, 4], [7, 6, 5, 4]])
@pytest.mark.parametrize("rectified", [False, True])
@pytest.mark.parametrize("folded", [1, 60, 2**20])
def test_a_net_under_masks_is_what_its_layers_under_masks_are(
    monkeypatch: pytest.MonkeyPatch, hidden: list[int], rectified: bool, folded: int
) -> None:
    """Few and many weights at once, and rows that do not fill a block."""
    monkeypatch.setattr(dropout, "FOLDED", folded)
    monkeypatch.setattr(dropout, "NUMBERS", 200)
    rng = np.random.default_rng(0)
    network = Network(cold_network([3, *hidden, 4], "net").layers, rectified=rectified)
    masks = dropout_masks(network, 9, 0.3, "masks")
    output = rng.standard_normal((4, 1)), rng.standard_normal(1)
    rows = rng.standard_normal((23, 3))
    said = Dropout(network, output, masks)(rows)
    expected = by_definition(network, output, masks, rows)
    np.testing.assert_allclose(said, expected, rtol=1e-12, atol=1e-12)
