"""What an audit says of a log: nothing where it is as it was written, else what was changed."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from service.analysis.rederive import Discrepancy, close_draws, rounded
from service.features.row import Row
from service.log import replay
from service.log.stores.base import KeptRow
from service.log.stores.memory import MemoryStore
from service.offline.audit_report import (
    KEPT_DISCREPANCIES,
    LISTED_DISCREPANCIES,
    AuditReport,
    PartReport,
    table,
)
from service.state.decisions import encode_decision
from service.state.events import (
    Corrected,
    ExperimentDefined,
    Expired,
    Rewarded,
    VersionActivated,
    encode_event,
    settlements_of,
)
from service.state.fold import State
from tests.unit.audited import (
    Changed,
    a_log,
    audited,
    decisions_of,
    events_of,
    other_probability,
    row,
    scores,
    single,
    with_shown,
)
from tests.unit.folding import POLICIES


@pytest.fixture(scope="module")
def played() -> MemoryStore:
    return a_log()


def test_a_log_as_it_was_written_is_clean(played: MemoryStore) -> None:
    """Every policy, slates, inline arms, corrections, a version, a restart, other features."""
    decisions, events = decisions_of(played), events_of(played)
    assert {decision.policy for decision in decisions} == set(POLICIES)
    assert {len(decision.shown) for decision in decisions} == {1, 3}
    assert any(arm.inline for decision in decisions for arm in decision.shown)
    attributes = [decision.attributes for decision in decisions if "rope" in decision.inline]
    assert attributes == [{"rope": {"stock": 3.0, "sale": True}}] * len(attributes) != []
    assert any(decision.model_version.startswith("neural/1@") for decision in decisions)
    assert {decision.schema_version for decision in decisions} == {1, 2, 3}
    assert {type(event) for _, event in events} > {Rewarded, Expired, Corrected, VersionActivated}
    found = audited(played)
    assert found.kept == []
    assert found.clean
    assert (found.decisions, found.events) == (len(decisions), len(events))
    assert found.underived == 0


def test_rows_that_came_in_another_order_than_they_were_made_are_clean(
    played: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of several services, one of them late by half the log; with pages of three rows."""
    monkeypatch.setattr(replay, "ROWS_PER_PAGE", 3)

    class Reordered(MemoryStore):
        async def decisions(self, experiment: str, after: int, limit: int) -> list[KeptRow]:
            rows = await played.decisions(experiment, 0, 10_000)
            rows = [row for pair in zip(rows, rows[::-1], strict=True) for row in pair][::2][::-1]
            return [
                KeptRow(number, row.id, row.payload)
                for number, row in enumerate(rows, 1)
                if after < number <= after + limit
            ]

    store = Reordered()
    store.__dict__ |= vars(played)
    assert audited(store).clean


# -- rows and events that are gone, and events that were changed -----------------------------------


def event(played: MemoryStore, kind: type[Any]) -> tuple[int, Any]:
    return next((at, event) for at, event in events_of(played) if type(event) is kind)


def test_a_lost_row_is_named_where_an_event_settles_it_and_counted_else(
    played: MemoryStore,
) -> None:
    _, corrected = event(played, Corrected)
    settled = {one.decision for _, event in events_of(played) for one in settlements_of(event)}
    lost = [decision.id for decision in decisions_of(played) if decision.id not in settled][:2]
    found = audited(Changed(played, dict.fromkeys([corrected.decision, *lost])))
    named, counted = found.kept
    assert (named.kind, named.id) == ("missing", corrected.decision)
    assert (counted.kind, counted.what[:11]) == ("missing", "2 more rows")
    assert found.counts["missing"] == 3
    assert not found.clean


def test_an_event_that_is_gone_is_named_and_the_choices_are_checked_all_the_same(
    played: MemoryStore,
) -> None:
    """A state cannot be derived past it, and that is said, too."""
    position, _ = event(played, Corrected)
    last = decisions_of(played)[-1]
    payload = encode_decision(with_shown(last, propensity=0.123))
    found = audited(Changed(played, {last.id: payload}, {position: None}))
    broken = Discrepancy(
        "log", f"position {position}", f"the log goes on at position {position + 1}"
    )
    assert broken in found.kept
    assert [each.id for each in found.kept if each.kind == "choice"] == [last.id]
    assert found.counts.keys() == {"log", "choice", "fields"}  # made at the position that is gone
    made_after = [
        decision
        for decision in decisions_of(played)
        if int(decision.model_version.rpartition("@")[2]) > position
    ]
    assert found.underived == len(made_after) > 0
    assert not found.clean


UNKNOWN_KIND = ExperimentDefined(
    at=0.0, revision=1, schema_version=1, definition={"policies": {"linucb": {"kind": "?"}}}
)


@pytest.mark.parametrize("payload", [b"}", b'{"schema":9,"event":{}}', encode_event(UNKNOWN_KIND)])
def test_an_event_that_cannot_be_read_or_folded_is_named(
    played: MemoryStore, payload: bytes
) -> None:
    found = audited(Changed(played, events={1: payload}))
    assert [(each.kind, each.id) for each in found.kept] == [("log", "position 1")]
    assert found.underived == found.decisions


def settled_otherwise(**changes: Any) -> Callable[[Any], Any]:
    def change(event: Any) -> Any:
        if isinstance(event, Expired):
            return Expired.of([change(one) for one in event.defaults])
        first, *rest = event.settled
        return msgspec.structs.replace(
            event, settled=[msgspec.structs.replace(first, **changes), *rest]
        )

    return change


@pytest.mark.parametrize(
    ("kind", "change", "found_as", "what"),
    [
        (Rewarded, settled_otherwise(reward=0.5), "fields", "reward of"),
        (Expired, settled_otherwise(reward=0.5), "double", "does not go on"),  # one corrects it
        (Corrected, settled_otherwise(reward=0.5), "fields", "reward of"),
        (Corrected, settled_otherwise(was=9.0), "double", ""),
        (Corrected, settled_otherwise(since=1), "fields", ""),
        (Rewarded, settled_otherwise(row=Row(bytes(8), (0, 0))), "features", "numbers[0] of"),
        (Rewarded, settled_otherwise(row=Row(b"", (1, 1))), "features", "numbers of"),
        (Rewarded, settled_otherwise(row=Row(bytes(9), (1,))), "features", "numbers[0] of"),
        (Rewarded, settled_otherwise(arm="nothing"), "fields", "settled arm"),
        (Rewarded, lambda e: msgspec.structs.replace(e, policy="nobody"), "fields", "policy"),
        (Rewarded, lambda e: msgspec.structs.replace(e, schema_version=5), "fields", "schema"),
        (Rewarded, lambda e: msgspec.structs.replace(e, decision="nobody"), "missing", ""),
    ],
)
def test_an_event_that_was_changed_is_named(
    played: MemoryStore,
    kind: type[Any],
    change: Callable[[Any], Any],
    found_as: str,
    what: str,
) -> None:
    position, original = event(played, kind)
    changed = change(original)
    found = audited(Changed(played, events={position: encode_event(changed)}))
    [settled] = settlements_of(changed)
    named = [each for each in found.kept if (each.id, each.kind) == (settled.decision, found_as)]
    assert any(what in each.what and f"position {position}" in each.what for each in named)


def test_marks_that_the_store_has_forgotten_are_no_fault(played: MemoryStore) -> None:
    class Forgetful(Changed):
        async def marks(self, experiment: str, identities: Any) -> dict[str, Any]:
            return {}

    assert audited(Forgetful(played)).clean


# -- ties ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "close"),
    [
        ([1.0, 0.5], 0),  # no rounding makes these tie
        ([1.0, 1.0], 0),  # these do on every machine
        ([1.0, 1 - 1e-16], 0),
        ([1.0, 1 - 1e-12], 1),
        ([0.2, 1.0, 1 - 5e-10], 1),
        ([1.0, 1 - 1e-8], 0),
        ([1.0], 0),
    ],
)
def test_a_draw_is_close_where_rounding_decides_what_ties(row: list[float], close: int) -> None:
    assert close_draws(scores(row)) == close


def test_a_difference_is_a_tie_up_to_the_close_draws_and_to_two() -> None:
    """Of 10 draws 3 are close: a probability may differ by 2 / 10; where 1 is, by 1 / 10."""
    apart, near = [1.0, 0.5], [1.0, 1 - 1e-12]
    three = scores(*[near] * 3, *[apart] * 7)
    assert rounded(three, 0.2)
    assert not rounded(three, 0.201)
    one = scores(near, *[apart] * 9)
    assert rounded(one, 0.1)
    assert not rounded(one, 0.2)
    assert not rounded(scores(*[apart] * 10), 1e-16)


def test_a_tie_that_rounding_decided_is_listed_and_no_fault(
    played: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    decision = row(played, single("watcher"))
    changed = encode_decision(other_probability(decision))
    monkeypatch.setattr("service.analysis.rederive.close_draws", lambda scores: 1)
    found = audited(Changed(played, {decision.id: changed}))
    assert [(each.kind, each.id) for each in found.kept] == [("tie", decision.id)]
    assert found.clean
    assert found.row()["probabilities"] == 1
    assert found.row()["beyond"] == 0


@pytest.mark.parametrize(
    ("decisions", "ties", "clean"),
    [(10, 1, True), (10_000, 1, True), (10_000, 2, False), (10_001, 2, True), (50_000, 6, False)],
)
def test_one_row_in_10_000_may_tie(decisions: int, ties: int, clean: bool) -> None:
    found = AuditReport("shop")
    found.decisions = decisions
    for _ in range(ties):
        found.add(Discrepancy("tie", "d", "probability of ball", 0.25, 0.26))
    assert found.clean is clean


# -- what is said ----------------------------------------------------------------------------------


def test_the_table_counts_and_names_the_first() -> None:
    found = AuditReport("shop")
    found.decisions, found.events = 12_345, 7
    for number in range(LISTED_DISCREPANCIES + 3):
        found.add(Discrepancy("choice", f"d{number}", "shown arm", "ball", "mouse"))
    found.add(Discrepancy("log", "position 4", "the log goes on at position 6"))
    lines = table([found, AuditReport("zoo")]).splitlines()
    assert lines[0].split()[:4] == ["experiment", "decisions", "events", "choices"]
    assert lines[1].split() == ["shop", "12,345", "7", "23", *"000000", "1", *"000"]
    assert lines[2].split() == ["zoo", *["0"] * 13]
    assert lines[3:5] == ["", "shop:"]
    assert lines[5] == "  choice        d0  shown arm: logged ball, derived mouse"
    assert lines[-1] == "  and 4 more"
    assert len(lines) == 5 + LISTED_DISCREPANCIES + 1


def test_decisions_of_the_fallback_are_told_by_policy_and_reason() -> None:
    found = AuditReport("shop")
    found.fallback.update({("lints", "scores"): 2, ("linucb", "scores"): 1_204})
    assert found.clean
    assert table([found]).splitlines()[2:] == [
        "",
        "shop:",
        "  the fallback made 2 decisions for policy 'lints' (scores)",
        "  the fallback made 1,204 decisions for policy 'linucb' (scores)",
    ]
    assert found.as_json()["fallback"] == [
        {"policy": "lints", "reason": "scores", "decisions": 2},
        {"policy": "linucb", "reason": "scores", "decisions": 1_204},
    ]


def test_a_row_that_two_parts_miss_is_named_once_and_makes_room_for_others() -> None:
    found, parts = AuditReport("shop"), [PartReport("shop"), PartReport("shop")]
    for number in range(KEPT_DISCREPANCIES - 2):
        parts[0].add(Discrepancy("missing", f"d{number}", "its row is missing"))
    for number in range(KEPT_DISCREPANCIES - 3, KEPT_DISCREPANCIES + 5):
        parts[1].add(Discrepancy("missing", f"d{number}", "its row is missing"))
        parts[1].add(Discrepancy("time", f"d{number}", "is older"))
    found.take(parts[0])
    found.take(parts[1], without={f"d{KEPT_DISCREPANCIES - 3}"})
    assert found.counts == {"missing": KEPT_DISCREPANCIES + 5, "time": 8}
    assert found.total == KEPT_DISCREPANCIES + 13
    last = [(one.kind, one.id) for one in found.kept[-2:]]
    again = [("time", f"d{KEPT_DISCREPANCIES - 3}"), ("missing", f"d{KEPT_DISCREPANCIES - 2}")]
    assert (last, len(found.kept)) == (again, KEPT_DISCREPANCIES)


def test_a_part_goes_on_one_event_at_a_time_where_those_before_it_cannot_be_folded_at_once(
    played: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = []

    def fail(state: State, first: int, events: Sequence[Any]) -> None:
        failed.append(first)
        raise ZeroDivisionError

    monkeypatch.setattr(State, "apply_run", fail)
    assert audited(played).clean
    assert failed


def test_all_are_counted_and_so_many_are_held() -> None:
    found = AuditReport("shop")
    for number in range(KEPT_DISCREPANCIES + 5):
        found.add(Discrepancy("missing", f"d{number}", "its row is missing"))
    content = found.as_json()
    assert (content["missing"], len(content["findings"])) == (
        KEPT_DISCREPANCIES + 5,
        KEPT_DISCREPANCIES,
    )
    assert content["clean"] is False
