"""What was made fast is what it was: to the last bit, except where rows of three factors round."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.bandits import rules
from service.bandits.candidates import Candidates
from service.bandits.heads import Bank, Observation, RidgeHead
from service.bandits.rules import Scores
from service.decide.scoring import decide
from service.definition.experiment import Definition
from service.features.declaration import Features
from service.features.row import Row
from service.features.schema import Schema
from service.features.view import View
from service.security.entropy import Entropy
from service.state.decider import Decider
from service.state.decisions import Decision, Shown, encode_decision
from service.state.events import SCHEMA
from service.state.learner import Learner

CONTEXT = {
    "persona": {"type": "categorical", "values": ["a", "b", "c"], "default": "b"},
    "hour": {"type": "numeric", "center": 12.5, "scale": 3.7, "default": 1.0},
    "new": {"type": "boolean"},
    "city": {"type": "hashed", "buckets": 4, "default": ""},
}
ARM = {
    "kind": {"type": "categorical", "values": ["x", "y"]},
    "image": {"type": "vector", "size": 3},
}
CROSSES = ["persona x kind", "image x hour", "persona x kind x hour"]
FEATURES = Features.model_validate({"context": CONTEXT, "arm": ARM, "crosses": CROSSES})
NAMES = ["intercept", *FEATURES.context, *FEATURES.arm, *FEATURES.crosses]


def learner(kind: str, **more: Any) -> Learner:
    definition = Definition.model_validate(
        {"features": FEATURES.model_dump(), "policies": {"p": {"kind": kind, **more}}}
    )
    policy = definition.policies["p"]
    found = Learner("e", "p", policy, definition, Schema(definition.features), 1)
    rng = np.random.default_rng(1)
    head = found.active.head
    if isinstance(head, RidgeHead):
        for row in rng.standard_normal((40, len(head.b))):
            head.observe(Observation("0", row, float(rng.random())))
    return found


def catalogue(arms: int, repeated: bool = False) -> Candidates:
    rng = np.random.default_rng(arms)
    x = rng.standard_normal((arms, 5))
    x[:, :2] = np.eye(2)[rng.integers(2, size=arms)]
    return Candidates(
        tuple(map(str, range(arms))), x[rng.integers(arms, size=arms)] if repeated else x
    )


# -- features --------------------------------------------------------------------------------------


@given(st.lists(st.sampled_from(NAMES), unique=True, max_size=5), st.integers(0, 2**32))
def test_rows_are_the_product_of_the_contexts_part_and_the_arms_part(
    names: list[str], seed: int
) -> None:
    view = View(Schema(FEATURES), names)
    rng = np.random.default_rng(seed)
    context, arms = rng.standard_normal(9), rng.standard_normal((4, 5))
    rows = view.arm_part(arms) * view.context_part(context)
    whole = view.design(context[None], arms)
    assert rows.shape == whole.shape
    if "persona x kind x hour" in names:
        np.testing.assert_allclose(rows, whole, rtol=1e-15)
    else:
        assert np.array_equal(rows, whole)
    x = np.hstack([np.tile(context, (4, 1)), arms])
    for row in range(4):  # one settlement, to the last bit
        assert np.array_equal(view.rows(x[[row]])[0], whole[row])


# -- probabilities ---------------------------------------------------------------------------------


def by_definition(scores: Scores) -> Any:
    """Mean over the draws of each arm's share of the win."""
    rows = np.ascontiguousarray(scores.rows)
    counts = np.bincount(scores.of, minlength=rows.shape[1])
    best = rows.max(axis=1, keepdims=True)
    tied = rows >= best - rules.TIE * np.abs(best)
    return (tied / (tied @ counts)[:, None]).mean(axis=0)[scores.of]


@settings(deadline=None)
@given(
    st.integers(0, 2**32),
    st.integers(1, 300),
    st.integers(1, 12),
    st.integers(0, 20),
    st.sampled_from([0, 1, 40]),
    st.booleans(),
)
def test_probabilities_have_the_bits_of_their_definition(
    seed: int, draws: int, distinct: int, alike: int, levels: int, by_arm: bool
) -> None:
    """With ties (few levels) and without, arms alike or not, the table by draw or by arm."""
    rng = np.random.default_rng(seed)
    table = rng.standard_normal((draws, distinct))
    if levels:
        table = np.floor(table * levels)
    of = rng.permutation(np.concatenate([np.arange(distinct), rng.integers(distinct, size=alike)]))
    rows = np.asfortranarray(table) if by_arm else table
    counts = np.bincount(of, minlength=distinct)
    scores = Scores(rows, of, counts)
    assert np.array_equal(rules.probabilities(scores), by_definition(scores))


# -- decisions -------------------------------------------------------------------------------------

KINDS = {
    "linucb": {},
    "lints": {"draws": 64},
    "neural_linear_ts": {"draws": 64, "hidden": [16, 8], "embedding": 4},
    "neural_linucb": {"hidden": [16, 8], "embedding": 4},
    "popularity": {},
    "random": {},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("repeated", [False, True])
def test_arms_spelled_out_are_decided_as_if_they_were_unknown(kind: str, repeated: bool) -> None:
    """A selection of the catalogue is decided, in any order, as arms of their own: bit for bit."""
    policy, whole = learner(kind, **KINDS[kind]), catalogue(40, repeated)
    rng = np.random.default_rng(5)
    for seed in range(5):
        rows = rng.permutation(40)[: rng.integers(1, 40)].tolist()
        chosen = whole.choose([whole.ids[row] for row in rows], rows)
        alone = Candidates(chosen.ids, whole.x[rows])
        context = rng.standard_normal(9)
        p, slate = decide(Decider.serving(policy), context, chosen, 1, seed)
        same, other = decide(Decider.serving(policy), context, alone, 1, seed)
        assert np.array_equal(p, same)
        assert slate == other


def test_few_rows_and_many_rows_draw_from_the_same_weights() -> None:
    """2 rows go through R phi, 40 through the weights themselves: 16 rows x 40 > 512 > 16 x 2."""
    head, bank = learner("lints").active.head, Bank(512, "k")
    assert isinstance(head, RidgeHead)
    phi = np.random.default_rng(2).standard_normal((40, len(head.b)))
    many = head.draw(phi, [], bank)
    np.testing.assert_allclose(head.draw(phi[:2], [], bank), many[:, :2], rtol=1e-10, atol=1e-12)
    head.observe(Observation("0", phi[0], 1.0))
    assert not np.allclose(head.draw(phi, [], bank), many)


def test_a_sure_choice_is_the_one_that_the_seed_draws() -> None:
    policy, arms = learner("linucb"), catalogue(30)
    for seed in range(20):
        p, slate = decide(
            Decider.serving(policy), np.random.default_rng(seed).standard_normal(9), arms, 1, seed
        )
        assert p[slate.arms[0]] == 1.0
        assert slate.arms == [rules.choose(p, rules.point_of(seed))]


# -- chance ----------------------------------------------------------------------------------------


@given(st.lists(st.sampled_from([1, 7, 8, 63, 64, 128, 40_000]), min_size=1, max_size=60))
def test_chance_is_of_the_size_that_is_asked_and_never_the_same(sizes: list[int]) -> None:
    entropy = Entropy()
    found = [(size, entropy.getrandbits(size)) for size in sizes]
    assert all(0 <= bits < 1 << size for size, bits in found)
    long = [bits for size, bits in found if size >= 63]
    assert len(set(long)) == len(long)
    assert 0 <= entropy.random() < 1


def test_chance_sets_every_bit_half_of_the_time() -> None:
    """20,000 draws of 63 bits: each bit within 6 deviations (0.021) of one half."""
    entropy, counts = Entropy(), np.zeros(63)
    for _ in range(20_000):
        bits = entropy.getrandbits(63)
        counts += [bits >> place & 1 for place in range(63)]
    assert np.abs(counts / 20_000 - 0.5).max() < 0.0213


# -- records ---------------------------------------------------------------------------------------


def test_a_decision_is_written_as_its_record_is() -> None:
    decision = Decision(
        id="i", at=1.5, policy="p", assignment=1.0, model_version="p/0@1", schema_version=1,
        unit=None, context={"é": "\n"}, arms=["a"], inline={}, probabilities=[1.0], seed=7, bank=0,
        shown=[Shown("a", 1.0, Row(bytes(8), (1,)))], slate_log=0.0, reward_by=2.0,
        accept_until=3.0,
    )  # fmt: skip
    written = encode_decision(decision)
    assert written[:3] == b"FR%c" % SCHEMA
    assert len(written) < 150
