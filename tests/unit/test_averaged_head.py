"""The head of `auto`: its members against dense regressions, corrections, forgetting, snapshots."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.bandits.heads import Observation, digest
from service.bandits.heads.averaged import AveragedHead
from service.bandits.heads.averaged_noises import DISCOUNT, MovingLevel
from service.bandits.heads.averaged_rows import CROSSES, MemberRows, Rows, Spec
from service.features.declaration import Features
from service.features.schema import Array, Schema
from service.features.view import View

ARMS = ["a", "b", "c", "d"]
seeds = st.integers(0, 2**32 - 1)


def view_of(context: int, arm: int) -> View:
    """A view of a constant and of vectors of so many numbers, whose scale is known."""
    features: dict[str, Any] = {"context": {}, "arm": {}}
    for side, size in (("context", context), ("arm", arm)):
        if size:
            features[side] = {side: {"type": "vector", "size": size, "scale": 1.0}}
    names = ["intercept", *features["context"], *features["arm"]]
    return View(Schema(Features.model_validate(features)), names)


def world(view: View, count: int, seed: int) -> list[Observation]:
    """Settlements of arms by chance; an arm's own columns are the same each time."""
    rng = np.random.default_rng(seed)
    own = rng.standard_normal((len(ARMS), view.schema.arm.width))
    found = []
    for number in range(count):
        place = int(rng.integers(len(ARMS)))
        base = np.concatenate([rng.standard_normal(view.schema.context.width), own[place]])
        reward = float(rng.random())
        found.append(Observation(ARMS[place], view.rows(base[None])[0], reward, f"d{number}"))
    return found


def learned(view: View, rows: list[Observation]) -> AveragedHead:
    head = AveragedHead(view, "auto")
    for row in rows:
        head.observe(row)
    return head


def dense(
    head: AveragedHead, view: View, number: int, rows: list[Observation], asked: Observation
) -> tuple[float, float]:
    """Mean above the level and variance of a row under a member, by one solution of its joint
    ridge: own columns of each arm, and those that all share, scaled by their deviation over the
    length of a usual row, which numbers of a known scale have: 1 a column."""
    member, seen = head.members[number], Rows(view, "auto")
    d, f = view.schema.context.width, view.schema.arm.width
    lengths = np.sqrt([max(d, 1), max(d + f + d * f, 1)])
    deviation, shared_deviation = np.minimum(1.0, np.divide(member.spec.deviation, lengths))

    def phi(row: Observation) -> Array:
        each = MemberRows(seen, row.phi[None], 1)
        parts = []
        if member.spec.own:
            own = np.r_[1.0, deviation * each.of(member.spec.own)[0, 1:]]
            wide = np.zeros((len(ARMS), len(own)))
            wide[ARMS.index(row.arm)] = own
            parts.append(wide.ravel())
        if member.spec.shared:
            parts.append(np.r_[1.0, shared_deviation * each.shared[0, 0, 1:]])
        return np.concatenate(parts)

    x = np.array([phi(row) for row in rows])
    y = np.array([row.reward for row in rows]) - head.rewards.level
    A = np.eye(x.shape[1]) + x.T @ x
    row = phi(asked)
    return float(row @ np.linalg.solve(A, x.T @ y)), float(row @ np.linalg.solve(A, row))


@given(st.integers(0, 3), st.integers(0, 2), seeds)
def test_members_that_do_not_forget_are_dense_ridge_regressions(
    context: int, arm: int, seed: int
) -> None:
    view = view_of(context, arm)
    rows = world(view, 12, seed)
    head = learned(view, rows)
    asked = world(view, 1, seed)[0]._replace(arm=rows[0].arm)
    places = np.array([head._arms.by_name[asked.arm] - 1])
    for number, member in enumerate(head.members):
        if member.spec.gamma < 1:
            continue
        seen = MemberRows(Rows(view, "auto"), asked.phi[None], 1)
        mean, variance = member.predict(seen, places, head.rewards.level, head.settled)
        told = dense(head, view, number, rows, asked)
        np.testing.assert_allclose((mean[0, 0], variance[0, 0]), told, rtol=1e-8, atol=1e-9)


def test_one_lucky_reward_does_not_give_all_weight_to_a_member_that_forgets() -> None:
    """Rewards of 0 or 1 that a regression predicts well, then the opposite of what it says."""
    view = view_of(3, 0)
    rows = [
        row._replace(arm="a", reward=float(np.clip(0.5 + 0.2 * row.phi[-1], 0.0, 1.0)))
        for row in world(view, 1_000, seed=3)
    ]
    head = learned(view, rows)
    lasting = [number for number, member in enumerate(head.members) if member.spec.gamma == 1.0]
    assert head.weights[lasting].sum() > 0.9
    surely = rows[0].phi.copy()
    surely[-1] = -2.5
    head.observe(rows[0]._replace(phi=surely, reward=1.0))
    assert head.weights[lasting].sum() > 0.5


def test_a_read_between_two_observations_changes_no_later_one() -> None:
    """Each read is of the weights that all observations before it gave."""
    view = view_of(3, 0)
    rows = world(view, 60, seed=7)
    quiet, read = AveragedHead(view, "auto"), AveragedHead(view, "auto")
    for row in rows:
        quiet.observe(row)
        read.observe(row)
        read.spread(row.phi[None], [row.arm])
    asked = rows[0].phi[None]
    assert np.array_equal(read.spread(asked, ["a"]), quiet.spread(asked, ["a"]))
    weights = {name: share for name, share, _ in read.opinions(asked, ["a"])}
    assert weights == {name: share for name, share, _ in quiet.opinions(asked, ["a"])}


def test_a_miss_of_weight_a_quarter_is_a_quarter_of_the_evidence_between_members() -> None:
    """The logs of the weights, relative to the first member's, move by a quarter as much."""
    view, moved = view_of(3, 0), []
    *rows, row = world(view, 20, seed=7)
    for weight in (1.0, 0.25):
        head = learned(view, rows)
        before = DISCOUNT * np.log(head.weights / head._prior)
        head.observe(row._replace(weight=weight))
        change = np.log(head.weights / head._prior) - before
        moved.append(change - change[0])
    assert np.abs(moved[0]).max() > 0.01
    np.testing.assert_allclose(moved[1], moved[0] / 4, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("context", "arm"), [(3, 0), (2, 2), (0, 2), (0, 0)])
def test_many_rows_are_read_as_each_alone(context: int, arm: int) -> None:
    """Several contexts with every arm each, or with few of them; and rows of an arm each."""
    view = view_of(context, arm)
    head = learned(view, world(view, 40, seed=1))
    contexts, asked = world(view, 3, seed=2), world(view, 5, seed=2)
    of_arm = np.array([row.phi for row in world(view, 5, seed=4)])
    side = view.sides[0]
    for arms in (["new", *ARMS], ["b"]):
        phi = np.array([row for _ in contexts for row in of_arm[: len(arms)]])
        phi[:, side] = np.repeat([row.phi[side] for row in contexts], len(arms), axis=0)
        alone = [head.spread(row[None], [arm]) for row, arm in zip(phi, arms * 3, strict=True)]
        found = np.array(head.spread(phi, arms)).reshape(3, -1)
        np.testing.assert_allclose(found, np.array(alone)[:, :, 0, 0].T, rtol=1e-9)
    phi, arms = np.array([row.phi for row in asked]), ["new", *ARMS]
    alone = [head.spread(row[None], [arm]) for row, arm in zip(phi, arms, strict=True)]
    found = np.array((head.mean(phi, arms), head.width(phi, arms)))
    np.testing.assert_allclose(found, np.array(alone)[:, :2, 0, 0].T, rtol=1e-9)


@given(st.integers(0, 3), st.integers(0, 2), seeds)
def test_a_corrected_reward_equals_having_come_at_once(context: int, arm: int, seed: int) -> None:
    """For members that do not forget; noises and weights of the members stay."""
    view = view_of(context, arm)
    rows = world(view, 10, seed)
    late, straight = learned(view, rows), learned(view, [rows[0]._replace(reward=0.9), *rows[1:]])
    late.revise(rows[0]._replace(reward=0.9), rows[0].reward)
    expect_equal_means(view, late, straight)


@given(st.integers(0, 3), st.integers(0, 2), seeds)
def test_a_withdrawn_settlement_leaves_what_there_was_without_it(
    context: int, arm: int, seed: int
) -> None:
    view = view_of(context, arm)
    rows = world(view, 10, seed)
    head, without = learned(view, rows), learned(view, [*rows[:4], *rows[5:]])
    head.withdraw(rows[4])
    expect_equal_means(view, head, without)


def expect_equal_means(view: View, one: AveragedHead, other: AveragedHead) -> None:
    assert one.rewards.array() == pytest.approx(other.rewards.array())
    for row in world(view, 4, seed=5):
        if row.arm not in one._arms.by_name or row.arm not in other._arms.by_name:
            continue
        seen, found = MemberRows(Rows(view, "auto"), row.phi[None], 1), []
        for head in (one, other):
            place = np.array([head._arms.by_name[row.arm] - 1])
            lasting = [member for member in head.members if member.spec.gamma == 1]
            level, now = head.rewards.level, head.settled
            found.append([member.predict(seen, place, level, now)[:2] for member in lasting])
        np.testing.assert_allclose(found[0], found[1], rtol=1e-6, atol=1e-8)


def test_what_an_arm_that_was_not_learned_says_changes_nothing() -> None:
    head = learned(view_of(2, 0), world(view_of(2, 0), 5, seed=0))
    before = digest(head)
    stranger = Observation("new", np.ones(3), 1.0)
    head.revise(stranger, 0.0)
    head.withdraw(stranger)
    head.spread(np.ones((1, 3)), ["new"])
    assert digest(head) == before


LATE = Spec("own", False, 0.9, 0.5)
"""A member that no head begins with."""


def joined(view: View, rows: list[Observation], evidence: float) -> AveragedHead:
    """A head that LATE joined after these settlements."""
    head, other = learned(view, rows), AveragedHead(view, "auto")
    other._start([LATE])
    for row in rows:
        other.observe(row)
    head.join(other.members, other.noises, np.array([evidence]))
    return head


@pytest.mark.parametrize("evidence", [-1.5, 0.7])
def test_a_member_that_joins_counts_by_its_weight_and_evidence(evidence: float) -> None:
    view = view_of(3, 0)
    rows = world(view, 40, seed=7)
    before, head = learned(view, rows), joined(view, rows, evidence)
    shares = np.append(before._prior * np.exp(before._evidence), 0.5 * np.exp(evidence))
    np.testing.assert_allclose(head.weights, shares / shares.sum())
    *others, (name, weight, _) = head.opinions(rows[0].phi[None], ["a"])
    assert (len(others), name) == (len(before.members), "own, fading by 0.9")
    assert weight == pytest.approx(head.weights[-1])


def test_a_member_that_joined_learns_on_as_if_it_had_always_been_there() -> None:
    view = view_of(3, 0)
    rows = world(view, 80, seed=7)
    head, always = joined(view, rows[:40], 0.0), AveragedHead(view, "auto")
    always._start([*always.specs, LATE])
    for row in rows:
        always.observe(row)
    for row in rows[40:]:
        head.observe(row)
    found, expected = head.arrays(), always.arrays()
    assert found.keys() == expected.keys()
    for name in found.keys() - {"evidence"}:
        assert np.array_equal(found[name], expected[name]), name


@pytest.mark.parametrize(("context", "arm"), [(3, 0), (2, 2), (0, 0)])
def test_a_restored_head_has_the_members_that_joined(context: int, arm: int) -> None:
    view = view_of(context, arm)
    rows = world(view, 60, seed=3)
    head, twin = joined(view, rows[:30], 0.1), AveragedHead(view, "auto")
    twin.restore(head.arrays())
    for row in rows[30:]:
        head.observe(row)
        twin.observe(row)
    assert digest(twin) == digest(head)
    asked = rows[0].phi[None]
    assert np.array_equal(head.spread(asked, ["a"]), twin.spread(asked, ["a"]))


@pytest.mark.parametrize(("context", "arm"), [(3, 0), (2, 2), (0, 0)])
@pytest.mark.parametrize("count", [0, 1, 40, 400])
def test_a_restored_head_goes_on_to_the_same_bits(context: int, arm: int, count: int) -> None:
    view = view_of(context, arm)
    rows = world(view, count + 30, seed=3)
    head, twin = learned(view, rows[:count]), AveragedHead(view, "auto")
    twin.restore(head.arrays())
    assert digest(twin) == digest(head)
    for row in rows[count:]:
        head.observe(row)
        twin.observe(row)
    assert digest(twin) == digest(head)
    assert np.array_equal(
        head.spread(rows[0].phi[None], ["a"]), twin.spread(rows[0].phi[None], ["a"])
    )


def test_members_that_forget_return_to_the_prior_and_stay_positive_definite() -> None:
    """Arm a is not settled for 3,000 settlements: what the fading member knows of it is gone."""
    view = view_of(3, 0)
    head = AveragedHead(view, "auto")
    rng = np.random.default_rng(0)
    for number in range(3_200):
        x = view.rows(rng.standard_normal((1, 3)))[0]
        head.observe(Observation("a" if number < 200 else "b", x, float(rng.random())))
    fading = next(member for member in head.members if member.spec.gamma == 0.99)
    assert fading.own is not None
    seen, now = MemberRows(Rows(view, "auto"), np.ones((1, 4)), 1), head.settled
    _, variance = fading.predict(seen, np.array([0]), head.rewards.level, now)
    assert variance == pytest.approx(np.array([[2.0]]))
    for member in head.members:
        assert member.own is not None
        for P in member.own.P:
            assert np.linalg.eigvalsh(P).min() > 0
            np.testing.assert_allclose(P, P.T, atol=1e-12)


def test_dead_columns_keep_the_smallest_eigenvalue_at_lambda_and_are_not_in_the_rank() -> None:
    """The likeliest member is the one of what each arm has; two of three numbers are always 0."""
    view = view_of(3, 0)
    rows = world(view, 400, 5)
    for row in rows:
        row.phi[-2:] = 0.0
    health = learned(view, rows).health()
    assert health.smallest_eigenvalue == 1.0
    assert 1 <= health.effective_rank <= 2


def test_the_level_stays_in_a_stationary_world_and_follows_one_that_moves() -> None:
    """All arms fall by 0.3 at settlement 1,000: 100 later the mean of an arm that was not shown
    since has followed."""
    view, rng = view_of(0, 0), np.random.default_rng(1)
    head = AveragedHead(view, "auto")
    for number in range(1_100):
        arm = ARMS[number % 4] if number < 1_000 else ARMS[number % 3]
        base = 0.4 if number < 1_000 else 0.1
        head.observe(Observation(arm, np.ones(1), base + 0.2 * float(rng.random())))
        if number == 999:
            assert head.moving.moved == 0.0
    [mean] = head.mean(np.ones((1, 1)), ["d"])
    assert mean == pytest.approx(0.2, abs=0.05)


def test_an_alarm_moves_the_level_by_the_mean_error_and_then_by_what_remains() -> None:
    """Errors of 1 with deviation 0.5 count for 2 at most, less 0.5: the seventh passes 10. It moves
    the level by 1, and counts for 3.5 errors: the next one of -0.45 moves it by a tenth of that."""
    level = MovingLevel()
    for _ in range(6):
        level.see(1.0, 0.5)
        assert level.moved == 0.0
    level.see(1.0, 0.5)
    assert (level.moved, level.count) == (1.0, 3.5)
    level.see(-0.45, 0.5)
    assert level.moved == pytest.approx(1.0 - 0.45 / 4.5)


def test_many_crosses_are_hashed_to_a_few_columns() -> None:
    """Column (i, j) goes to the sum of the places of i and j, with the product of their signs."""
    view = view_of(20, 20)
    rows, rng = Rows(view, "auto"), np.random.default_rng(0)
    assert rows.shared_width == 1 + 20 + 20 + CROSSES
    assert rows._hash is not None
    x, w = rng.standard_normal((2, 20))
    direct = np.zeros(CROSSES)
    for value, first in zip(x, rows._hash[0], strict=True):
        for other, second in zip(w, rows._hash[1], strict=True):
            place = (np.flatnonzero(first)[0] + np.flatnonzero(second)[0]) % CROSSES
            direct[place] += value * other * first.sum() * second.sum()
    np.testing.assert_allclose(rows._crosses(x[None], w[None])[0, 0], direct, atol=1e-12)


def test_random_features_of_a_column_do_not_depend_on_the_others() -> None:
    """A new feature leaves what was learned in them valid."""
    few, many = Rows(view_of(2, 0), "auto"), Rows(view_of(3, 0), "auto")
    assert not np.allclose(few._omega[0], few._omega[1])
    assert np.array_equal(many._omega[:2], few._omega)
    many.keep(few, np.array([0, 1, 2, -1]))
    x = np.array([[0.5, -1.0, 0.0]])
    assert np.array_equal(many.expansions["relu"](x), few.expansions["relu"](x[:, :2]))


@pytest.mark.parametrize(("context", "arm"), [(60, 0), (20, 4)])
def test_columns_that_say_nothing_leave_the_arm_that_is_best_for_everybody_visible(
    context: int, arm: int
) -> None:
    """With a prior that gives each column as much, its mean drowns in what columns may mean."""
    view = view_of(context, arm)
    rows = [
        row._replace(reward=float(number % (4 if row.arm == "b" else 10) == 0))
        for number, row in enumerate(world(view, 1_200, seed=2))
    ]
    head = learned(view, rows)
    asked = np.array([row.phi for row in world(view, 200, seed=9)])
    best = [int(head.mean(np.concatenate([[phi]] * len(ARMS)), ARMS).argmax()) for phi in asked]
    assert np.mean(np.array(best) == ARMS.index("b")) > 0.9
