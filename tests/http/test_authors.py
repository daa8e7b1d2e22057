"""Who changed what: every change that somebody makes has the name of their key, in the log and in a
line of the process."""

import logging
from pathlib import Path

import pytest

from service.log.reading import SILENT
from service.log.stores.memory import MemoryStore
from service.offline.archive.columns import event_rows
from service.offline.copying import copy_experiment
from service.state.events import Change, Imported, Skipped, decode_event
from tests.http.test_quarantine import add_unreadable
from tests.support.clock import run_virtual
from tests.support.keys import Keys
from tests.support.service import Json, Wire, serving

VISIT = {"id": "1", "at": 1_600_000_000, "context": {"persona": "cat"}, "arm": "mouse"}
VISIT |= {"propensity": 0.5, "reward": 1.0}
TOY = {"category": "toy"}


@pytest.fixture
def wire(signed: Wire) -> Wire:
    return signed


def changes(store: MemoryStore) -> list[Change]:
    records = run_virtual(store.read("shop", 0, 1_000))
    events = [decode_event(record.payload) for record in records]
    return [event for event in events if isinstance(event, Change)]


def change_all(wire: Wire) -> None:
    """Make each change that a route makes, in the order of CHANGES."""
    policies = "/experiments/shop/policies"
    wire.redefine()
    wire.put(f"{policies}/linucb/share", {"share": 0.5})
    wire.post(f"{policies}/linucb/reset")
    wire.post("/experiments/shop/arms", {"arms": {"a": TOY, "b": TOY}})
    wire.put("/experiments/shop/arms/c", {"features": TOY})
    wire.delete("/experiments/shop/arms/c")
    wire.post("/experiments/shop/import", {"policy": "linucb", "visits": [VISIT]})
    wire.select(unit="ann")
    wire.delete("/units/ann")
    wire.delete("/experiments/shop")


CHANGES = [
    "ExperimentDefined",
    "TrafficChanged",
    "PolicyReset",
    *("ArmUpserted",) * 3,
    "ArmRemoved",
    "Imported",
    "Erased",
    "ExperimentDeleted",
]

LINES = """defined, revision 2
share of linucb set to 0.5, revision 3
policy linucb reset, revision 4
arms set: 'a', 'b'
arms set: 'c'
arm 'c' retired
1 visits imported for linucb
1 decisions and 0 events erased; replays begin at position 11
deleted, revision 5""".splitlines()


def test_every_change_has_the_name_of_the_key_and_its_time(
    wire: Wire, store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    before = wire.clock.time()
    with caplog.at_level(logging.INFO, "forage.changes"):
        change_all(wire)
    first, *found = changes(store)
    assert first.by == "forage serve"  # which defines the experiments of its files
    assert [type(event).__name__ for event in found] == CHANGES
    assert {event.by for event in found} == {"shop team"}
    assert all(before <= event.at <= wire.clock.time() for event in found)
    lines = [record.getMessage() for record in caplog.records if record.name == "forage.changes"]
    assert lines == [f"experiment shop: {line}, by shop team" for line in LINES]


def test_where_keys_are_off_a_change_has_no_name(caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore()
    with serving(store) as wire, caplog.at_level(logging.INFO, "forage.changes"):
        wire.redefine()
    assert [event.by for event in changes(store)] == ["forage serve", ""]
    assert "experiment shop: defined, revision 2, by a caller without a key" in caplog.text


def test_the_import_of_what_is_there_is_no_change(wire: Wire, store: MemoryStore) -> None:
    body: Json = {"policy": "linucb", "visits": [VISIT] * 2}
    for _ in range(2):
        wire.post("/experiments/shop/import", body)
    assert [event.visits for event in changes(store) if isinstance(event, Imported)] == [1]


def test_copies_and_archives_have_it_too(wire: Wire, store: MemoryStore) -> None:
    change_all(wire)
    copy = MemoryStore()
    wire.run(copy_experiment(store, copy, "shop", SILENT))
    assert changes(copy) == changes(store)
    rows = [row for at, event in enumerate(changes(store)) for row in event_rows(at, event)]
    assert all('"by":"shop team"' in row["body"] for row in rows[1:])


def test_a_skip_has_the_name_of_who_asked_for_it(store: MemoryStore, tmp_path: Path) -> None:
    with serving(store):
        pass
    position, keys = add_unreadable(store), Keys(tmp_path / "keys.json")
    keys.add("on call", "admin")
    with serving(store, keys=keys.path) as wire:
        wire.client.headers.update(keys.headers("on call"))
        wire.post("/experiments/shop/skips", {"position": position})
    [record] = run_virtual(store.read("shop", position, 1))
    skipped = decode_event(record.payload)
    assert isinstance(skipped, Skipped)
    assert (skipped.by, skipped.position) == ("on call", position)
