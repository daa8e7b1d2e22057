"""Members and masks disagree more where there was less data; draws have a posterior's moments."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from service.bandits.encoder import Encoder
from service.bandits.heads import (
    Array,
    Bank,
    DisjointRidgeHead,
    EnsembleHead,
    GradientHead,
    Head,
    Observation,
    RidgeHead,
)
from service.bandits.heads.logistic import LogisticHead
from service.bandits.networks import dropout_masks
from service.bandits.settings import Training
from service.training.fit import NetPlan, fit
from tests.statistics.test_coverage import LAST, LAYOUT, gradient_rows

INPUTS = np.linspace(-3, 3, 121)[:, None]
SEEN, UNSEEN = np.abs(INPUTS[:, 0]) <= 1, np.abs(INPUTS[:, 0]) >= 2.5


def lifted(x: Array) -> Array:
    """Bumps of width 0.5 along the line: what is far from the data shares no feature with it."""
    return np.asarray(np.exp(-np.square((x - np.linspace(-3, 3, 13)) / 0.5)))


def test_an_ensemble_disagrees_3_times_as_much_where_it_saw_nothing() -> None:
    """300 rewards of inputs from -1 to 1; its spread there, and beyond 2.5."""
    rng = np.random.default_rng(0)
    head = EnsembleHead(13, 1.0, None, 10, "p")
    for number, x in enumerate(rng.uniform(-1, 1, 300)):
        phi = lifted(np.array([[x]]))[0]
        head.observe(
            Observation("a", phi, float(np.sin(3 * x) + 0.3 * rng.standard_normal()), str(number))
        )
    width = head.width(lifted(INPUTS), ["a"] * len(INPUTS))
    assert width[UNSEEN].mean() > 3 * width[SEEN].mean()


@pytest.mark.parametrize("seed", range(3))
def test_dropout_masks_disagree_more_where_the_net_saw_nothing(seed: int) -> None:
    """A net of 64 and 32 units trained with torch on 600 rewards of inputs from -1 to 1: 64 masks
    spread at least 1.5 times as much beyond 2.5 as where it was trained."""
    torch.set_num_threads(1)
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, (600, 1))
    reward = np.sin(3 * x[:, 0]) + 0.1 * rng.standard_normal(600)
    training = Training(epochs=60, learning_rate=1e-2)
    fitted = fit(
        x, np.zeros(600, np.int64), reward, NetPlan([1, 64, 32, 8], training, dropout=0.2), 1
    )
    masks = dropout_masks(fitted.network, 64, 0.2, f"net {seed}")
    encoder = Encoder(trained=fitted.network, output=fitted.output, masks=masks)
    said = encoder.predict_masked(INPUTS)
    assert said.shape == (64, 121)
    spread = said.std(axis=0)
    assert spread[UNSEEN].mean() > 1.5 * spread[SEEN].mean()
    assert np.abs(said.mean(axis=0) - np.sin(3 * INPUTS[:, 0]))[SEEN].mean() < 0.3


def gradient(form: str) -> Callable[[], Head]:
    return lambda: GradientHead(LAST, LAYOUT, form, 1.0, None)


DRAWN: dict[str, tuple[Callable[[], Head], bool]] = {
    "ridge": (lambda: RidgeHead(5, 1.0, None), False),
    "disjoint": (lambda: DisjointRidgeHead(5, 1.0, None), False),
    "logistic": (lambda: LogisticHead(5, 1.0, 16), False),
    "full": (gradient("full"), True),
    "diagonal": (gradient("diagonal"), True),
}


@pytest.mark.parametrize("name", DRAWN)
def test_draws_have_the_mean_and_the_width_of_the_posterior(name: str) -> None:
    """16,384 draws after 60 clicks: means within 0.02 widths, spreads within 2 percent; the draws
    of a sum of two rows have the variance that the head gives their sum, where it is linear."""
    make, wide = DRAWN[name]
    rng, head = np.random.default_rng(4), make()
    rows = gradient_rows(66, rng) if wide else rng.standard_normal((66, 5))
    arms = [f"arm{number % 6}" for number in range(66)]
    for number in range(60):
        head.observe(
            Observation(arms[number], rows[number], float(rng.random() < 0.4), str(number))
        )
    asked, names = rows[60:], arms[:6]
    drawn = head.draw(asked, names, Bank(16_384, "moments"))
    mean, width = head.mean(asked, names), head.width(asked, names)
    if name == "logistic":
        mean = np.log(mean / (1 - mean))
    assert (np.abs(drawn.mean(axis=0) - mean) < 0.02 * width).all()
    np.testing.assert_allclose(drawn.std(axis=0), width, rtol=0.02)
    if name in ("ridge", "logistic"):
        both = head.width(asked[:1] + asked[1:2], names[:1])[0]
        assert (drawn[:, 0] + drawn[:, 1]).std() == pytest.approx(both, rel=0.03)
    if name == "disjoint":
        np.testing.assert_allclose(np.corrcoef(drawn.T), np.eye(6), atol=0.03)
