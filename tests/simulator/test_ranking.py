"""The ranking world is the published one, its bounds are exact, every policy meets its rounds."""

import itertools
import math

import numpy as np
import pytest

from simulator_client.errors import UsageError
from simulator_client.worlds.ranking import (
    BLOCK_ROUNDS,
    Ranking,
    Round,
    best_of_retrieved,
    uniform_ranking,
)

WORLD = Ranking(42)


def chance(user: int, item: int) -> float:
    """q by the definition: exp(u.i / 0.001) over the sum of it over all items."""
    scores = [math.fsum(WORLD.users[user] * other) / 0.001 for other in WORLD.items]
    top = max(scores)
    return math.exp(scores[item] - top) / math.fsum(math.exp(score - top) for score in scores)


def best_order(visit: Round) -> list[str]:
    q = WORLD.softmax(visit.user, visit.items)
    return [str(item) for item in visit.items[np.argsort(-q)]]


def test_embeddings_come_from_one_generator_users_first() -> None:
    rng = np.random.default_rng(42)
    assert (WORLD.users == rng.uniform(-0.1, 0.1, (1000, 32))).all()
    assert (WORLD.items == rng.uniform(-0.1, 0.1, (10_000, 32))).all()


def test_the_softmax_is_over_all_items() -> None:
    visit = WORLD.stream(1).visit(0)
    q = WORLD.softmax(visit.user, visit.items)
    for place in (0, 7, 499):
        assert q[place] == pytest.approx(chance(visit.user, int(visit.items[place])), rel=1e-9)
    assert WORLD.softmax(visit.user, np.arange(10_000)).sum() == pytest.approx(1.0)
    assert q.sum() < 1.0


def test_a_round_is_500_different_items_and_ten_uniforms() -> None:
    visit = WORLD.stream(3).visit(11)
    assert len(set(visit.items.tolist())) == 500
    assert visit.uniforms.shape == (10,)
    request = WORLD.request(visit)
    assert request["arms"] == [str(item) for item in visit.items]
    assert request["top_k"] == 10
    assert request["context"]["user"] == WORLD.users[visit.user].tolist()


def test_a_round_is_the_same_wherever_a_run_starts() -> None:
    from_the_start = WORLD.stream(7)
    rounds = [from_the_start.visit(k) for k in range(BLOCK_ROUNDS + 2)]
    resumed = WORLD.stream(7)
    for k in (BLOCK_ROUNDS + 1, BLOCK_ROUNDS, BLOCK_ROUNDS - 1, 0):
        there = resumed.visit(k)
        assert there.user == rounds[k].user
        assert (there.items == rounds[k].items).all()
        assert (there.uniforms == rounds[k].uniforms).all()
    assert (WORLD.stream(8).visit(0).items != rounds[0].items).any()


def test_cascade_the_first_click_ends_the_round() -> None:
    """The chance at slot k is q / k; slots 2 and 4 would be clicked: slot 2 is."""
    visit = WORLD.stream(1).visit(0)
    shown = best_order(visit)[:10]
    chances = [chance(visit.user, int(arm)) / k for k, arm in enumerate(shown, 1)]
    uniforms = np.ones(10)
    uniforms[[1, 3]] = np.array(chances)[[1, 3]] * 0.999
    outcome = WORLD.outcome(visit._replace(uniforms=uniforms), shown)
    assert outcome.feedback == {"feedback": "cascade", "clicked": shown[1]}
    assert outcome.clicks == 1.0
    assert outcome.expected == pytest.approx(1.0 - math.prod(1.0 - p for p in chances))
    assert outcome.expected == outcome.best
    assert outcome.group == "best item first"
    just_above = np.array(chances) * 1.001
    outcome = WORLD.outcome(visit._replace(uniforms=just_above), shown)
    assert outcome.feedback == {"feedback": "cascade", "clicked": None}
    assert outcome.clicks == 0.0


def test_uniform_is_the_mean_over_every_ordered_choice() -> None:
    """Of 10 items all 10! orders are too many: 11 items with 9 that are never clicked are few."""
    q = np.array([0.5, 0.3] + [0.0] * 9)
    total = 0.0
    # Where the two items go: slots 1 to 10, or not shown (0); 11 * 10 equally likely ways.
    for a, b in itertools.permutations(range(11), 2):
        total += 1.0 - (1.0 - (0.5 / a if a else 0.0)) * (1.0 - (0.3 / b if b else 0.0))
    assert uniform_ranking(q) == pytest.approx(total / 110)


def test_best_of_retrieved_is_the_mean_over_every_retrieval() -> None:
    """11 of 13 items: 78 equally likely retrievals."""
    q = np.sort(np.random.default_rng(5).uniform(0.0, 0.3, 13))
    means = [
        1.0 - np.prod(1.0 - np.sort(kept)[::-1][:10] / np.arange(1, 11))
        for kept in itertools.combinations(q, 11)
    ]
    assert best_of_retrieved(q[None, :], 11)[0] == pytest.approx(np.mean(means))


def test_bounds_are_those_of_many_rounds() -> None:
    """1,000 rounds, within 4 standard errors; uniform is 0.6 percent of the oracle."""
    (bounds,) = WORLD.references(10)
    stream = WORLD.stream(2)
    outcomes = [
        WORLD.outcome(visit, best_order(visit)[:10]) for visit in map(stream.visit, range(1000))
    ]
    for exact, found in (
        (bounds.oracle_ctr, [outcome.best for outcome in outcomes]),
        (bounds.uniform_ctr, [outcome.uniform for outcome in outcomes]),
    ):
        error = np.std(found) / 1000**0.5
        assert np.mean(found) == pytest.approx(exact, abs=4 * error)
    assert bounds.uniform_ctr / bounds.oracle_ctr == pytest.approx(0.006, abs=5e-4)


def test_definition_has_vectors_of_unit_variance_and_their_product() -> None:
    definition = WORLD.definition(
        ["linucb", "lints_narrow", "neural_ts", "greedy_neural", "popularity", "linucb_disjoint"]
    )
    vector = {"type": "vector", "size": 32, "scale": pytest.approx(0.2 / math.sqrt(12))}
    assert definition["features"] == {
        "context": {"user": vector}, "arm": {"item": vector}, "crosses": ["user x item"],
    }  # fmt: skip
    assert np.std(WORLD.items / (0.2 / math.sqrt(12))) == pytest.approx(1.0, abs=0.01)
    assert len(definition["arms"]) == 10_000
    assert definition["arms"]["9999"] == {"item": WORLD.items[9999].tolist()}
    told = {name: policy.get("features") for name, policy in definition["policies"].items()}
    assert told == {
        "linucb": ["intercept", "user x item"],
        "lints_narrow": ["intercept", "user x item"],
        "neural_ts": ["user x item"],
        "greedy_neural": ["user x item"],
        "popularity": None,
        "linucb_disjoint": ["intercept", "user"],
    }


def test_what_the_world_does_not_have_is_said() -> None:
    visit = WORLD.stream(1).visit(0)
    missing = next(k for k in range(10_000) if k not in set(visit.items.tolist()))
    for arm in (str(missing), "x"):
        with pytest.raises(UsageError, match="not asked for"):
            WORLD.outcome(visit, [arm])
    with pytest.raises(UsageError, match="11 arms where 10"):
        WORLD.outcome(visit, [str(item) for item in visit.items[:11]])
