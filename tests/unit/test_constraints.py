"""Constraints: bounds by hand and by linear programs, and that the chances within them are the
best ones."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.optimize import linprog, minimize

from service.bandits import rules
from service.bandits.constraints import (
    Bounds,
    Constrained,
    Explore,
    Limit,
    Pin,
    bounds_of,
    clip,
    fill,
)
from service.bandits.constraints.scale import scaled
from service.bandits.linalg import Array

CLOSE = 1e-12
SLACK = 1e-9


@dataclass(frozen=True)
class Rules:
    """Rules of n arms, numbered in the order of their precedence."""

    n: int
    pins: Sequence[Pin] = ()
    caps: Sequence[Limit] = ()
    floors: Sequence[Limit] = ()
    explores: Sequence[Explore] = ()

    def bounds(self) -> Bounds:
        return bounds_of(self.n, self.pins, self.caps, self.floors, self.explores)

    def renamed(self, names: Array) -> "Rules":
        """The same rules where arm a is called names[a]."""
        return Rules(
            self.n,
            [pin._replace(arm=int(names[pin.arm])) for pin in self.pins],
            [cap._replace(arms=names[cap.arms]) for cap in self.caps],
            [floor._replace(arms=names[floor.arms]) for floor in self.floors],
            self.explores,
        )


def cap(rule: int, arms: Iterable[int], share: float | Array, *, each: bool = False) -> Limit:
    return Limit(rule, np.array([*arms], np.intp), share, each)


floor = cap

SHARES = st.integers(0, 20).map(lambda twentieths: twentieths / 20)


@st.composite
def some_rules(draw: st.DrawFn, *, disjoint: bool = True, most_arms: int = 7) -> Rules:
    """Draw rules; disjoint: groups are the blocks of a partition, and a block has one cap and one
    floor at most."""
    n = draw(st.integers(1, most_arms))
    arms = list(range(n))
    block_of = draw(st.lists(st.integers(0, 2), min_size=n, max_size=n))
    blocks = [[arm for arm in arms if block_of[arm] == block] for block in range(3)]
    numbers = iter(range(100))

    def limits() -> list[Limit]:
        found, left = list[Limit](), [block for block in blocks if block]
        for each in draw(st.lists(st.booleans(), max_size=3)):
            some = st.lists(st.sampled_from(arms), min_size=1, max_size=n, unique=True)
            if each:
                chosen = draw(some)
                own = st.lists(SHARES, min_size=len(chosen), max_size=len(chosen))
                share: float | Array = draw(SHARES | own.map(np.array))
            else:
                if disjoint and not left:
                    continue
                chosen = left.pop(draw(st.integers(0, len(left) - 1))) if disjoint else draw(some)
                share = draw(SHARES)
            found.append(cap(next(numbers), chosen, share, each=each))
        return found

    pins = [
        Pin(next(numbers), arm, draw(SHARES))
        for arm in draw(st.lists(st.sampled_from(arms), max_size=3))
    ]
    caps, floors = limits(), limits()
    explores = [Explore(next(numbers), draw(SHARES)) for _ in range(draw(st.integers(0, 1)))]
    return Rules(n, pins, caps, floors, explores)


@st.composite
def some_chances(draw: st.DrawFn, n: int) -> Array:
    weights = np.array(draw(st.lists(st.sampled_from([0, 1e-9, 1, 2, 5]), min_size=n, max_size=n)))
    weights[draw(st.integers(0, n - 1))] += 1
    return np.asarray(weights / weights.sum())


@st.composite
def some_scores(draw: st.DrawFn, n: int, draws: int = 1) -> Array:
    cells = st.lists(st.integers(-3, 3), min_size=n, max_size=n)
    return np.array([draw(cells) for _ in range(draws)], np.float64)


def both(data: st.DataObject, n: int, bounds: Bounds) -> Iterator[Constrained]:
    yield clip(data.draw(some_chances(n)), bounds)
    yield fill(data.draw(some_scores(n)), bounds)
    yield fill(data.draw(some_scores(n, draws=3)), bounds)


def expect_within(q: Array, bounds: Bounds) -> None:
    assert q.sum() == pytest.approx(1, abs=CLOSE)
    assert (q >= bounds.low - CLOSE).all()
    assert (q <= bounds.high + CLOSE).all()
    assert (q >= 0).all()


def movable(q: Array, bounds: Bounds) -> Iterator[tuple[int, int]]:
    """Yield pairs of arms (giver, taker) between which the bounds let some chance move. Where
    groups are disjoint or nested, chances are the best ones if no such move makes them better."""
    for giver, taker in permutations(range(len(q)), 2):
        gives = q[giver] > bounds.low[giver] + SLACK and all(
            floor.member[taker] >= floor.member[giver] or floor.member @ q > floor.share + SLACK
            for floor in bounds.floors
        )
        takes = q[taker] < bounds.high[taker] - SLACK and all(
            cap.member[giver] >= cap.member[taker] or cap.member @ q < cap.share - SLACK
            for cap in bounds.caps
        )
        if gives and takes:
            yield giver, taker


def first_impossible(all_rules: Rules) -> int | None:
    """Return the first rule, in order, that no chances satisfy with those before it."""
    n, upper, most = all_rules.n, list[Array](), list[float]()
    equal, values = [np.ones(n)], [1.0]
    signed = [(1, rule) for rule in (*all_rules.pins, *all_rules.caps)]
    signed += [(-1, rule) for rule in (*all_rules.floors, *all_rules.explores)]
    for sign, rule in signed:
        match rule:
            case Pin(_, arm, share):
                equal.append(np.eye(n)[arm])
                values.append(share)
            case Limit(_, arms, share, True):
                upper.extend(sign * np.eye(n)[arms])
                most.extend(sign * np.broadcast_to(share, len(arms)))
            case Limit(_, arms, share, False):
                upper.append(sign * np.eye(n)[arms].sum(axis=0))
                most.append(sign * share)
            case Explore(_, share):
                upper.extend(-np.eye(n))
                most.extend([-share / n] * n)
        found = linprog(
            np.zeros(n), upper or None, most or None, equal, values, bounds=(0, 1), method="highs"
        )
        if not found.success:
            return rule.rule
    return None


class TestBounds:
    def test_a_pin_gets_what_earlier_pins_leave(self) -> None:
        bounds = bounds_of(3, [Pin(0, 0, 0.7), Pin(1, 1, 0.5), Pin(2, 0, 0.1)], [], [])
        assert bounds.low == pytest.approx([0.7, 0.3, 0])
        assert bounds.high == pytest.approx([0.7, 0.3, 1])
        assert bounds.relaxed == (1, 2)

    def test_pins_of_all_arms_rise_in_proportion(self) -> None:
        bounds = bounds_of(2, [Pin(0, 0, 0.1), Pin(1, 1, 0.3)], [], [])
        assert bounds.low == pytest.approx([0.25, 0.75])
        assert bounds.relaxed == (0, 1)
        assert bounds_of(2, [Pin(0, 0, 0.0), Pin(1, 1, 0.0)], [], []).low.tolist() == [0.5, 0.5]

    def test_the_only_arm_gets_all_and_every_rule_below_1_yields(self) -> None:
        bounds = bounds_of(1, [], [cap(0, [0], 0.3, each=True), cap(1, [0], 0.5)], [])
        assert bounds.relaxed == (0, 1)
        assert clip(np.ones(1), bounds).p.tolist() == [1]
        pinned = bounds_of(1, [Pin(0, 0, 0.1)], [cap(1, [0], 0.5, each=True)], [])
        assert pinned.relaxed == (0, 1)
        assert fill(np.zeros((1, 1)), pinned).p.tolist() == [1]

    def test_caps_of_arms_rise_by_one_factor(self) -> None:
        assert bounds_of(2, [], [cap(0, [0, 1], 0.3, each=True)], []).high.tolist() == [0.5, 0.5]
        shares = np.array([0.1, 0.3])
        bounds = bounds_of(2, [], [cap(0, [0, 1], shares, each=True)], [])
        assert bounds.high == pytest.approx([0.25, 0.75])
        assert bounds.relaxed == (0,)

    def test_caps_at_0_rise_where_no_factor_is_enough(self) -> None:
        shares = np.array([0.0, 0.0, 0.2])
        bounds = bounds_of(
            3, [], [cap(0, [2], 0.6, each=True), cap(1, [0, 1, 2], shares, each=True)], []
        )
        assert bounds.high == pytest.approx([0.2, 0.2, 0.6])
        assert bounds.relaxed == (1,)

    def test_the_last_cap_yields_before_earlier_ones(self) -> None:
        caps = [cap(0, [0], 0.3, each=True), cap(1, [1], 0.3, each=True), cap(2, [2, 3], 0.1)]
        assert bounds_of(4, [], caps, []).caps[0].share == pytest.approx(0.4)
        bounds = bounds_of(2, [], caps[:2], [])
        assert bounds.high == pytest.approx([0.3, 0.7])
        assert bounds.relaxed == (1,)

    def test_an_earlier_cap_yields_where_the_last_is_not_enough(self) -> None:
        caps = [cap(0, [0, 1], 0.2, each=True), cap(1, [1], 0.1, each=True)]
        bounds = bounds_of(2, [], caps, [])
        assert bounds.high == pytest.approx([0.5, 0.5])
        assert bounds.relaxed == (0, 1)

    def test_caps_yield_to_pins(self) -> None:
        bounds = bounds_of(
            4,
            [Pin(0, 0, 0.4)],
            [cap(1, [0, 1], 0.2, each=True), cap(2, [0, 2], 0.3)],
            [],
        )
        assert bounds.high == pytest.approx([0.4, 0.2, 1, 1])
        assert bounds.caps[0].share == pytest.approx(0.4)
        assert bounds.relaxed == (1, 2)

    def test_a_floor_gets_what_pins_caps_and_earlier_floors_leave(self) -> None:
        bounds = bounds_of(
            4,
            [Pin(0, 0, 0.5)],
            [cap(1, [1], 0.1, each=True)],
            [
                floor(2, [1], 0.2, each=True),
                floor(3, [2, 3], 0.3),
                floor(4, [2], 0.35, each=True),
                floor(5, [3], 0.2, each=True),
            ],
        )
        assert bounds.low == pytest.approx([0.5, 0.1, 0.35, 0.05])
        assert bounds.floors[0].share == pytest.approx(0.3)
        assert bounds.relaxed == (2, 5)

    def test_a_floor_of_a_group_counts_its_pins(self) -> None:
        bounds = bounds_of(3, [Pin(0, 0, 0.2)], [], [floor(1, [0, 1], 0.3)])
        assert clip(np.array([0.0, 0.0, 1.0]), bounds).p == pytest.approx([0.2, 0.1, 0.7])

    def test_what_a_floor_of_a_group_takes_pays_for_exploration_in_it(self) -> None:
        bounds = bounds_of(4, [], [cap(0, [0, 1], 0.4)], [floor(1, [0, 1], 0.4)], [Explore(2, 0.4)])
        assert bounds.low == pytest.approx([0.1] * 4)
        assert bounds.relaxed == ()

    def test_exploration_takes_what_is_left(self) -> None:
        bounds = bounds_of(
            4,
            [Pin(0, 0, 0.25)],
            [cap(1, [1, 2], 0.1)],
            [],
            [Explore(2, 0.8)],
        )
        assert bounds.low == pytest.approx([0.25, 0.05, 0.05, 0.2])
        assert bounds.relaxed == (2,)

    def test_exploration_of_the_policy_is_never_relaxed(self) -> None:
        bounds = bounds_of(4, [Pin(0, 0, 0.04)], [], [])
        explored = bounds.explored(0.4)
        assert explored.low == pytest.approx([0.04, 0.1, 0.1, 0.1])
        assert explored.relaxed == ()
        assert bounds.explored(0.4) is explored
        assert bounds.explored(0.2).low[1] == pytest.approx(0.05)
        assert bounds.explored(0.4) is not explored
        assert bounds.explored(0.0) is bounds

    @given(some_rules())
    def test_a_rule_is_relaxed_only_where_earlier_ones_make_it_impossible(
        self, some: Rules
    ) -> None:
        bounds = some.bounds()
        assume(len({pin.arm for pin in some.pins}) < some.n)  # else pins yield alike
        first = first_impossible(some)
        assert min(bounds.relaxed, default=None) == first

    @given(some_rules(disjoint=False))
    def test_bounds_leave_chances_of_1(self, some: Rules) -> None:
        bounds = some.bounds()
        assert (bounds.low >= 0).all()
        assert (bounds.low <= bounds.high + CLOSE).all()
        assert bounds.low.sum() <= 1 + CLOSE
        assert bounds.high.sum() >= 1 - CLOSE

    @given(some_rules(disjoint=False), st.data())
    def test_pinned_arms_have_their_share(self, some: Rules, data: st.DataObject) -> None:
        assume(sum(pin.share for pin in some.pins) <= 1 and len(some.pins) < some.n)
        assume(len({pin.arm for pin in some.pins}) == len(some.pins))
        for found in both(data, some.n, some.bounds()):
            for pin in some.pins:
                assert found.p[pin.arm] == pytest.approx(pin.share, abs=CLOSE)


class TestBoth:
    @given(some_rules(), st.data())
    def test_all_bounds_hold_where_groups_are_disjoint(
        self, some: Rules, data: st.DataObject
    ) -> None:
        bounds = some.bounds().explored(data.draw(SHARES))
        for found in both(data, some.n, bounds):
            expect_within(found.p, bounds)
            assert found.relaxed == ()

    @given(some_rules(disjoint=False), st.data())
    def test_a_group_that_yields_to_others_is_reported(
        self, some: Rules, data: st.DataObject
    ) -> None:
        bounds = some.bounds().explored(data.draw(SHARES))
        for found in both(data, some.n, bounds):
            expect_within(found.p, bounds)
            for group in (*bounds.caps, *bounds.floors):
                share = float(group.member @ found.p)
                broken = share > group.share if group in bounds.caps else share < group.share
                assert (group.rule in found.relaxed) == (
                    broken and abs(share - group.share) > SLACK
                )

    def test_the_last_cap_yields_where_arms_fill_caps_that_overlap(self) -> None:
        bounds = bounds_of(3, [], [cap(0, [0, 1], 0.5), cap(1, [1, 2], 0.5)], [])
        assert bounds.relaxed == ()
        found = fill(np.array([[0.0, 2.0, 1.0]]), bounds)
        assert found.p == pytest.approx([0, 0.5, 0.5])
        assert found.relaxed == (1,)
        assert fill(np.array([[0.0, 2.0, 1.0]] * 2), bounds) == (pytest.approx([0, 0.5, 0.5]), (1,))
        assert clip(np.array([0.0, 1.0, 0.0]), bounds).relaxed == (1,)
        assert fill(np.array([[2.0, 0.0, 1.0]]), bounds).relaxed == ()

    def test_a_floor_gets_no_more_than_a_floor_that_overlaps_leaves(self) -> None:
        bounds = bounds_of(3, [], [], [floor(0, [0, 1], 0.6), floor(1, [1, 2], 0.6)])
        assert bounds.relaxed == ()
        for draws in (1, 2):
            found = fill(np.array([[2.0, 0.0, 1.0]] * draws), bounds)
            assert found.p == pytest.approx([0.6, 0, 0.4])
            assert found.relaxed == (1,)
        found = clip(np.array([0.9, 0.0, 0.1]), bounds)
        assert found.p == pytest.approx([0.6, 0, 0.4])
        assert found.relaxed == (1,)

    @given(some_rules(disjoint=False), st.data())
    def test_names_of_arms_do_not_matter(self, some: Rules, data: st.DataObject) -> None:
        names = np.array(data.draw(st.permutations(range(some.n))), np.intp)
        bounds, renamed = some.bounds(), some.renamed(names).bounds()
        p, rows = data.draw(some_chances(some.n)), data.draw(some_scores(some.n, draws=3))
        order = np.argsort(names)
        assert renamed.relaxed == bounds.relaxed
        assert clip(p[order], renamed).p[names] == pytest.approx(clip(p, bounds).p, abs=CLOSE)
        for some_rows in (rows, rows[:1]):
            found = fill(some_rows[:, order], renamed).p[names]
            assert found == pytest.approx(fill(some_rows, bounds).p, abs=CLOSE)

    @given(some_rules(), st.data())
    def test_a_tighter_cap_of_an_arm_never_raises_its_chance(
        self, some: Rules, data: st.DataObject
    ) -> None:
        arm, shares = data.draw(st.integers(0, some.n - 1)), data.draw(st.tuples(SHARES, SHARES))
        place = data.draw(st.integers(0, len(some.caps)))
        p, rows = data.draw(some_chances(some.n)), data.draw(some_scores(some.n))
        chances = []
        for share in sorted(shares):
            caps = [*some.caps]
            caps.insert(place, cap(99, [arm], share, each=True))
            bounds = bounds_of(some.n, some.pins, caps, some.floors, some.explores)
            chances.append([clip(p, bounds).p[arm], fill(rows, bounds).p[arm]])
        assert np.less_equal(chances[0], np.array(chances[1]) + SLACK).all()

    def test_rules_that_hold_chances_are_named(self) -> None:
        bounds = bounds_of(
            6,
            [Pin(0, 0, 0.1)],
            [
                cap(1, [1], 0.3, each=True),
                cap(2, [2, 3], 0.4),
                cap(3, [5], 0.2, each=True),
                cap(7, range(6), 1.0),
            ],
            [floor(4, [4, 5], 0.1), floor(5, [0, 3], 0.1, each=True)],
            [Explore(6, 0.06)],
        )
        assert bounds.binding(np.array([0.1, 0.3, 0.3, 0.1, 0.15, 0.05])) == (0, 1, 2, 5)
        assert bounds.binding(np.array([0.1, 0.2, 0.2, 0.15, 0.15, 0.2])) == (0, 3)
        assert bounds.binding(np.array([0.1, 0.25, 0.2, 0.15, 0.01, 0.09])) == (0, 4, 6)

    def test_a_cap_that_yields_to_1_holds_nothing(self) -> None:
        bounds = bounds_of(1, [], [cap(0, [0], 0.3, each=True), cap(1, [0], 0.5)], [])
        assert bounds.binding(np.ones(1)) == ()


class TestClip:
    @given(st.data(), st.integers(1, 7))
    def test_chances_without_rules_stay(self, data: st.DataObject, n: int) -> None:
        p = data.draw(some_chances(n))
        assert clip(p, Rules(n).bounds()).p is p

    def test_chances_by_hand(self) -> None:
        p = np.array([0.6, 0.2, 0.15, 0.05])
        capped = bounds_of(4, [], [cap(0, [0], 0.2, each=True)], [])
        assert clip(p, capped).p == pytest.approx([0.2, 0.4, 0.3, 0.1])
        grouped = bounds_of(4, [], [cap(0, [0, 1], 0.4)], [])
        assert clip(p, grouped).p == pytest.approx([0.3, 0.1, 0.45, 0.15])
        floored = bounds_of(4, [], [], [floor(0, [2, 3], 0.6)])
        assert clip(p, floored).p == pytest.approx([0.3, 0.1, 0.45, 0.15])
        explored = bounds_of(4, [], [], [], [Explore(0, 0.4)])
        assert clip(p, explored).p == pytest.approx(
            [0.6 * 0.9 / 0.95, 0.2 * 0.9 / 0.95, 0.15 * 0.9 / 0.95, 0.1]
        )

    def test_arms_rise_until_the_first_of_their_groups_is_full(self) -> None:
        bounds = bounds_of(4, [], [cap(0, [1, 2], 0.3), cap(1, [0, 1], 0.4)], [])
        p = np.array([0.4, 0.4, 0.1, 0.1])  # group 1 is full at c = 0.5, group 0 would be at 0.6
        assert clip(p, bounds).p == pytest.approx([0.2, 0.2, 0.1, 0.5])

    def test_arms_without_a_chance_get_evenly_what_no_other_can_take(self) -> None:
        bounds = bounds_of(3, [], [cap(0, [0], 0.4, each=True)], [])
        assert clip(np.array([1.0, 0.0, 0.0]), bounds).p == pytest.approx([0.4, 0.3, 0.3])
        assert clip(np.array([0.9, 0.1, 0.0]), bounds).p == pytest.approx([0.4, 0.6, 0.0])

    @given(some_rules(), st.data())
    def test_no_move_between_arms_brings_chances_nearer(
        self, some: Rules, data: st.DataObject
    ) -> None:
        bounds = some.bounds()
        p = data.draw(some_chances(some.n))
        q = clip(p, bounds).p
        for giver, taker in movable(q, bounds):
            assert p[giver] > 0 or p[taker] == 0
            if p[giver] and p[taker]:
                assert q[giver] / p[giver] <= q[taker] / p[taker] * (1 + 1e-6)

    @pytest.mark.parametrize("seed", range(6))
    def test_chances_are_those_that_an_optimiser_finds(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        p = rng.dirichlet(np.ones(6))
        caps = [cap(0, [0, 1], 0.25), cap(1, [2, 3, 4, 5], rng.uniform(0.2, 0.4), each=True)]
        bounds = bounds_of(6, [], caps, [floor(2, [2, 3], 0.4)], [Explore(3, 0.2)])
        signed = [(-1, group) for group in bounds.caps] + [(1, group) for group in bounds.floors]
        limits = [{"type": "eq", "fun": lambda q: q.sum() - 1}] + [
            {"type": "ineq", "fun": lambda q, s=sign, g=group: s * (g.member @ q - g.share)}
            for sign, group in signed
        ]
        found = minimize(
            lambda q: (q * np.log(q / p)).sum(),
            np.full(6, 1 / 6),
            bounds=list(zip(bounds.low, bounds.high, strict=True)),
            constraints=limits,
            method="SLSQP",
            options={"ftol": 1e-14, "maxiter": 1000},
        )
        assert found.success
        assert clip(p, bounds).p == pytest.approx(found.x, abs=1e-5)

    @given(st.data(), st.integers(2, 200))
    def test_chances_of_any_size_become_a_distribution(self, data: st.DataObject, n: int) -> None:
        rng = np.random.default_rng(data.draw(st.integers(0, 99)))
        p = 10.0 ** -rng.uniform(0, data.draw(st.sampled_from([1, 20, 300])), n)
        p /= p.sum()
        caps = rng.uniform(0, 4 / n, n)
        bounds = bounds_of(
            n, [], [cap(0, range(n), caps, each=True), cap(1, range(n // 2), 0.3)], [],
            [Explore(2, data.draw(SHARES))],
        )  # fmt: skip
        expect_within(clip(p, bounds).p, bounds)


class TestScaled:
    @given(st.integers(0, 10**6), st.sampled_from([1, 20, 200, 299]))
    def test_chances_of_any_size_reach_the_sum(self, seed: int, orders: int) -> None:
        rng = np.random.default_rng(seed)
        for n in (2, 3, 5, 20, 200):
            p = 10.0 ** -rng.uniform(0, orders, n)
            low = rng.uniform(0, 1 / n, n) * (rng.random(n) < 0.7)
            high = np.maximum(low, rng.uniform(0, 2 / n, n))
            total = low.sum() + rng.random() * (high.sum() - low.sum())
            q, c = scaled(p, low, high, total)
            assert q.sum() == pytest.approx(total, abs=CLOSE)
            assert np.clip(c * p, low, high) == pytest.approx(q, abs=CLOSE)

    def test_an_arm_at_a_bound_by_rounding_does_not_end_the_search(self) -> None:
        p = np.array([0.516753030094539, 0.016322909644904345, 0.46692406026055666])
        low = np.array([0.027777777777777776, 0.05555555555555555, 0.05555555555555555])
        high = np.array([0.27777777777777773, 0.5277777777777777, 0.19444444444444445])
        q, c = scaled(p, low, high, 0.9572443960302632)
        assert q.sum() == pytest.approx(0.9572443960302632, abs=CLOSE)
        assert c == pytest.approx(q[1] / p[1])

    def test_a_sum_beyond_the_bounds_gives_the_nearest(self) -> None:
        p, low, high = np.array([0.5, 0.5]), np.array([0.1, 0.2]), np.array([0.3, 0.4])
        assert scaled(p, low, high, 0.0)[0].tolist() == low.tolist()
        assert scaled(p, low, high, 1.0)[0].tolist() == high.tolist()


class TestFill:
    @given(st.data(), st.integers(1, 7), st.integers(1, 4))
    def test_chances_without_rules_are_shares_of_wins(
        self, data: st.DataObject, n: int, draws: int
    ) -> None:
        rows = data.draw(some_scores(n, draws))
        alone = rules.win_shares(rows, np.ones(n, np.intp))
        assert fill(rows, Rules(n).bounds()).p == pytest.approx(alone, abs=CLOSE)
        vacuous = bounds_of(n, [], [cap(0, range(n), 1.0)], [])
        assert fill(rows, vacuous).p == pytest.approx(alone, abs=CLOSE)

    def test_chances_by_hand(self) -> None:
        scores = np.array([[4.0, 3.0, 2.0, 1.0]])
        capped = bounds_of(4, [], [cap(0, range(4), 0.4, each=True)], [])
        assert fill(scores, capped).p == pytest.approx([0.4, 0.4, 0.2, 0])
        grouped = bounds_of(4, [], [cap(0, [0, 1], 0.3)], [floor(1, [3], 0.1, each=True)])
        assert fill(scores, grouped).p == pytest.approx([0.3, 0, 0.6, 0.1])
        floored = bounds_of(4, [], [], [floor(0, [2, 3], 0.6)])
        assert fill(scores, floored).p == pytest.approx([0.4, 0, 0.6, 0])
        explored = bounds_of(4, [], [], [], [Explore(0, 0.4)])
        assert fill(scores, explored).p == pytest.approx([0.7, 0.1, 0.1, 0.1])

    def test_equal_scores_get_equal_amounts_up_to_their_bounds(self) -> None:
        bounds = bounds_of(4, [], [cap(0, [0], 0.1, each=True), cap(1, [1, 2], 0.5)], [])
        scores = np.array([[1.0, 1.0, 1.0 + 1e-13, 0.0]])
        expected = [0.1, 0.25, 0.25, 0.4]
        assert fill(scores, bounds).p == pytest.approx(expected)
        assert fill(np.repeat(scores, 2, axis=0), bounds).p == pytest.approx(expected)
        low = bounds_of(3, [], [], [floor(0, [0], 0.4, each=True)])
        assert fill(np.zeros((1, 3)), low).p == pytest.approx([0.6, 0.2, 0.2])

    def test_no_chance_is_below_its_least_by_rounding(self) -> None:
        bounds = bounds_of(2, [Pin(0, 0, 1.0)], [cap(1, [1], 0.05, each=True)], [])
        assert fill(np.zeros((3, 2)), bounds).p.tolist() == [1, 0]

    def test_chances_of_draws_are_means(self) -> None:
        bounds = bounds_of(3, [], [cap(0, range(3), 0.6, each=True)], [])
        rows = np.array([[3.0, 2.0, 1.0], [1.0, 2.0, 3.0]])
        assert fill(rows, bounds).p == pytest.approx([0.3, 0.4, 0.3])

    @given(some_rules(disjoint=False), st.data())
    def test_many_draws_are_as_each_alone(self, some: Rules, data: st.DataObject) -> None:
        bounds = some.bounds()
        rows = data.draw(some_scores(some.n, draws=4))
        alone = np.mean([fill(row[None], bounds).p for row in rows], axis=0)
        assert fill(rows, bounds).p == pytest.approx(alone, abs=CLOSE)

    @given(some_rules(), st.data())
    def test_no_arm_has_room_while_a_worse_one_has_more_than_its_least(
        self, some: Rules, data: st.DataObject
    ) -> None:
        bounds = some.bounds()
        scores = data.draw(some_scores(some.n))
        q = fill(scores, bounds).p
        for giver, taker in movable(q, bounds):
            assert scores[0, giver] >= scores[0, taker]

    @pytest.mark.parametrize("draws", [1, 3])
    def test_scores_that_are_no_numbers_are_refused(self, draws: int) -> None:
        bounds = bounds_of(3, [], [cap(0, [0], 0.5, each=True)], [])
        with pytest.raises(FloatingPointError, match="no numbers"):
            fill(np.full((draws, 3), np.nan), bounds)
