"""The head of `auto` after an import: what each half learns, and what decides between them."""

from math import exp
from random import Random
from typing import Any

import numpy as np
import pytest

from service.bandits.heads import Observation, digest
from service.bandits.heads.averaged import AveragedHead
from service.bandits.heads.averaged_informed import BOUND, CREDIT, TWIN_SHARE, InformedHead
from service.bandits.linalg import Array
from service.features.view import View
from service.state.fold import State
from tests.unit.folding import Log, bits, replay
from tests.unit.test_averaged_head import learned, view_of, world

SIDES = [(3, 0), (2, 2), (0, 0)]


def informed(view: View, rows: list[Observation]) -> InformedHead:
    head = InformedHead(view, "auto")
    for row in rows:
        head.observe(row)
    return head


def marked(rows: list[Observation], first: int, last: int) -> list[Observation]:
    """The same, of which those from `first` to `last` were imported."""
    return [row._replace(imported=first <= number < last) for number, row in enumerate(rows)]


def paying(view: View, count: int, seed: int, arm: str, *, imported: bool) -> list[Observation]:
    """Settlements in a world where one arm alone pays."""
    return [
        row._replace(reward=float(row.arm == arm), imported=imported)
        for row in world(view, count, seed)
    ]


def trusted(head: InformedHead) -> float:
    """The share of what imports taught."""
    return sum(half.share for half in head.halves if half.head is head)


def twin_of(head: InformedHead) -> AveragedHead:
    assert head.plain is not None
    return head.plain


@pytest.mark.parametrize(("context", "arm"), SIDES)
def test_without_imports_it_is_an_averaged_head(context: int, arm: int) -> None:
    view = view_of(context, arm)
    rows = world(view, 40, seed=1)
    head, plain = informed(view, rows), learned(view, rows)
    assert digest(head) == digest(plain)
    asked = rows[0].phi[None]
    assert np.array_equal(head.spread(asked, ["a"]), plain.spread(asked, ["a"]))
    assert head.opinions(asked, ["a"])[0][:2] == plain.opinions(asked, ["a"])[0][:2]


@pytest.mark.parametrize(("context", "arm"), SIDES)
@pytest.mark.parametrize("first", [0, 15])
def test_an_import_reaches_one_half_and_all_else_reaches_both(
    context: int, arm: int, first: int
) -> None:
    view = view_of(context, arm)
    rows = marked(world(view, 60, seed=2), first, 30)
    head = informed(view, rows)
    assert digest(twin_of(head)) == digest(learned(view, [row for row in rows if not row.imported]))
    everything = learned(view, rows)
    own = AveragedHead.arrays(everything)
    assert all(np.array_equal(array, head.arrays()[name]) for name, array in own.items())


@pytest.mark.parametrize(("context", "arm"), SIDES)
def test_means_and_widths_are_those_of_both_halves_by_their_shares(context: int, arm: int) -> None:
    view = view_of(context, arm)
    head = informed(view, marked(world(view, 60, seed=2), 0, 30))
    head.against = 0.4
    kept = (1 - TWIN_SHARE) * exp(-0.4) / ((1 - TWIN_SHARE) * exp(-0.4) + TWIN_SHARE)
    row = world(view, 1, seed=5)[0]
    asked, arms = row.phi[None], [row.arm]
    own, plain = (
        np.array(AveragedHead.spread(each, asked, arms)) for each in (head, twin_of(head))
    )
    np.testing.assert_allclose(head.spread(asked, arms), kept * own + (1 - kept) * plain)
    told = head.opinions(asked, arms)
    assert sum(weight for _, weight, _ in told) == pytest.approx(1.0)
    assert sum(weight for name, weight, _ in told if "without" in name) == pytest.approx(1 - kept)
    [mean] = head.mean(asked, arms)
    assert mean == pytest.approx(sum(weight * float(means[0]) for _, weight, means in told))
    base = kept * head.base + (1 - kept) * twin_of(head).base
    effects = head.effects(asked[0], arms[0])
    parts = effects.constant + effects.columns.sum() + effects.crosses.sum()
    assert mean - base == pytest.approx(parts)


def test_a_log_of_this_world_keeps_its_share_and_one_of_another_loses_it() -> None:
    """Live visits in a world where arm a pays."""
    view = view_of(3, 0)
    live = paying(view, 60, 8, "a", imported=False)
    right, wrong = (
        informed(view, [*paying(view, 400, 3, arm, imported=True), *live]) for arm in ("a", "b")
    )
    assert trusted(right) == 1 - TWIN_SHARE
    assert trusted(wrong) == 0.0
    [(share, kept, _)] = wrong.halves
    assert (share, kept) == (1.0, wrong.plain)
    asked = live[0].phi[None]
    assert np.array_equal(wrong.spread(asked, ["a"]), twin_of(wrong).spread(asked, ["a"]))


def test_what_was_right_for_long_is_doubted_once_as_much_speaks_against_it() -> None:
    """A log of a world where arm a pays is right for 300 visits, and wrong from then on. The twin,
    which did not learn the log, is not as sure of that world."""
    view = view_of(3, 0)
    head = informed(view, paying(view, 3_000, 3, "a", imported=True))
    for row in paying(view, 300, 4, "a", imported=False):
        head.observe(row)
        assert head.against >= -CREDIT
        assert trusted(head) == pytest.approx(1 - TWIN_SHARE, rel=0.01)
    head.against = -CREDIT
    for row in paying(view, 300, 4, "b", imported=False):
        head.observe(row)
        assert head.against <= BOUND
    assert trusted(head) < 0.1


def test_the_evidence_of_a_settlement_is_the_difference_of_squared_errors() -> None:
    view = view_of(3, 0)
    head = informed(view, marked(world(view, 60, seed=2), 10, 30))
    twin, before = twin_of(head), head.against
    row = world(view, 1, seed=5)[0]._replace(weight=0.5)
    place = head._places([row.arm])[0]
    errors, noises = [], []
    for half in (head, twin):
        errors.append(row.reward - float(AveragedHead.mean(half, row.phi[None], [row.arm])[0]))
        noises.append(float(half.noises.of_arm(1, half.rewards.spread**2, place).min()))
    head.observe(row)
    gain = 0.5 * (errors[0] ** 2 - errors[1] ** 2) / (2 * max(noises))
    assert abs(gain) > 0.01
    assert head.against == pytest.approx(before + gain, rel=0.02)


def test_the_first_reward_says_nothing_about_imports() -> None:
    """No twin forecast it."""
    view = view_of(3, 0)
    head = informed(view, paying(view, 50, 3, "b", imported=True))
    head.observe(paying(view, 1, 4, "a", imported=False)[0])
    assert head.against == -CREDIT


def test_most_evidence_against_imports_leaves_them_out_of_decisions() -> None:
    view = view_of(3, 0)
    head = informed(view, marked(world(view, 20, seed=2), 0, 10))
    head.against = BOUND
    assert trusted(head) == 0.0


@pytest.mark.parametrize(("context", "arm"), SIDES)
@pytest.mark.parametrize("count", [5, 20, 45])
def test_a_restored_head_goes_on_to_the_same_bits(context: int, arm: int, count: int) -> None:
    """Before, while and after visits are imported."""
    view = view_of(context, arm)
    rows = marked(world(view, 80, seed=3), 10, 40)
    head, twin = informed(view, rows[:count]), InformedHead(view, "auto")
    twin.restore(head.arrays())
    assert digest(twin) == digest(head)
    for row in rows[count:]:
        head.observe(row)
        twin.observe(row)
    assert digest(twin) == digest(head)
    assert twin.against == head.against
    assert head.against != -CREDIT


@pytest.mark.parametrize("imported", [False, True])
def test_a_correction_reaches_the_halves_that_hold_the_reward(imported: bool) -> None:
    view = view_of(0, 0)
    rows = marked(world(view, 40, seed=3), 10, 20)
    number = 12 if imported else 25
    for change in (AveragedHead.revise, AveragedHead.withdraw):
        head = informed(view, rows)
        before = [bytes(half.rewards.array()) for half in (head, twin_of(head))]
        if change is AveragedHead.revise:
            head.revise(rows[number]._replace(reward=0.9), rows[number].reward)
        else:
            head.withdraw(rows[number])
        after = [bytes(half.rewards.array()) for half in (head, twin_of(head))]
        moved = [one != other for one, other in zip(before, after, strict=True)]
        assert moved == [True, not imported]


# -- through the fold ------------------------------------------------------------------------------


def visited(count: int, imports: range, seed: int = 4) -> Log:
    """A log of visits of a number whose scale is measured, some of them imported."""
    log, rng = Log(), Random(seed)
    log.define(definition(["cat", "dog"]))
    for number in range(count):
        visit(log, rng, imported=number in imports)
    return log


def definition(pets: list[str]) -> dict[str, Any]:
    context = {"age": {"type": "numeric"}, "pet": {"type": "categorical", "values": pets}}
    return {
        "features": {"context": context},
        "arms": {"a": {}, "b": {}},
        "policies": {"p": {"kind": "auto"}},
    }


def visit(log: Log, rng: Random, *, imported: bool = False) -> None:
    arm, age = rng.choice("ab"), rng.gauss(40.0, 9.0)
    context = {"age": age, "pet": rng.choice(["cat", "dog"])}
    log.settle(
        "p", {arm: float(rng.random() < (0.7 if age > 40 else 0.2))}, context, imported=imported
    )


def head_of(state: State) -> InformedHead:
    head = state.learners["p"].active.head
    assert isinstance(head, InformedHead)
    return head


@pytest.mark.parametrize("imports", [range(40), range(30, 90), range(300, 340)])
def test_a_recovered_state_has_both_halves_to_the_bit(imports: range) -> None:
    """Also while the scaling is measured, when heads learn again what a memory holds."""
    log = visited(imports.stop, imports)
    snapshot = log.state.snapshot()
    rng = Random(1)
    for _ in range(25):
        visit(log, rng)
    recovered = replay(log.records, State.restore(snapshot))
    assert bits(recovered) == bits(log.state) == bits(replay(log.records))
    head = head_of(recovered)
    assert twin_of(head).settled == head.settled - len(imports)


def test_both_halves_go_on_under_another_definition() -> None:
    log = visited(120, range(30, 70))
    head_of(log.state).against = 0.7
    before = told(log)
    log.define(definition(["fish", "dog", "cat"]))
    assert log.state.learners["p"].births == [1, 2]
    np.testing.assert_allclose(told(log), before, rtol=1e-9)
    assert head_of(log.state).against == 0.7
    visit(log, Random(2))


def told(log: Log) -> Array:
    """Means and widths of both arms for a cat of 30 years, of either half and of both."""
    learner, state = log.state.learners["p"], log.state
    x = state.schema.encode_context({"pet": "cat", "age": 30.0})
    phi = learner.view.design(x[None], state.candidates.x)
    head = head_of(state)
    halves = [AveragedHead.spread(each, phi, ["a", "b"]) for each in (head, twin_of(head))]
    return np.array([*halves, head.spread(phi, ["a", "b"])])
