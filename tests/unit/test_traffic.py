"""Units keep their policy: of one changed share, only those move that have to."""

from collections import Counter
from itertools import pairwise, permutations
from typing import Any

import pytest

from service.state.fold import State
from service.state.rollout import advance, roll_back
from service.state.traffic import winner
from tests.unit.folding import POLICIES, Log, bits, shop

UNITS = [f"unit {number}" for number in range(4_000)]


def policies(**shares: float) -> dict[str, str]:
    """Policy by unit."""
    total = sum(shares.values())
    chances = {name: share / total for name, share in shares.items()}
    return {unit: winner("shop", unit, chances) for unit in UNITS}


def moves(before: dict[str, str], after: dict[str, str]) -> dict[tuple[str, str], float]:
    """Share of the units that went from one policy to another."""
    found: dict[tuple[str, str], float] = {}
    for unit in UNITS:
        if before[unit] != after[unit]:
            way = before[unit], after[unit]
            found[way] = found.get(way, 0.0) + 1 / len(UNITS)
    return found


def test_each_policy_has_its_share() -> None:
    found = list(policies(a=5.0, b=3.0, c=2.0).values())
    for name, share in (("a", 0.5), ("b", 0.3), ("c", 0.2)):
        assert found.count(name) / len(UNITS) == pytest.approx(share, abs=0.03)


def test_the_order_of_policies_moves_nobody() -> None:
    shares = {"lints": 0.5, "linucb": 0.3, "random": 0.2}
    first = policies(**shares)
    for order in permutations(shares):
        assert policies(**{name: shares[name] for name in order}) == first


def test_a_larger_share_takes_only_what_it_grows_by() -> None:
    found = moves(policies(a=50, b=50), policies(a=60, b=40))
    assert found.keys() == {("b", "a")}
    assert found["b", "a"] == pytest.approx(0.1, abs=0.015)


def test_shares_in_other_units_move_nobody() -> None:
    assert moves(policies(a=1, b=1, c=2), policies(a=25, b=25, c=50)) == {}


def test_a_third_policy_takes_only_its_share() -> None:
    found = moves(policies(a=40, b=40), policies(a=40, b=40, c=20))
    assert found.keys() == {("a", "c"), ("b", "c")}
    assert found["a", "c"] == pytest.approx(0.1, abs=0.015)
    assert found["b", "c"] == pytest.approx(0.1, abs=0.015)


def test_several_shares_at_once_move_units_only_to_those_that_grew_more() -> None:
    """More than the least number, 20 percent, as docs/concepts.md says."""
    found = moves(policies(a=50, b=30, c=20), policies(a=30, b=30, c=40))
    assert found.keys() == {("a", "b"), ("a", "c"), ("b", "c")}
    assert sum(found.values()) == pytest.approx(0.25, abs=0.02)


def test_a_policy_without_a_share_gives_back_what_it_had() -> None:
    found = moves(policies(a=40, b=40, c=20), policies(a=40, b=40))
    assert found.keys() == {("c", "a"), ("c", "b")}


def test_experiments_assign_independently() -> None:
    both = sum(
        winner("shop", unit, {"a": 0.5, "b": 0.5}) == winner("other", unit, {"a": 0.5, "b": 0.5})
        for unit in UNITS
    )
    assert both / len(UNITS) == pytest.approx(0.5, abs=0.03)


def test_a_change_of_shares_leaves_the_rest_of_an_experiment_as_it_is() -> None:
    log = Log()
    log.define(shop(a={"kind": "linucb", "share": 3.0}, b={"kind": "random"}))
    log.settle("a", {"toy1": 1.0})
    before, learner = log.state.current_definition, log.state.learners["a"]
    rows, revision = log.state.rows, log.state.revision
    log.share(b=2.0)
    assert log.state.traffic.chances == {"a": 0.6, "b": 0.4}
    assert log.state.revision == revision + 1
    assert log.state.learners["a"] is learner
    assert log.state.rows is rows
    assert log.state.current_definition == before.with_shares({"b": 2.0})


def test_shares_are_in_snapshots_until_a_definition_sets_them_anew() -> None:
    log, defined = Log(), shop(a={"kind": "linucb", "share": 3.0}, b={"kind": "random"})
    log.define(defined)
    log.share(a=1.0)
    found = State.restore(log.state.snapshot())
    assert found.traffic.chances == log.state.traffic.chances == {"a": 0.5, "b": 0.5}
    log.define(defined)
    assert log.state.traffic.chances == {"a": 0.75, "b": 0.25}


def test_a_share_that_is_nothing_beside_another_is_never_drawn() -> None:
    log = Log()
    log.define(shop(a={"kind": "random", "share": 1e6}, b={"kind": "random", "share": 5e-324}))
    assert log.state.traffic.chances == {"a": 1.0}


# -- rollouts ------------------------------------------------------------------------------------

MANY_UNITS = [f"unit {number}" for number in range(100_000)]


def three_policies() -> Log:
    log = Log()
    shares = {"old": 3.0, "new": 0.0, "other": 1.0}
    log.define(shop(**{name: {"kind": "random", "share": each} for name, each in shares.items()}))
    return log


def test_no_unit_moves_from_a_challenger_to_its_baseline_in_any_stage() -> None:
    """Nor on another attempt, nor between the others, nor at the end."""
    log = three_policies()

    def drawn() -> list[str]:
        return [log.state.traffic.assign("shop", unit) for unit in MANY_UNITS]

    steps = [drawn()]
    for attempt in range(2):
        log.roll_out("new", "old", 0.05, 0.2, 0.5)
        stages = [drawn()]
        for share in (0.2, 0.5):
            log.step("new", advance)
            stages.append(drawn())
            part = stages[-1].count("new") / len(MANY_UNITS)
            assert part == pytest.approx(0.75 * share, abs=0.01)
        if attempt == 0:
            first, before = stages, drawn()
            log.step("new", roll_back)
            assert drawn() == steps[0]
            log.state = State.restore(log.state.snapshot())
            assert drawn() != before
    assert stages == first
    log.step("new", advance)
    assert log.state.traffic.rollouts["new"].state == "finished"
    steps += [*stages, drawn()]
    for earlier, later in pairwise(steps):
        moved = {(was, now) for was, now in zip(earlier, later, strict=True) if was != now}
        assert moved == {("old", "new")}
    assert "old" not in steps[-1]
    assert log.state.traffic.shares == {"old": 0.0, "new": 3.0, "other": 1.0}


def test_a_finished_challenger_draws_the_units_of_its_baseline_from_then_on() -> None:
    """As shares change afterwards, and in a rollout of its own successor."""
    log = three_policies()
    log.roll_out("new", "old", 0.5)
    before = {unit: log.state.traffic.assign("shop", unit) for unit in UNITS}
    log.step("new", advance)
    log.share(other=3.0)
    after = {unit: log.state.traffic.assign("shop", unit) for unit in UNITS}
    ways = moves(before, after).keys()
    assert ways == {("old", "new"), ("old", "other"), ("new", "other")}
    log.roll_out("old", "new", 0.5)
    log.step("old", advance)
    again = {unit: log.state.traffic.assign("shop", unit) for unit in UNITS}
    assert moves(after, again).keys() == {("new", "old")}
    restored = State.restore(log.state.snapshot()).traffic
    assert restored.members() == log.state.traffic.members()
    assert {unit: restored.assign("shop", unit) for unit in UNITS} == again


def versions() -> Log:
    """A log whose policy `net` has a version at its gate."""
    log = Log()
    net = {**POLICIES["neural"], "share": 3.0}
    log.define(shop(net=net, other={"kind": "random"}))
    for age in range(6):
        log.settle("net", {"toy1": float(age % 2)}, {"pet": "dog", "age": age})
    log.stage("net", gated=True)
    return log


def drawn(log: Log) -> list[str]:
    """What decides for each unit: `policy/version`."""
    names = [log.state.traffic.assign("shop", unit) for unit in UNITS]
    return [log.state.decider(name, unit).label for name, unit in zip(names, UNITS, strict=True)]


def test_no_unit_moves_from_a_version_to_the_one_that_serves() -> None:
    """Nor to another policy, nor at the end; its stages are shares of its policy."""
    log = versions()
    steps = [drawn(log)]
    log.roll_out("net", "net", 0.2, 0.5, version=1)
    for share in (0.2, 0.5):
        steps.append(drawn(log))
        chances = {each.label: chance for each, chance in log.state.deciders.items()}
        assert chances == pytest.approx(
            {"net/0": 0.75 * (1 - share), "net/1": 0.75 * share, "other/0": 0.25}
        )
        for label, chance in chances.items():
            assert steps[-1].count(label) / len(UNITS) == pytest.approx(chance, abs=0.03)
        restored = State.restore(log.state.snapshot())
        assert bits(restored) == bits(log.state)
        assert [*restored.deciders.values()] == [*log.state.deciders.values()]
        log.step("net", advance)
    steps.append(drawn(log))
    assert {*steps[-1]} == {"net/1", "other/0"}
    for earlier, later in pairwise(steps):
        moved = {(was, now) for was, now in zip(earlier, later, strict=True) if was != now}
        assert moved == {("net/0", "net/1")}


def test_another_version_gets_other_units_first() -> None:
    log, found = versions(), []
    for number in (1, 2):
        log.roll_out("net", "net", 0.2, version=number)
        labels = zip(drawn(log), UNITS, strict=True)
        found.append({unit for label, unit in labels if label == f"net/{number}"})
        log.step("net", roll_back)
        log.stage("net", gated=True)
    first, second = found
    assert len(first & second) / len(first) == pytest.approx(0.2, abs=0.08)


def test_a_version_that_was_rolled_back_is_gone_and_counts_as_a_rollback() -> None:
    log = versions()
    before = drawn(log)
    log.roll_out("net", "net", 0.2, version=1)
    log.step("net", roll_back)
    assert drawn(log) == before
    assert log.state.learners["net"].challenger is None
    assert log.state.traffic.rollbacks == 1
    assert log.state.traffic.shares == {"net": 3.0, "other": 1.0}


def test_a_definition_gives_both_policies_of_a_rollout_what_it_gives_either() -> None:
    log = three_policies()
    log.roll_out("new", "old", 0.25)
    assert log.state.traffic.shares == {"old": 2.25, "new": 0.75, "other": 1.0}
    policies = {"old": {"kind": "random", "share": 1.0}, "new": {"kind": "random", "share": 1.0}}
    log.define(shop(**policies))
    assert log.state.traffic.shares == {"old": 1.5, "new": 0.5}
    log.define(shop(old=policies["old"]))
    assert log.state.traffic.shares == {"old": 1.0}
    assert log.state.traffic.rollouts == {}


def test_a_rollout_leaves_its_share_to_the_bit_while_others_change() -> None:
    log = three_policies()
    log.roll_out("new", "old", 0.01)
    log.share(other=2.0)  # a hundredth of 3 and the rest of it are 3 - 2 ** -51
    log.step("new", roll_back)
    assert log.state.traffic.given == {"old": 3.0, "new": 0.0, "other": 2.0}


def test_an_assigned_policy_is_drawn_with_its_chance() -> None:
    log = three_policies()
    log.roll_out("new", "old", 0.25)
    found = Counter(log.state.traffic.assign("shop", unit) for unit in UNITS)
    for name, chance in log.state.traffic.chances.items():
        assert found[name] / len(UNITS) == pytest.approx(chance, abs=0.03)


def test_rollbacks_are_counted_over_attempts_and_definitions() -> None:
    log = three_policies()
    for _ in range(2):
        log.roll_out("new", "old", 0.25)
        log.step("new", roll_back)
    log.define(shop(old={"kind": "random"}))
    assert State.restore(log.state.snapshot()).traffic.rollbacks == 2


# -- the loss budget -----------------------------------------------------------------------------


def budgeted(by: float = 0.05, **more: Any) -> dict[str, Any]:
    """Policies of which `old` has three fifths of the traffic, and a loss budget that names it."""
    shares = {"old": 3.0, "new": 1.0, "other": 1.0}
    policies = {name: {"kind": "random", "share": each} for name, each in shares.items()}
    return {**shop(**{**policies, **more}), "never_below": {"policy": "old", "by": by}}


def test_a_budget_scales_all_others_together_and_keeps_what_is_set() -> None:
    log = Log()
    log.define(budgeted())
    traffic = log.state.traffic
    assert traffic.given == {"old": 3.0, "new": 1.0, "other": 1.0}
    assert traffic.chances == pytest.approx({"old": 0.95, "new": 0.025, "other": 0.025})
    assert log.state.definition_with_shares == log.state.definition
    log.move_budget(0.3)
    chances = {"old": 0.7, "new": 0.15, "other": 0.15}
    assert log.state.traffic.chances == pytest.approx(chances)
    log.move_budget(0.9)
    assert log.state.traffic.chances == {"old": 0.6, "new": 0.2, "other": 0.2}
    log.share(new=2.0)
    assert log.state.traffic.given == {"old": 3.0, "new": 2.0, "other": 1.0}
    assert log.state.definition_with_shares.policies["new"].share == 2.0


def test_units_move_only_between_the_policy_of_a_budget_and_the_others() -> None:
    log = Log()
    log.define(budgeted(old={"kind": "random", "share": 0.1}))
    drawn = [{unit: log.state.traffic.assign("shop", unit) for unit in UNITS}]
    for share in (0.2, 0.5, 0.9, 0.3):
        log.move_budget(share)
        drawn.append({unit: log.state.traffic.assign("shop", unit) for unit in UNITS})
        part = sum(name != "old" for name in drawn[-1].values()) / len(UNITS)
        assert part == pytest.approx(share, abs=0.03)
    for before, after in pairwise(drawn[:-1]):
        assert moves(before, after).keys() == {("old", "new"), ("old", "other")}
    assert moves(*drawn[-2:]).keys() == {("new", "old"), ("other", "old")}


def test_a_rollout_divides_what_a_budget_leaves_to_its_baseline() -> None:
    log = Log()
    log.define(budgeted(new={"kind": "random", "share": 0.0}))
    log.move_budget(0.1)
    log.roll_out("new", "other", 0.25)
    traffic = log.state.traffic
    assert traffic.given == {"old": 3.0, "new": 0.25, "other": 0.75}
    assert traffic.chances == pytest.approx({"old": 0.9, "new": 0.025, "other": 0.075})
    before = {unit: traffic.assign("shop", unit) for unit in UNITS}
    log.move_budget(0.2)
    after = {unit: log.state.traffic.assign("shop", unit) for unit in UNITS}
    assert moves(before, after).keys() == {("old", "new"), ("old", "other")}


def test_a_budget_is_in_snapshots_and_lasts_until_it_or_its_policy_changes() -> None:
    log = Log()
    log.define(budgeted())
    log.move_budget(0.5)
    began = log.state.traffic.budget
    assert State.restore(log.state.snapshot()).traffic.members() == log.state.traffic.members()
    log.define(budgeted(new={"kind": "linucb"}, old={"kind": "random", "share": 0.5}))
    assert log.state.traffic.budget == began
    for changed in (budgeted(0.1), budgeted(0.1, old={"kind": "random", "epsilon": 0.5})):
        log.define(changed)
        budget = log.state.traffic.budget
        assert budget is not None
        assert (budget.share, budget.moves, budget.began) == (0.1, 0, log.state.position)
        log.move_budget(0.3)
    log.define({**budgeted(), "never_below": None})
    assert log.state.traffic.budget is None
    assert log.state.traffic.chances == {"old": 0.6, "new": 0.2, "other": 0.2}


def test_a_move_of_a_budget_that_has_ended_changes_nothing() -> None:
    log = Log()
    log.define(budgeted())
    log.move_budget(0.5)
    late, _ = log.records[-1]
    log.define(budgeted(0.1))
    log.write(late)
    assert log.state.traffic.chance("old") == pytest.approx(0.9)
    log.delete()
    log.write(late)
    log.define(budgeted(0.1))
    log.write(late)
    assert log.state.traffic.chance("old") == pytest.approx(0.9)


def test_a_move_makes_no_revision_and_sets_no_share() -> None:
    log = Log()
    log.define(budgeted())
    revision = log.state.revision
    log.move_budget(0.5)
    assert log.state.revision == revision
    newest = next(log.state.changelog.newest_first())
    assert (newest.kind, newest.revision, newest.shares) == ("budget_moved", 0, None)
