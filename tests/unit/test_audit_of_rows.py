"""A decision row that was changed, part by part: an audit names it and says what differs."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from service.analysis.rederive import Discrepancy, drawn_arm
from service.bandits import ranking
from service.features.row import Row
from service.log.stores.memory import MemoryStore
from service.state.decisions import Decision, encode_decision
from service.state.traffic import winner
from tests.support.tables import bounds
from tests.unit.audited import (
    Changed,
    Pick,
    a_log,
    audited,
    decisions_of,
    other_probability,
    scores,
    single,
    slate,
    with_shown,
)
from tests.unit.folding import shop


@pytest.fixture(scope="module")
def played() -> MemoryStore:
    return a_log()


def seed(decision: Decision) -> Decision:
    """One bit of it, the lowest that something else is drawn by, if all arms are alike."""
    size, alike = len(decision.shown), scores([0.0] * len(decision.arms))
    for bit in range(63):
        changed = msgspec.structs.replace(decision, seed=decision.seed ^ (1 << bit))
        _, ranked = ranking.draw(alike, size, bounds(), changed.seed)
        drawn = (
            [decision.arms[index] for index in ranked.arms] if size > 1 else [drawn_arm(changed)]
        )
        if drawn != [arm.arm for arm in decision.shown]:
            return changed
    raise AssertionError("no bit of the seed matters")


def swapped(decision: Decision) -> Decision:
    other = next(arm for arm in decision.arms if arm != decision.shown[0].arm)
    return with_shown(decision, arm=other)


def other_place(decision: Decision) -> Decision:
    row = decision.shown[0].row
    *places, last = row.places
    return with_shown(decision, row=Row(row.numbers, (*places, last ^ 1)))


def turned(decision: Decision) -> Decision:
    first, second, third = decision.shown
    return msgspec.structs.replace(decision, shown=[second, first, third])


def other_arm(decision: Decision) -> Decision:
    arms = ["food0" if arm == "food1" else arm for arm in decision.arms]
    return msgspec.structs.replace(decision, arms=arms)


def field(**changes: Any) -> Callable[[Decision], Decision]:
    return lambda decision: msgspec.structs.replace(decision, **changes)


def other_unit(decision: Decision) -> Decision:
    """One that would have got another policy."""
    chances = dict.fromkeys(sorted(shop()["policies"]), decision.assignment)
    units = (f"unit {number}" for number in range(100))
    unit = next(u for u in units if winner("shop", u, chances) != decision.policy)
    return msgspec.structs.replace(decision, unit=unit)


CHANGES: list[tuple[Pick, Callable[[Decision], Decision], str, str]] = [
    (single("lints_disjoint"), other_probability, "probabilities", "probability of"),
    (single("random"), other_probability, "probabilities", "probability of"),
    (single("random"), seed, "choice", "shown arm"),
    (slate("random"), seed, "choice", "slate"),
    (single("random"), swapped, "choice", "shown arm"),
    (slate("watcher"), turned, "probabilities", "probability of"),
    (single("linucb"), lambda d: with_shown(d, propensity=0.123), "choice", "propensity of"),
    (single("linucb"), field(slate_log=-0.123), "choice", "propensity of"),
    (slate("windowed"), field(slate_log=-0.123), "probabilities", "chances of the slots"),
    (single("neural"), other_place, "features", "places["),
    (single("neural"), lambda d: with_shown(d, row=Row(b"", ())), "features", "numbers of"),
    (single("linucb"), lambda d: with_shown(d, inline=not d.shown[0].inline), "features", "out"),
    (single("linucb"), field(context={"pet": "bird"}), "features", "context.pet"),
    (single("linucb"), field(context={}), "features", "context.pet is missing"),
    (single("watcher"), field(bank=1), "fields", "bank"),
    (single("watcher"), field(schema_version=9), "fields", "schema_version"),
    (single("watcher"), field(assignment=0.125), "fields", "assignment"),
    (lambda d: d.assignment < 1, other_unit, "fields", "policy that was drawn"),
    (single("watcher"), lambda d: field(at=d.at + 0.5)(d), "fields", "reward_by"),
    (single("watcher"), field(accept_until=0.0), "fields", "accept_until"),
    (single("watcher"), field(policy="nobody"), "fields", "no policy nobody"),
    (single("neural"), field(model_version="neural/9@40"), "fields", "model_version"),
    (single("neural"), field(model_version="neural/0@99999"), "fields", "does not have"),
    (single("neural"), field(model_version="neural/0@0"), "fields", "does not have"),
    (single("neural"), field(model_version="neural"), "unreadable", "do not fit together"),
    (single("neural"), field(shown=[]), "unreadable", "do not fit together"),
    (single("neural"), field(probabilities=[1.0]), "unreadable", "do not fit together"),
    (single("linucb"), field(context={"pet": ["cat"]}), "features", "context.pet"),
    (
        lambda d: any(arm.inline for arm in d.shown),
        lambda d: field(inline={arm: {"kind": "bed"} for arm in d.inline})(d),
        "features",
        "",
    ),
    (
        lambda d: "rope" in d.attributes,
        field(attributes={"rope": {"stock": "3"}}),
        "features",
        "attributes.rope.stock must be a number",
    ),
    (single("neural"), field(attributes={"nobody": {}}), "unreadable", "do not fit together"),
    (lambda d: "food1" in set(d.arms) - {a.arm for a in d.shown}, other_arm, "features", "food0"),
    (single("linucb"), field(id="somebody else's"), "fields", "id"),
]
"""Which row, its change, and what an audit says of it: the kind, and a part of what differs."""


@pytest.fixture(scope="module")
def told(played: MemoryStore) -> list[list[Discrepancy]]:
    """What an audit says of the row, by change. Each changes a row of its own, as long as there
    are rows that it is for; an audit tells of these, and of no other."""
    every, changed, places = decisions_of(played), [dict[str, bytes]()], list[tuple[int, str]]()
    for pick, change, *_ in CHANGES:
        fitting = [decision for decision in every if pick(decision)]
        free = (
            (place, decision)
            for place, rows in enumerate([*changed, {}])
            for decision in fitting
            if decision.id not in rows
        )
        place, decision = next(free)
        other = change(decision)
        assert other != decision
        if place == len(changed):
            changed.append({})
        changed[place][decision.id] = encode_decision(other)
        places.append((place, decision.id))
    found = [audited(Changed(played, {**rows})) for rows in changed]
    for report, rows in zip(found, changed, strict=True):
        assert not report.clean
        assert {each.id for each in report.kept} == rows.keys()
    return [[each for each in found[place].kept if each.id == name] for place, name in places]


@pytest.mark.parametrize(
    "number", range(len(CHANGES)), ids=[f"{kind}-{what}" for _, _, kind, what in CHANGES]
)
def test_a_row_that_was_changed_is_named(told: list[list[Discrepancy]], number: int) -> None:
    _, _, kind, what = CHANGES[number]
    assert any(each.kind == kind and what in each.what for each in told[number]), told[number]


def flipped(at: int) -> Callable[[bytes], bytes]:
    """One byte has another last bit."""

    def flip(payload: bytes) -> bytes:
        place = at % len(payload)
        return payload[:place] + bytes([payload[place] ^ 1]) + payload[place + 1 :]

    return flip


def test_rows_that_are_no_decision_or_fail_their_checksum_are_named(played: MemoryStore) -> None:
    """Also where nothing is derived from what was changed, as from the hash of the unit."""
    changes: list[Callable[[bytes], bytes]] = [
        *map(flipped, [0, 2, 3, 7, 8, 12, 40, -20, -1]),
        lambda payload: payload[:5],
        lambda payload: payload[:-1],
    ]
    rows = {
        decision.id: change(encode_decision(msgspec.structs.replace(decision, unit="unit")))
        for decision, change in zip(decisions_of(played), changes, strict=False)
    }
    found = audited(Changed(played, {**rows}))
    assert [(each.kind, each.id) for each in found.kept] == [("unreadable", name) for name in rows]
    assert not found.clean
