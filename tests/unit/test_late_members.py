"""Late members of `auto`: what they see, that they learn all that was, and when they count."""

from random import Random
from typing import Any

import numpy as np
import pytest

from service.bandits import version
from service.bandits.heads import averaged, digest
from service.bandits.heads.averaged import AveragedHead
from service.bandits.heads.averaged_informed import InformedHead
from service.bandits.heads.expansion import EACH, MOST_FUNCTIONS, Expansion, measured
from service.bandits.linalg import Array
from service.bandits.version import PACE, Version
from service.definition.experiment import Definition
from service.observe.attributions import attributions
from service.state.decider import Decider
from service.state.events import Erased, Outcome, Rewarded
from service.state.fold import State
from service.state.footprint import footprint
from tests.unit.folding import Log, bits, replay

FROM = 40
"""Settlements before late members begin to learn, in place of 2,048."""

LAST = -(-PACE * (FROM - 1) // (PACE - 1))
"""The settlement with which they have learned all that was."""


NUMBER = {"type": "numeric", "scale": 1.0, "min": -9.0, "max": 9.0}


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(version, "LATE_FROM", FROM)


def definition(arms: int = 3, **context: Any) -> dict[str, Any]:
    columns = context or {"x": NUMBER, "y": NUMBER}
    return {
        "features": {"context": columns},
        "arms": {f"arm{number}": {} for number in range(arms)},
        "policies": {"p": {"kind": "auto"}},
        "reward": {"range": [0, 1]},
    }


def visits(log: Log, count: int, seed: int = 0, *, imported: bool = False) -> None:
    """Rewards by the product of two numbers, which no column alone tells."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        names = log.state.schema.context.columns
        told = {name: float(rng.standard_normal()) for name in names}
        arm = int(rng.integers(len(log.state.arms)))
        x, y = list(told.values())[:2] if len(told) > 1 else (1.0, 1.0)
        good = (x * y > 0) == (arm == 0)
        log.settle(
            "p",
            {f"arm{arm}": float(rng.random() < (0.9 if good else 0.1))},
            told,
            imported=imported,
        )


def visited(count: int, seed: int = 0, **context: Any) -> Log:
    log = Log()
    log.define(definition(**context))
    visits(log, count, seed)
    return log


def active(log: Log) -> Version:
    return log.state.learners["p"].active


def head_of(log: Log) -> AveragedHead:
    head = active(log).head
    assert isinstance(head, AveragedHead)
    return head


def names(head: AveragedHead) -> list[str]:
    return [spec.own for spec in head.specs]


def late_theta(head: AveragedHead) -> Array:
    own = head.members[names(head).index("late")].own
    assert own is not None
    return own.theta[: head.count]


# -- what they see ---------------------------------------------------------------------------------


def drawn(x: Array, length: float = 2.0) -> Expansion:
    draws = [np.random.default_rng((1, column)) for column in range(x.shape[1])]
    return measured(x, draws, np.random.default_rng(2), length)


def test_functions_are_hinges_of_one_column_relus_and_squares_by_hand() -> None:
    x = np.random.default_rng(0).standard_normal((500, 3))
    found = drawn(x)
    z = x @ found.weights + found.shifts
    hinges, relus, squares = (slice(EACH * part, EACH * (part + 1)) for part in range(3))
    assert (np.count_nonzero(found.weights[:, hinges], axis=0) == 1).all()
    assert set(np.abs(found.weights[:, hinges]).max(axis=0)) == {1.0}
    assert (found.weights[:, relus] != 0).all()
    assert (found.shifts[squares] == 0).all()
    told = found(x)
    np.testing.assert_allclose(told[:, :84], np.maximum(z[:, :84], 0) * found.scales[:84])
    np.testing.assert_allclose(told[:, squares], z[:, squares] ** 2 * found.scales[squares])


def test_each_kind_weighs_as_much_and_all_as_much_as_a_usual_row() -> None:
    x = np.random.default_rng(0).standard_normal((500, 3))
    parts = np.square(drawn(x)(x)).reshape(500, 3, EACH).sum(axis=2).mean(axis=0)
    np.testing.assert_allclose(parts, 4.0 / 3.0)


def test_bends_lie_where_the_rows_are() -> None:
    """Rows far from 0: of each hinge and ReLU some rows are on either side."""
    x = 50.0 + np.random.default_rng(0).standard_normal((500, 2))
    found = drawn(x)
    share = (x @ found.weights + found.shifts > 0)[:, : 2 * EACH].mean(axis=0)
    assert ((share > 0.0) & (share < 1.0)).mean() > 0.95
    assert share.min() < 0.1
    assert share.max() > 0.9


def test_columns_of_two_values_have_no_hinges() -> None:
    rng = np.random.default_rng(0)
    flags = rng.integers(2, size=(200, 2)).astype(float)
    assert drawn(flags).width == 2 * EACH
    mixed = drawn(np.column_stack([flags, rng.standard_normal(200)]))
    assert mixed.width == MOST_FUNCTIONS
    assert not mixed.weights[:2, :EACH].any()


def test_what_is_drawn_for_a_column_does_not_depend_on_the_others() -> None:
    x = np.random.default_rng(0).standard_normal((200, 3))
    few, many = drawn(x[:, :2]), drawn(x)
    assert np.array_equal(many.weights[:2, EACH:], few.weights[:, EACH:])


def test_effects_add_up_to_the_whole() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((100, 3))
    found, theta = drawn(x), rng.standard_normal(MOST_FUNCTIONS)
    at_zero, columns = found.effects(x[0], theta)
    assert at_zero == pytest.approx(float((found(np.zeros((1, 3))) @ theta)[0]))
    assert at_zero + columns.sum() == pytest.approx(float((found(x[:1]) @ theta)[0]))


# -- that they learn all that was ------------------------------------------------------------------


def test_they_join_once_they_have_learned_all_settlements_in_order() -> None:
    """To the same bits as members that saw the same functions from the beginning."""
    log = visited(LAST - 1)
    assert "late" not in names(head_of(log))
    memory, trial = active(log).memory, head_of(log).trial
    assert memory is not None
    assert trial is not None
    visits(log, 1, seed=5)
    head = head_of(log)
    assert "late" in names(head)
    assert (active(log).memory, head_of(log).trial) == (None, None)
    straight = head_of(log).new()
    straight._rows.join(head._rows)
    straight._start(trial.specs)
    for event, _ in log.records[1:]:
        [one] = log.state.learners["p"].outcomes(event)  # type: ignore[arg-type]
        x = active(log).phi_of([one.row])[0]
        row = averaged.Observation(one.arm, x, one.reward)
        straight.observe(row)
    assert len(late_theta(head)) == 3
    assert (late_theta(head) != 0).any(axis=2).all()
    places = straight._arms.of([*head._arms.by_name]) - 1
    assert np.array_equal(late_theta(head), late_theta(straight)[places])
    assert np.array_equal(head.noises.squares[:, -1:], straight.noises.squares)


def test_a_settlement_teaches_a_few_of_those_that_were() -> None:
    log = visited(FROM - 1)
    read = []
    for seed in range(LAST - FROM + 1):
        visits(log, 1, seed)
        memory = active(log).memory
        read.append(None if memory is None else memory.read)
    assert read == [*range(PACE, FROM + 1, PACE), None]


def test_numbers_whose_scale_is_measured_are_learned_as_they_are_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The scale stays after 256 settlements; late members begin after it."""
    monkeypatch.setattr(version, "LATE_FROM", 300)
    log = visited(360, x={"type": "numeric"}, y={"type": "numeric"})
    assert "late" in names(head_of(log))
    assert bits(replay(log.records)) == bits(log.state)


@pytest.mark.parametrize("count", [FROM - 1, FROM + 1, LAST - 1, LAST, LAST + 60])
def test_a_snapshot_goes_on_to_the_same_bits(count: int) -> None:
    log = visited(count)
    restored = State.restore(log.state.snapshot())
    visits(log, 30, seed=4)
    assert bits(replay(log.records, restored)) == bits(log.state)
    assert bits(replay(log.records)) == bits(log.state)


@pytest.mark.parametrize("count", [FROM + 2, LAST + 3])
def test_after_imports_the_half_that_learned_them_has_late_members(count: int) -> None:
    """They learn imports as that half does, and its twin goes on without them."""
    log = Log()
    log.define(definition())
    visits(log, 20, imported=True)
    visits(log, count - 20, seed=1)
    head = head_of(log)
    assert isinstance(head, InformedHead)
    assert head.plain is not None
    assert (names(head)[-1] == "late") == (count > LAST)
    assert "late" not in names(head.plain)
    trial = head_of(log).trial
    assert trial is None or not isinstance(trial, InformedHead)
    again = State.restore(log.state.snapshot())
    assert bits(again) == bits(log.state)
    assert bits(replay(log.records)) == bits(log.state)


@pytest.mark.parametrize("when", [FROM - 2, FROM + 2, LAST + 2])
@pytest.mark.parametrize("which", [3, FROM - 4])
def test_a_corrected_reward_equals_having_come_at_once(when: int, which: int) -> None:
    """Whether late members had learned it, were to, or had joined."""
    log = visited(when)
    shown = log.settled[which]
    reward = 1.0 - shown.event.settled[0].reward
    log.correct(shown, reward)
    visits(log, LAST + 10 - when, seed=7)
    straight = Log()
    straight.define(definition())
    for number, each in enumerate(visited(when).settled):
        [one] = each.event.settled
        x, y = one.row.lists()["numbers"]
        told = reward if number == which else one.reward
        straight.settle("p", {one.arm: told}, {"x": x, "y": y})
    visits(straight, LAST + 10 - when, seed=7)
    found, expected = late_theta(head_of(log)), late_theta(head_of(straight))
    np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("when", [FROM - 2, FROM + 2, LAST + 2])
@pytest.mark.parametrize("which", [0, 3])
def test_a_withdrawn_settlement_is_not_learned_or_taken_out_again(when: int, which: int) -> None:
    """Also the first of all: the arm that the others met first is not the first that they meet."""
    log = visited(when, seed=2)
    shown = log.settled[which]
    [one] = shown.event.settled
    assert one.arm != log.settled[which + 1].event.settled[0].arm
    log.withdraw(shown, one.arm)
    visits(log, LAST + 10 - when, seed=7)
    kept = [each.event.settled[0] for each in log.settled if each.event.settled]
    expect_ridge(log, kept, [1.0] * len(kept))


def expect_ridge(log: Log, kept: list[Outcome], weights: list[float]) -> None:
    """The late member has learned these settlements of each arm, and no other."""
    head = head_of(log)
    late = head.members[-1].own
    assert late is not None
    for place, arm in enumerate(head._arms.by_name):
        own = [number for number, each in enumerate(kept) if each.arm == arm]
        x = active(log).phi_of([kept[number].row for number in own])
        seen = averaged.MemberRows(head._rows, x, 1).of("late") * head.members[-1]._own_deviation
        weight = np.array(weights)[own]
        P = np.linalg.inv(np.eye(seen.shape[1]) + (seen.T * weight) @ seen)
        np.testing.assert_allclose(late.P[place], P, atol=1e-8)


def test_a_settlement_of_weight_one_half_counts_for_half_of_one() -> None:
    log = visited(0)
    for number in range(LAST + 2):
        x, weight = np.array([float(number % 5), 1.0 - number % 3]), (1.0, 0.5)[number % 2]
        base = log.state.schema.layout.pack(x)
        row = Outcome(f"arm{number % 3}", float(number % 2), base, weight=weight)
        log.write(
            Rewarded(at=0.0, decision=f"d{number}", policy="p", schema_version=1, settled=[row])
        )
    kept = [event.settled[0] for event, _ in log.records[1:] if isinstance(event, Rewarded)]
    expect_ridge(log, kept, [each.weight for each in kept])


def test_settlements_of_erased_decisions_are_forgotten_and_not_learned() -> None:
    log = visited(FROM + 1)
    gone = [log.settled[number].event.decision for number in (2, FROM - 1)]
    log.write(Erased(at=0.0, decisions=gone, positions=[]))
    memory = active(log).memory
    assert memory is not None
    assert set(gone).isdisjoint(memory.keys)
    assert memory.read == 2 * PACE - 1  # one of the two had been learned
    visits(log, 20, seed=3)
    head = head_of(log)
    assert head.settled == FROM + 21
    assert "late" in names(head)
    assert bits(replay(log.records)) == bits(log.state)


def test_a_head_that_starts_anew_starts_without_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with the first misses by default, in the middle of what they learn."""
    log = visited(FROM + 2)
    order = active(log).order
    assert order is not None
    take = order.take
    monkeypatch.setattr(order, "take", lambda event, found: (True, take(event, found)[1]))
    visits(log, 1)
    memory = active(log).memory
    assert memory is not None
    assert (len(memory), head_of(log).trial) == (1, None)


@pytest.mark.parametrize("count", [FROM + 2, LAST + 5])
@pytest.mark.parametrize("columns", ["xyz", "xz", "x"])
def test_a_changed_definition_keeps_what_they_learned(count: int, columns: str) -> None:
    """While they learn, and after they joined. A new column is nothing to their functions."""
    log = visited(count, x=NUMBER, y=NUMBER)
    before = head_of(log).trial or head_of(log)
    x = np.array([[0.3, 0.0, 2.0], [-1.2, 0.0, 1.0]])
    seen, weights = before._rows.expansions["late"](x[:, :2]), before.weights
    random = before._rows.expansions["relu"](x[:, :2])
    log.define(definition(**dict.fromkeys(columns, NUMBER)))
    after = head_of(log).trial or head_of(log)
    assert after is not before
    assert after.specs == before.specs
    assert np.array_equal(after.weights, weights)
    at = ["xyz".index(name) for name in columns]
    np.testing.assert_allclose(after._rows.expansions["late"](x[:, at]), seen)
    x[:, 2] = 0.0  # random functions see a new column
    np.testing.assert_allclose(after._rows.expansions["relu"](x[:, at]), random)
    visits(log, LAST, seed=2)
    assert names(head_of(log)).count("late") == 1
    assert bits(replay(log.records)) == bits(log.state)


def test_the_order_of_features_has_no_meaning() -> None:
    told = {"x": NUMBER, "y": NUMBER, "a": NUMBER | {"scale": 2.0}}
    logs = [Log(), Log()]
    for log, order in zip(logs, ("xya", "ayx"), strict=True):
        log.define(definition(**{name: told[name] for name in order}))
        rng = Random(1)
        for _ in range(LAST + 5):
            context = {name: rng.gauss(0, 1) for name in "xya"}
            log.settle(
                "p", {rng.choice(sorted(log.state.arms)): float(rng.random() < 0.5)}, context
            )
    assert "late" in names(head_of(logs[0]))
    assert digest(head_of(logs[0])) == digest(head_of(logs[1]))


# -- when they count -------------------------------------------------------------------------------


def test_until_they_forecast_better_than_all_others_nothing_is_different(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rewards by chance: a member of so many functions foretells them worse."""

    def by_chance(log: Log) -> None:
        rng = Random(3)
        for _ in range(LAST + 60):
            context = {name: rng.gauss(0, 1) for name in "xy"}
            log.settle("p", {f"arm{rng.randrange(3)}": float(rng.random() < 0.5)}, context)

    log, without = Log(), Log()
    log.define(definition())
    without.define(definition())
    by_chance(log)
    monkeypatch.setattr(version, "LATE_FROM", 10_000)
    by_chance(without)
    head, other = head_of(log), head_of(without)
    assert names(head) == [*names(other), "late"]
    assert np.array_equal(head.weights, [*other.weights, 0.0])
    rows = active(log).view.design(np.array([[0.5, -1.0]]), log.state.candidates.x)
    ids = log.state.candidates.ids
    assert np.array_equal(head.spread(rows, ids), other.spread(rows, ids))


def test_what_the_silent_err_says_nothing_of_the_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """The weights of the others are those without them, even if they had not erred at all."""
    log = visited(LAST)
    monkeypatch.setattr(version, "LATE_FROM", 10_000)
    without = visited(LAST)
    head = head_of(log)
    head._speaks[-1] = False
    head.noises.squares[:, -1], head.noises.arms[:, -1], head.noises.fresh = 0.0, 0.0, 0.0
    head_of(without).noises.fresh = 0.0
    for each in (log, without):
        visits(each, 1, seed=3)
    assert np.array_equal(head._evidence[:-1], head_of(without)._evidence)


def test_they_count_once_they_forecast_better_and_say_what_no_column_says() -> None:
    log = visited(1_200)
    head = head_of(log)
    assert head.weights[-1] > 0.9
    ids, x = log.state.candidates.ids, np.array([[1.5, 1.5], [1.5, -1.5]])
    means = [
        head.mean(active(log).view.design(row[None], log.state.candidates.x), ids) for row in x
    ]
    assert [ids[int(mean.argmax())] == "arm0" for mean in means] == [True, False]
    rows = attributions(Decider.serving(log.state.learners["p"]), x[0], log.state.candidates)
    rest = [row.mean - sum(part.contribution for part in row.moved) for row in rows]
    assert rest == pytest.approx([rest[0]] * 3, abs=1e-12)


def test_a_level_that_moved_while_they_learned_is_theirs_too() -> None:
    """What the others have moved by, and they have not, is taken off what they learned."""
    log = visited(LAST - 1)
    head, trial = head_of(log), head_of(log).trial
    assert trial is not None
    head.moving.moved = 0.25
    rows = active(log).view.design(np.zeros((1, 2)), log.state.candidates.x)
    ids = log.state.candidates.ids
    own = trial.members[0].predict(
        averaged.MemberRows(trial._rows, rows, 3), trial._places(ids), 0.0, 0
    )[0]
    head.take(trial)
    [mean] = head.members[-1].predict(
        averaged.MemberRows(head._rows, rows, 3), head._places(ids), 0.0, 0
    )[0]
    [one] = own
    assert (mean < one).all()
    assert (one - mean < 0.25).all()


@pytest.mark.parametrize("most", [3, 4])
def test_many_arms_have_none(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """Four arms with room for three never have them; they leave with the fifth beside four."""
    monkeypatch.setattr(averaged, "LATE_MEMBER_ARMS", most)
    log = Log()
    log.define(definition(arms=4))
    visits(log, LAST + 20)
    assert ("late" in names(head_of(log))) == (most == 4)
    assert active(log).memory is None
    log.upsert("arm4", {})
    before = head_of(log).weights[:6]
    log.settle("p", {"arm4": 1.0}, {"x": 0.0, "y": 1.0})
    head = head_of(log)
    assert "late" not in names(head)
    assert len(head.weights) == len(before) == 6
    visits(log, 5, seed=9)
    assert bits(replay(log.records)) == bits(log.state)


def test_what_is_remembered_for_them_counts_as_memory() -> None:
    def taken(**more: Any) -> int:
        told = Definition.model_validate({**definition(x=NUMBER), **more})
        return footprint(told, 10)["policies.p"]

    alone = taken(features={})
    assert taken() - alone > 8 * (2_300 * 75 + 10 * (2 + MOST_FUNCTIONS) ** 2)
