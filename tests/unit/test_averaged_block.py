"""The head of `auto` learns a block of settlements as it does one after the other."""

from collections.abc import Iterator
from itertools import count
from typing import Any
from unittest import mock

import numpy as np
import pytest

from service.bandits.heads import digest, recursive
from service.bandits.heads.averaged import AveragedHead
from service.bandits.heads.averaged_informed import InformedHead
from service.bandits.heads.averaged_noises import LEVELLED
from service.bandits.heads.base import Observations
from service.bandits.heads.recursive import RecursiveRidge
from service.errors import NotPositiveDefinite
from service.features.schema import Array
from service.features.view import View
from tests.unit.test_averaged_head import view_of

CLOSE = 1e-12
WORLDS = [(0, 0), (3, 0), (2, 2), (0, 2), (17, 16)]
"""Columns of the context and of arms; crosses of the last ones are hashed."""


def settled(view: View, size: int, seed: int, arms: int = 12, moved: int = 0) -> Observations:
    """Settlements by chance; from `moved` on all rewards are larger."""
    rng = np.random.default_rng(seed)
    own = rng.standard_normal((arms, view.schema.arm.width))
    places = rng.integers(0, arms, size)
    contexts = rng.standard_normal((size, view.schema.context.width))
    rewards = 0.2 * rng.random(size) + 0.02 * places
    if moved:
        rewards[moved:] += 0.5
    return Observations(
        [f"arm {place}" for place in places],
        view.rows(np.concatenate((contexts, own[places]), axis=1)),
        rewards,
        [f"d{number}" for number in range(size)],
        np.ones(size),
        [False] * size,
    )


def part(rows: Observations, start: int, end: int, **changes: Any) -> Observations:
    return Observations(*(column[start:end] for column in rows))._replace(**changes)


def blocks(rows: Observations, sizes: list[int]) -> Iterator[Observations]:
    start, number = 0, 0
    while start < len(rows.arms):
        size = sizes[number % len(sizes)]
        yield part(rows, start, start + size)
        start, number = start + size, number + 1


def difference(one: AveragedHead, other: AveragedHead) -> float:
    """The largest difference of two heads, as a share of the largest number of its array."""
    found = 0.0
    assert one.arrays().keys() == other.arrays().keys()
    for name, array in one.arrays().items():
        twin = other.arrays()[name]
        assert array.shape == twin.shape
        if array.dtype.kind != "f":
            np.testing.assert_array_equal(array, twin)
        elif array.size:
            found = max(found, float(np.abs(array - twin).max() / (np.abs(twin).max() or 1.0)))
    return found


def both(
    view: View, rows: Observations, sizes: list[int], make: type[AveragedHead] = InformedHead
) -> tuple[AveragedHead, AveragedHead]:
    """Heads that learned one by one, and in blocks."""
    one, many = make(view, "auto"), make(view, "auto")
    for row in rows.each():
        one.observe(row)
    for block in blocks(rows, sizes):
        many.observe_block(block)
    return one, many


@pytest.mark.parametrize(("context", "arm"), WORLDS)
@pytest.mark.parametrize("sizes", [[100], [7, 1, 30], [2]])
def test_a_block_is_learned_as_its_settlements_one_by_one(
    context: int, arm: int, sizes: list[int]
) -> None:
    view = view_of(context, arm)
    one, many = both(view, settled(view, 700, context + arm), sizes)
    assert difference(many, one) < CLOSE
    assert digest(many) != digest(one)  # it was learned in another way


@pytest.mark.parametrize(("context", "arm"), WORLDS[:3])
def test_a_block_ends_where_the_level_moves(context: int, arm: int) -> None:
    view = view_of(context, arm)
    rows = settled(view, 900, 5, moved=450)
    one, many = both(view, rows, [100])
    assert one.moving.moved != 0.0
    assert difference(many, one) < 1e3 * CLOSE  # errors are small beside the level


def test_arms_that_are_new_in_a_block_have_their_rows() -> None:
    view = view_of(2, 0)
    rows = settled(view, 800, 3, arms=300)
    one, many = both(view, rows, [100])
    assert difference(many, one) < CLOSE
    assert many.count == len({*rows.arms})


def test_first_settlements_and_weighed_ones_are_learned_one_by_one() -> None:
    view = view_of(2, 0)
    rows = settled(view, 500, 3)
    one, many = both(view, part(rows, 0, LEVELLED), [LEVELLED])
    assert digest(one) == digest(many)
    weighed = rows._replace(weights=np.full(500, 0.5))
    one, many = both(view, weighed, [100])
    assert digest(one) == digest(many)


def test_what_was_imported_is_judged_in_blocks() -> None:
    """Its twin learns the same block, and the evidence against imports is that of one by one."""
    view = view_of(2, 0)
    rows = settled(view, 900, 8)
    ahead = part(rows, 0, 300, imported=[True] * 300)
    one, many = both(view, ahead, [100])
    assert digest(one) == digest(many)
    for row in part(rows, 300, 900).each():
        one.observe(row)
    for block in blocks(part(rows, 300, 900), [100]):
        many.observe_block(block)
    assert isinstance(one, InformedHead)
    assert one.plain is not None
    assert difference(many, one) < CLOSE


def test_members_that_wait_to_speak_learn_blocks() -> None:
    view = view_of(3, 0)
    rows = settled(view, 1_400, 9)
    bent = rows._replace(rewards=rows.rewards + 0.3 * np.abs(rows.phi[:, 1]))
    one, many = (AveragedHead(view, "auto") for _ in range(2))
    for head in (one, many):
        for row in part(bent, 0, 600).each():
            head.observe(row)
        head.begin_trial(bent.phi[:600:4])
        head.rehearse(part(bent, 0, 600).each())
        head.end_trial()
    assert not one._speaks.all()
    for row in part(bent, 600, 1_400).each():
        one.observe(row)
    for block in blocks(part(bent, 600, 1_400), [100]):
        many.observe_block(block)
    assert difference(many, one) < CLOSE
    assert one._speaks.all()  # it has come to speak


def test_late_members_leave_before_a_block_of_too_many_arms() -> None:
    view = view_of(3, 0)
    rows = settled(view, 600, 9)
    one, many = (AveragedHead(view, "auto") for _ in range(2))
    more = settled(view, 300, 10, arms=90)
    for head in (one, many):
        for row in rows.each():
            head.observe(row)
        head.begin_trial(rows.phi[::4])
        head.rehearse(rows.each())
        head.end_trial()
        assert any(spec.own == "late" for spec in head.specs)
    for row in more.each():
        one.observe(row)
    for block in blocks(more, [100]):
        many.observe_block(block)
    assert all(spec.own != "late" for spec in many.specs)
    assert difference(many, one) < CLOSE


@pytest.mark.parametrize("after", [0, 1, 5, 20, 60])
def test_a_block_that_loses_the_prior_is_learned_one_by_one(after: int) -> None:
    """As of rows so long that rounding hides a 1. What was looked at until then is taken back."""
    view = view_of(2, 2)
    rows = settled(view, 400, 3)
    one, many = both(view, part(rows, 0, 300), [1])
    looks = recursive._looked

    def fails(*given: Array) -> recursive.BlockLook:
        if next(calls) == after:
            raise NotPositiveDefinite(1, 0.0)
        return looks(*given)

    calls = count()
    with mock.patch.object(recursive, "_looked", fails):
        found = many._learn_some(part(rows, 300, 400), 0)
    assert (found is None) == (next(calls) > after)
    for row in part(rows, 300, 400).each():
        one.observe(row)
        if found is None:
            many.observe(row)
    if found is None:
        assert digest(one) == digest(many)
    else:
        assert difference(many, one) < CLOSE


@pytest.mark.parametrize("gamma", [1.0, 0.99, 0.9])
def test_a_regression_learns_any_first_part_of_a_block_that_it_looked_at(gamma: float) -> None:
    rng = np.random.default_rng(0)
    rows, targets, now = rng.standard_normal((30, 4)), rng.standard_normal((30, 3)), np.arange(30)

    def fresh() -> RecursiveRidge:
        ridge = RecursiveRidge(4, 3, gamma)
        ridge.admit(0, 0)
        return ridge

    for first in (0, 1, 13, 30):
        one, many = fresh(), fresh()
        errors = list[Array]()
        for row, target, at in zip(rows[:first], targets, now, strict=False):
            gain, told, v = one.look(0, row, int(at))
            errors.append(target - told)
            one.learn(0, gain, 1.0 / (1.0 + v), target - told)
        looked = many.look_block(0, rows, targets, now)
        many.learn_block(0, looked, first)
        np.testing.assert_allclose(looked.errors[:first], np.reshape(errors, (-1, 3)), rtol=1e-9)
        np.testing.assert_allclose(many.P, one.P, atol=CLOSE)
        np.testing.assert_allclose(many.theta, one.theta, atol=CLOSE)
        np.testing.assert_array_equal(many.last, one.last)
        np.testing.assert_array_equal(many.turn, one.turn)


@pytest.mark.parametrize("gamma", [1.0, 0.99])
def test_a_regression_is_as_it_was_where_a_block_cannot_be_looked_at(gamma: float) -> None:
    ridge = RecursiveRidge(3, 2, gamma)
    ridge.admit(0, 0)
    before = ridge.P.copy()
    rows = np.full((9, 3), 1e12)
    with pytest.raises(NotPositiveDefinite):
        ridge.look_block(0, rows, np.ones((9, 2)), np.arange(0, 90, 10))
    np.testing.assert_array_equal(ridge.P, before)
