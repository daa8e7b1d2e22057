"""A 90 percent interval of the posterior covers the truth 90 percent of the time.

The truth is drawn from the prior: w ~ N(0, sigma^2 / lambda I), rewards phi^T w + sigma e; with a
learned noise sigma^2 ~ InverseGamma(1, 0.01). phi begins with an intercept, as policies' rows do.
The interval is mean +- 1.645 widths, a normal's:
with a learned noise, sigma_hat^2 = b_n / (a_n - 1) widens it as the 2 a_n degrees of freedom of
the exact Student t do, which is printed beside it.

Heads take the mean of all rewards for the level, and the noise's prior from their spread, as if
both were known. After five rewards the interval is too narrow by that, also after twenty where the
noise is learned.

Approximate heads are measured and not bounded (make statistics prints them).
"""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.special import expit, logit
from scipy.stats import t as student

from service.bandits.encoder import Encoder
from service.bandits.gradients import Layout, factors
from service.bandits.heads import (
    NOISE_RATE,
    NOISE_SHAPE,
    Array,
    DisjointRidgeHead,
    EnsembleHead,
    GradientHead,
    Head,
    Observation,
    RidgeHead,
)
from service.bandits.heads.logistic import LogisticHead
from service.bandits.heads.reward_sums import RewardSums
from service.bandits.networks import cold_network, dropout_masks
from service.bandits.settings import Training
from service.training.fit import NetPlan, fit

REPLICATES = 5_000
SIZE, RIDGE = 5, 1.0
Z90 = 1.6448536269514722


def rows_with_intercept(count: int, rng: np.random.Generator) -> Array:
    return np.hstack([np.ones((count, 1)), rng.standard_normal((count, SIZE - 1))])


def noise_of(learned: bool, rng: np.random.Generator) -> float:
    return float(np.sqrt(NOISE_RATE / rng.gamma(NOISE_SHAPE))) if learned else 0.5


def covered_by_shared(count: int, learned: bool, seed: int) -> tuple[float, float]:
    """Shares of 5,000 worlds whose phi^T w lies in the normal's and in the Student's interval."""
    rng, hits = np.random.default_rng(seed), np.zeros(2)
    for _ in range(REPLICATES):
        sigma = noise_of(learned, rng)
        w = rng.standard_normal(SIZE) * sigma / np.sqrt(RIDGE)
        phi = rows_with_intercept(count, rng)
        r = phi @ w + sigma * rng.standard_normal(count)
        head = RidgeHead(SIZE, RIDGE, None if learned else sigma)
        head.A += phi.T @ phi
        head.b += phi.T @ r
        head.s += phi.sum(axis=0)
        head.rewards = RewardSums(float(count), float(r.sum()), float(r @ r))
        row = rows_with_intercept(1, rng)
        off = abs(head.mean(row, ["a"])[0] - row[0] @ w)
        width = head.width(row, ["a"])[0]
        shape = NOISE_SHAPE + count / 2
        exact = student.ppf(0.95, 2 * shape) * np.sqrt((shape - 1) / shape) if learned else Z90
        hits += [off < Z90 * width, off < exact * width]
    normal, exactly = hits / REPLICATES
    return float(normal), float(exactly)


def covered_by_disjoint(count: int, learned: bool, seed: int) -> float:
    """The same of four arms that share `count` rewards, unevenly: by 8, 4, 2, 1 of 15."""
    rng, hits = np.random.default_rng(seed), 0
    arms = ["a", "b", "c", "d"]
    for _ in range(REPLICATES):
        sigma = noise_of(learned, rng)
        w = rng.standard_normal((4, SIZE)) * sigma / np.sqrt(RIDGE)
        own = rng.choice(4, count, p=np.array([8, 4, 2, 1]) / 15)
        phi = rows_with_intercept(count, rng)
        r = np.einsum("nm,nm->n", phi, w[own]) + sigma * rng.standard_normal(count)
        head = DisjointRidgeHead(SIZE, RIDGE, None if learned else sigma)
        for arm in range(4):
            head.observe(Observation(arms[arm], np.zeros(SIZE), 0.0))  # makes its row
            mine = own == arm
            head.A[arm] += phi[mine].T @ phi[mine]
            head.b[arm] += phi[mine].T @ r[mine]
            head.s[arm] = phi[mine].sum(axis=0)
            head.n[arm], head.total[arm] = mine.sum(), r[mine].sum()
            head.rr[arm] = r[mine] @ r[mine]
        rows = rows_with_intercept(4, rng)
        off = np.abs(head.mean(rows, arms) - np.einsum("nm,nm->n", rows, w))
        hits += int((off < Z90 * head.width(rows, arms)).sum())
    return hits / (4 * REPLICATES)


@pytest.mark.parametrize("learned", [False, True])
def test_a_shared_heads_interval_covers_the_truth_in_88_to_92_percent(learned: bool) -> None:
    """100 observations; the noise known, and learned."""
    normal, _ = covered_by_shared(100, learned, seed=1)
    assert 0.88 <= normal <= 0.92


def test_a_disjoint_heads_interval_covers_the_truth_in_88_to_92_percent() -> None:
    assert 0.88 <= covered_by_disjoint(100, False, seed=2) <= 0.92


EARLY = {(False, 5): 0.86, (True, 5): 0.76, (True, 20): 0.865}
"""Coverage before the level, and the noise if it is learned (True), are known well."""


@pytest.mark.statistics
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("count", [5, 20, 100, 500])
@pytest.mark.parametrize("learned", [False, True])
def test_ridge_heads_cover_at_every_size_of_their_evidence(learned: bool, count: int) -> None:
    normal, exact = covered_by_shared(count, learned, seed=count)
    disjoint = covered_by_disjoint(count, learned, seed=count)
    print(  # noqa: T201
        f"noise {'learned' if learned else 'fixed'}, {count} observations: shared {normal:.4f} "
        f"(Student {exact:.4f}), disjoint {disjoint:.4f}"
    )
    expected = EARLY.get((learned, count), 0.9)
    assert (normal, exact, disjoint) == pytest.approx((expected,) * 3, abs=0.02)


# -- approximate heads: measured ----------------------------------------------------------------

LAYERS = cold_network([4, 8, 1], "coverage").layers
LAYOUT = Layout((4, 8, 1))
LAST = 9
"""The last layer's inputs and its bias."""


def gradient_rows(count: int, rng: np.random.Generator) -> Array:
    """[last-layer features | factors of J] of random inputs."""
    x = rng.standard_normal((count, 4))
    rows = factors(LAYERS, x, 1.0)
    hidden = rows[:, 4:12]
    return np.hstack([hidden, np.ones((count, 1)), rows])


def gradient_head(form: str) -> Callable[[], Head]:
    return lambda: GradientHead(LAST, LAYOUT, form, RIDGE, None)


def ensemble_head(members: int) -> Callable[[], Head]:
    return lambda: EnsembleHead(SIZE, RIDGE, None, members, "coverage")


def measured(make: Callable[[], Head], gradient: bool, count: int, worlds: int) -> float:
    """Share of worlds whose truth lies within 1.645 widths of the mean; sigma = 0.5."""
    rng, hits = np.random.default_rng(count), 0
    for world in range(worlds):
        make_rows = gradient_rows if gradient else rows_with_intercept
        rows = make_rows(count + 1, rng)
        dense = LAYOUT.dense(rows[:, LAST:]) if gradient else rows
        w = 0.5 * rng.standard_normal(dense.shape[1]) / np.sqrt(RIDGE)
        truth = dense @ w
        head = make()
        for number in range(count):
            reward = float(truth[number] + 0.5 * rng.standard_normal())
            head.observe(Observation("a", rows[number], reward, f"{world}/{number}"))
        off = abs(head.mean(rows[-1:], ["a"])[0] - truth[-1])
        hits += off < Z90 * head.width(rows[-1:], ["a"])[0]
    return hits / worlds


MEASURED = {
    "ensemble of 10": {20: 0.81, 100: 0.82, 500: 0.84},
    "ensemble of 50": {20: 0.88, 100: 0.88, 500: 0.89},
    "full": {20: 0.89, 100: 0.80, 500: 0.47},
    "diagonal": {20: 0.39, 100: 0.28, 500: 0.13},
}
"""By observations, of 500 worlds each. An ensemble of 10 has its width from 10 numbers. Truths of
the gradient heads are linear in the gradients of all parameters, their mean the last layer's
regression alone: the more is seen, the more of what is left is no noise."""

HEADS: dict[str, tuple[Callable[[], Head], bool]] = {
    "ensemble of 10": (ensemble_head(10), False),
    "ensemble of 50": (ensemble_head(50), False),
    "full": (gradient_head("full"), True),
    "diagonal": (gradient_head("diagonal"), True),
}


@pytest.mark.statistics
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("count", [20, 100, 500])
@pytest.mark.parametrize("name", HEADS)
def test_the_coverage_of_approximate_heads_is_as_it_was_measured(name: str, count: int) -> None:
    share = measured(*HEADS[name], count, worlds=500)
    print(f"{name}, {count} observations: {share:.3f}")  # noqa: T201
    assert share == pytest.approx(MEASURED[name][count], abs=0.07)


def logits_covered(count: int, worlds: int) -> float:
    """The logistic head: 4 normal weights, clicks of chance expit(phi^T w), intervals of logits."""
    rng, hits = np.random.default_rng(count), 0
    for _ in range(worlds):
        w, rows = rng.standard_normal(4), rng.standard_normal((count + 1, 4))
        head = LogisticHead(4, 1.0, 16)
        for row in rows[:-1]:
            head.observe(Observation("a", row, float(rng.random() < expit(row @ w))))
        said = logit(head.mean(rows[-1:], ["a"])[0])
        hits += abs(said - rows[-1] @ w) < Z90 * head.width(rows[-1:], ["a"])[0]
    return hits / worlds


def masks_covered(count: int, worlds: int) -> float:
    """Dropout: a net of 32 and 16 units trained on what another random one of that size says, with
    noise 0.1; the interval of 64 masks at 50 new inputs."""
    torch.set_num_threads(1)
    hits = 0
    for world in range(worlds):
        rng = np.random.default_rng((count, world))
        truth, x = cold_network([4, 32, 16, 1], f"world {world}"), rng.standard_normal((count, 4))
        reward = truth(x)[:, 0] + 0.1 * rng.standard_normal(count)
        plan = NetPlan([4, 32, 16, 8], Training(epochs=40, learning_rate=3e-3), dropout=0.2)
        fitted = fit(x, np.zeros(count, np.int64), reward, plan, seed=world)
        masks = dropout_masks(fitted.network, 64, 0.2, f"masks {world}")
        encoder = Encoder(trained=fitted.network, output=fitted.output, masks=masks)
        asked = rng.standard_normal((50, 4))
        said = encoder.predict_masked(asked)
        off = np.abs(said.mean(axis=0) - truth(asked)[:, 0])
        hits += int((off < Z90 * said.std(axis=0)).sum())
    return hits / (50 * worlds)


FITTED = {
    "logistic": (logits_covered, 300, {20: 0.80, 100: 0.74, 500: 0.76}),
    "dropout": (masks_covered, 20, {100: 0.60, 500: 0.84}),
}


@pytest.mark.statistics
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize(
    ("name", "count"), [(name, count) for name, (*_, found) in FITTED.items() for count in found]
)
def test_the_coverage_of_fitted_heads_is_as_it_was_measured(name: str, count: int) -> None:
    covered, worlds, found = FITTED[name]
    share = covered(count, worlds)
    print(f"{name}, {count} observations: {share:.3f}")  # noqa: T201
    assert share == pytest.approx(found[count], abs=0.1)
