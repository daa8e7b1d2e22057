"""The log says which key asked: its name, on every way in."""

import json
from collections.abc import Iterator

import pytest

from service.state.events import Decision, decode_decision
from tests.support.keys import Keys, standard
from tests.support.plug import Plug
from tests.support.service import Wire, serving

FAST = {"Content-Type": "application/json"}
BODY = {"context": {"persona": "cat"}}


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    return standard(tmp_path_factory.mktemp("keys") / "keys.json")


@pytest.fixture
def wire(keys: Keys) -> Iterator[Wire]:
    with serving(keys=keys.path) as wire:
        yield wire


def decisions(wire: Wire) -> list[Decision]:
    rows = wire.run(wire.services.store.decisions("shop", 0, 100))
    return [decode_decision(row.payload) for row in rows]


def test_every_route_logs_the_name_of_the_key(wire: Wire, keys: Keys) -> None:
    wire.post("/select", BODY, headers=keys.headers("bound"))
    wire.post("/select/batch", {"requests": [BODY, BODY]}, headers=keys.headers("select"))
    answer = Plug(wire).post("/select", json.dumps(BODY).encode(), FAST | keys.headers("bound"))
    assert answer.status_code == 200
    logged = decisions(wire)
    assert [row.key for row in logged] == ["bound", "select", "select", "bound"]
    told = wire.get(f"/decisions/{logged[0].id}", headers=keys.headers("admin")).json()
    assert told["key"] == "bound"


def test_the_key_itself_is_nowhere_in_the_log(wire: Wire, keys: Keys) -> None:
    wire.post("/select", BODY, headers=keys.headers("bound"))
    [row] = wire.run(wire.services.store.decisions("shop", 0, 100))
    assert keys.text("bound").encode() not in row.payload


def test_without_keys_the_log_has_no_word_of_one() -> None:
    with serving() as wire:
        wire.select()
        [row] = wire.run(wire.services.store.decisions("shop", 0, 100))
        assert b'"key"' not in row.payload
        assert decode_decision(row.payload).key == ""
