"""Logged propensities are true, for every policy: head frozen, one context, a few hundred rewards.

Arms are drawn with the probabilities that are logged (chi-square test at 0.001), and these are the
chances that the arms win under the posterior: within 4 standard errors of the shares among 10^6
independent draws, exact where nothing is drawn. A softmax of the scores fails both.
"""

from functools import cache

import numpy as np
import pytest
from scipy.stats import chisquare

from service.bandits import rules
from service.bandits.heads import Bank, digest
from service.decide.scoring import decide, decide_batch
from service.state.decider import Decider
from service.state.events import settlements_of
from service.state.fold import State
from service.state.learner import Learner
from tests.statistics.posterior import (
    best_of,
    kinds_of,
    point_scores,
    predictions_of,
    rows_of,
    softmax_of_scores,
    winning_shares,
)
from tests.statistics.shop import (
    CLOSED,
    FLOOR,
    MEMBERS,
    POLICIES,
    THOMPSON,
    TRAINED,
    UNIFORM,
    Array,
    context_of,
    frozen,
    learned,
)
from tests.support.chances import cells_of
from tests.support.tables import table_of

LEVEL = 0.001
SEEDS = 2_000
DRAWS = 1_000_000
CONNOISSEUR = 1
POINT = [name for name in POLICIES if name not in (*THOMPSON, *MEMBERS, *CLOSED, *UNIFORM, "auto")]


def policy(name: str, epsilon: float = 0.0) -> Learner:
    return frozen(epsilon).learners[name]


def answer(learner: Learner, persona: int = CONNOISSEUR) -> Array:
    """The probabilities of one decision; the seed has no part in them."""
    return decide(Decider.serving(learner), context_of(persona), frozen().candidates, 1, seed=0)[0]


@cache
def shown(name: str, epsilon: float, persona: int, seeds: int) -> Array:
    """(K,) how often each arm is shown over so many seeds; its propensity is always p's."""
    learner, context, candidates = policy(name, epsilon), context_of(persona), frozen().candidates
    p = answer(learner, persona)
    counts = np.zeros(len(p))
    for seed in np.random.default_rng(seeds).integers(0, 2**63, seeds).tolist():
        again, slate = decide(Decider.serving(learner), context, candidates, 1, seed)
        assert np.array_equal(again, p)
        assert slate.propensities == [p[slate.arms[0]]]
        counts[slate.arms[0]] += 1
    return counts


def fit_of(counts: Array, p: Array) -> float:
    """The chi-square test's p-value; cells that expect under 5 are lumped into one, and a count
    where none can be is no fit at all."""
    if counts[p == 0].any():
        return 0.0
    observed, wanted = cells_of(counts, p)
    if len(observed) == 1:
        return 1.0
    return float(chisquare(observed, wanted).pvalue)


def errors_of(p: Array, shares: Array, kinds: Array, draws: int) -> Array:
    """Differences in standard errors, an arm that can be told apart each: shares of `draws` (the
    bank) against 10^6. Those that expect under 5 of the bank's draws are lumped into one. What
    by both expects under 5 of them, or all but 5, is left out: its count is not near normal."""
    own, other = (np.bincount(kinds, weights) for weights in (p, shares))
    small = other * draws < 5
    own, other = (np.append(cells[~small], cells[small].sum()) for cells in (own, other))
    told = np.maximum(*(np.minimum(cells, 1 - cells) for cells in (own, other))) * draws >= 5
    if not told.any():
        return np.zeros(1)
    own, other = own[told], other[told]
    deviation = np.sqrt(other * (1 - other) * (1 / draws + 1 / DRAWS))
    return np.abs(own - other) / np.maximum(deviation, 1e-12)


# -- the draw follows the probabilities ---------------------------------------------------------

EPSILONS = [pytest.param(0.0, marks=pytest.mark.slow), FLOOR]


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("name", POLICIES)
def test_arms_are_shown_as_often_as_is_logged(name: str, epsilon: float) -> None:
    """2,000 seeds at a fixed context, no floor and one of 0.1."""
    learner = policy(name, epsilon)
    counts = shown(name, epsilon, CONNOISSEUR, SEEDS)
    assert fit_of(counts, answer(learner)) > LEVEL


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("name", [name for name in POLICIES if name not in (*UNIFORM, "auto")])
def test_a_softmax_of_the_scores_is_no_propensity(name: str, epsilon: float) -> None:
    """The same test, the same seeds: what is often logged instead does not pass it."""
    learner = policy(name, epsilon)
    soft = softmax_of_scores(learner, context_of(CONNOISSEUR), frozen().candidates)
    assert fit_of(shown(name, epsilon, CONNOISSEUR, SEEDS), rules.floor(soft, epsilon)) < LEVEL


# -- the probabilities are those of the posterior -----------------------------------------------


@cache
def independent_shares(name: str, persona: int) -> Array:
    candidates = frozen().candidates
    return winning_shares(policy(name), context_of(persona), candidates, DRAWS, seed=11)


def worst_error(name: str, p: Array, persona: int = CONNOISSEUR, draws: int = 512) -> float:
    candidates, learner = frozen().candidates, policy(name)
    kinds = kinds_of(learner, rows_of(learner, context_of(persona), candidates))
    return float(errors_of(p, independent_shares(name, persona), kinds, draws).max())


@pytest.mark.parametrize("name", THOMPSON)
def test_a_thompson_policys_probabilities_are_the_shares_of_a_million_draws(name: str) -> None:
    """512 draws of the bank against 10^6 independent ones, within 4 standard errors; arms that
    the policy cannot tell apart have one probability."""
    p, learner = answer(policy(name)), policy(name)
    assert len(learner.active.bank.columns(["0"])[:, 0]) == 512
    assert worst_error(name, p) < 4
    if not learner.policy.per_arm:
        assert np.array_equal(p[:5], p[5:])


@pytest.mark.parametrize("name", THOMPSON)
def test_a_softmax_of_the_means_is_far_from_a_million_draws(name: str) -> None:
    learner, candidates = policy(name), frozen().candidates
    assert worst_error(name, softmax_of_scores(learner, context_of(CONNOISSEUR), candidates)) > 4


@pytest.mark.parametrize("persona", range(4))
@pytest.mark.parametrize("name", POINT)
def test_an_upper_bound_or_a_best_guess_goes_to_the_argmax_and_its_ties(
    name: str, persona: int
) -> None:
    candidates = frozen().candidates
    expected = best_of(point_scores(policy(name), context_of(persona), candidates))
    assert answer(policy(name), persona) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("persona", range(4))
@pytest.mark.parametrize("name", MEMBERS)
def test_a_member_or_a_mask_is_drawn_and_probabilities_are_the_exact_shares(
    name: str, persona: int
) -> None:
    """Each of 10 members, or 64 masks, is as likely; arms that tie in one share its win."""
    said = predictions_of(policy(name), context_of(persona), frozen().candidates)
    assert len(said) == {"bootstrap_ensemble": 10, "mc_dropout": 64}[name]
    expected = np.mean([best_of(scores) for scores in said], axis=0)
    assert answer(policy(name), persona) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("persona", range(4))
@pytest.mark.parametrize("name", CLOSED)
def test_inverse_gaps_are_by_the_means_of_all_arms_and_leave_none_out(
    name: str, persona: int
) -> None:
    """1 / (K + 10 (K / U) sqrt(300) gap) of 10 arms of 5 categories, or of 10 that are told apart;
    the rest is the best one's."""
    candidates, learner = frozen().candidates, policy(name)
    phi = rows_of(learner, context_of(persona), candidates)
    means, kinds = learner.active.expected(phi, candidates.ids), kinds_of(learner, phi)
    best = means > means.max() - 1e-9
    gamma = 10 * np.sqrt(300) * 10 / len(np.unique(kinds))
    expected = 1 / (10 + gamma * (means.max() - means))
    expected[best] = (1 - expected[~best].sum()) / best.sum()
    p = answer(learner, persona)
    assert p == pytest.approx(expected, rel=1e-6)
    assert p.min() >= 1 / (10 + gamma)


@pytest.mark.parametrize("name", UNIFORM)
def test_what_knows_nothing_is_a_tenth_for_each_of_10_arms(name: str) -> None:
    """Chance, and a static policy before its training."""
    assert answer(policy(name)).tolist() == pytest.approx([0.1] * 10)


@pytest.mark.parametrize("name", [name for name in POLICIES if name != "auto"])
def test_a_floor_of_a_tenth_leaves_each_of_10_arms_a_hundredth(name: str) -> None:
    p, floored = answer(policy(name)), answer(policy(name, FLOOR))
    assert floored == pytest.approx((1 - FLOOR) * p + FLOOR / 10, abs=1e-12)
    assert floored.min() >= 0.01 - 1e-12


def test_nets_are_trained_and_a_frozen_head_keeps_its_bits_under_more_rewards() -> None:
    state = State.restore(frozen().snapshot())
    heads = {name: learner.active.head for name, learner in state.learners.items()}
    before = {name: digest(head) for name, head in heads.items() if head}
    for event in (event for event in learned(0).events() if settlements_of(event)):
        state.apply(state.position + 1, event)
    assert {name: digest(head) for name, head in heads.items() if head} == before
    versions = {name: learner.active.number for name, learner in state.learners.items()}
    assert {name for name, number in versions.items() if number == 1} == set(TRAINED)


# -- the long form ------------------------------------------------------------------------------


@pytest.mark.statistics
@pytest.mark.parametrize("persona", range(4))
@pytest.mark.parametrize("epsilon", [0.0, FLOOR])
@pytest.mark.parametrize("name", POLICIES)
def test_arms_are_shown_as_often_as_is_logged_over_20000_seeds(
    name: str, epsilon: float, persona: int
) -> None:
    learner = policy(name, epsilon)
    assert fit_of(shown(name, epsilon, persona, 20_000), answer(learner, persona)) > LEVEL / 10


@pytest.mark.statistics
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("persona", range(4))
@pytest.mark.parametrize("name", CLOSED)
def test_a_million_choices_are_as_often_each_arm_as_is_logged(name: str, persona: int) -> None:
    learner, candidates = policy(name), frozen().candidates
    p, contexts = answer(learner, persona), [context_of(persona)] * 1_000
    rng, counts = np.random.default_rng(persona), np.zeros(len(p))
    for _ in range(DRAWS // 1_000):
        seeds = rng.integers(0, 2**63, 1_000).tolist()
        for _, slate in decide_batch(Decider.serving(learner), contexts, candidates, seeds):
            counts[slate.arms[0]] += 1
    assert fit_of(counts, p) > LEVEL / 10


def bank_probabilities(name: str, persona: int, draws: int, seeds: int) -> Array:
    """(seeds, K) the probabilities that banks of so many draws give, one a seed."""
    learner, candidates = policy(name), frozen().candidates
    head, phi = learner.active.head, rows_of(learner, context_of(persona), candidates)
    assert head is not None
    arms = candidates.distinct_arms(learner.view, learner.policy.per_arm)
    phi = phi[[candidates.row_of[arm] for arm in arms.ids]]
    found = []
    for seed in range(seeds):
        drawn = head.draw(phi, arms.ids, Bank(draws, f"shop\0{name}\0{seed}"))
        table = drawn + learner.active.offset(phi)
        found.append(rules.probabilities(table_of(table, arms.of)))
    return np.array(found)


@pytest.mark.statistics
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("draws", [64, 512, 4_096])
@pytest.mark.parametrize("persona", range(4))
@pytest.mark.parametrize("name", THOMPSON)
def test_any_bank_is_within_4_standard_errors_and_on_average_within_one(
    name: str, persona: int, draws: int
) -> None:
    """Of 50 banks each, of 400 on average (the mean square of 50 is but within a fifth): stratified
    draws are at least as good as independent ones."""
    candidates, learner = frozen().candidates, policy(name)
    kinds = kinds_of(learner, rows_of(learner, context_of(persona), candidates))
    shares = independent_shares(name, persona)
    errors = [errors_of(p, shares, kinds, draws) for p in bank_probabilities(
        name, persona, draws, seeds=400)]  # fmt: skip
    assert max(error.max() for error in errors[:50]) < 4.5
    mean_square = float(np.mean([np.square(error).mean() for error in errors]))
    print(f"{name}, persona {persona}, {draws} draws: {np.sqrt(mean_square):.2f}")  # noqa: T201
    assert mean_square < 1.1
