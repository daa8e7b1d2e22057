"""Keys while a service runs: the file changes, is broken, comes back; rates; keys that are lent."""

import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest

from service.errors import ConfigurationError
from service.security.keys import mint, now
from tests.support.clock import VirtualClock
from tests.support.keys import Keys
from tests.support.service import Wire, expect_problem, serving


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    made = Keys(tmp_path / "keys.json")
    made.add("ops", "admin", "metrics", "select", "reward")
    return made


@pytest.fixture
def wire(keys: Keys, monkeypatch: pytest.MonkeyPatch) -> Iterator[Wire]:
    monkeypatch.setattr("service.security.access.LOOK_SECONDS", 0.0)
    with serving(keys=keys.path) as wire:
        yield wire


def status(wire: Wire, keys: Keys, name: str) -> int:
    return wire.get("/experiments", headers=keys.headers(name)).status_code


def test_a_key_that_is_added_or_revoked_counts_without_a_restart(wire: Wire, keys: Keys) -> None:
    keys.add("new", "admin")
    assert status(wire, keys, "new") == 200
    keys.change("new", revoked=now().isoformat())
    assert status(wire, keys, "new") == 401
    assert status(wire, keys, "ops") == 200


def test_the_file_is_looked_at_once_a_second_at_most(
    keys: Keys, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = []
    with serving(keys=keys.path, clock=clock) as wire:
        find = os.stat
        monkeypatch.setattr(
            "service.security.access.os.stat", lambda path: looks.append(path) or find(path)
        )
        for _ in range(10):
            assert status(wire, keys, "ops") == 200
            clock.skip(0.25)
    assert len(looks) == 2


@pytest.mark.parametrize("broken", ["", "{", '{"keys": [{}]}', None])
def test_a_file_that_breaks_leaves_the_keys_of_before(
    wire: Wire, keys: Keys, caplog: pytest.LogCaptureFixture, broken: str | None
) -> None:
    def stale() -> str:
        text = wire.get("/metrics", headers=keys.headers("ops")).text
        [line] = [line for line in text.splitlines() if line.startswith("forage_keys_stale ")]
        return line.rpartition(" ")[2]

    whole = keys.path.read_text()
    if broken is None:
        keys.path.unlink()
    else:
        keys.path.write_text(broken)
    for _ in range(3):
        assert status(wire, keys, "ops") == 200
    assert stale() == "1.0"
    told = [record for record in caplog.records if "stay valid" in record.message]
    assert len(told) == 1  # not at each request
    keys.path.write_text(whole)
    assert status(wire, keys, "ops") == 200
    assert stale() == "0.0"


def test_a_service_starts_on_a_whole_file_and_warns_where_others_may_write_it(
    keys: Keys, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys.path.chmod(0o666)
    with serving(keys=keys.path):
        assert "others may write it" in caplog.text
    path = tmp_path / "none.json"
    for fault in ("forage keys add", "is not JSON"):
        with pytest.raises(ConfigurationError, match=fault), serving(keys=path):
            pass
        path.write_text("nonsense")


def test_a_key_expires_at_its_time(wire: Wire, keys: Keys) -> None:
    at = datetime.fromtimestamp(wire.clock.time() + 60.0, UTC)
    keys.add("brief", "admin", expires=at)
    for seconds, expected in ((59.0, 200), (1.0, 401), (1.0, 401)):
        wire.clock.skip(seconds)
        assert status(wire, keys, "brief") == expected


def test_a_key_that_is_lent_lives_in_this_process_alone(wire: Wire, keys: Keys) -> None:
    before = keys.path.read_bytes()
    _, key = mint()
    wire.services.access.accept(key, "trainer", "admin")
    lent = {"X-API-Key": key}
    assert wire.get("/experiments", headers=lent).status_code == 200
    assert wire.post("/select", {"context": {}}, headers=lent).status_code == 403
    keys.add("new", "admin")  # the file is read again
    assert status(wire, keys, "new") == 200
    assert wire.get("/experiments", headers=lent).status_code == 200
    assert keys.path.read_bytes() != before
    with serving(keys=keys.path) as other:
        assert other.get("/experiments", headers=lent).status_code == 401


# -- rates ---------------------------------------------------------------------------------------


def test_above_its_rate_a_key_is_told_when_to_come_again(wire: Wire, keys: Keys) -> None:
    keys.add("slow", "admin", rate="3/minute")
    keys.add("also slow", "admin", rate="3/minute")
    statuses = [status(wire, keys, "slow") for _ in range(5)]
    assert statuses == [200, 200, 200, 429, 429]
    answer = wire.get("/experiments", headers=keys.headers("slow"))
    problem = expect_problem(answer, 429)
    assert "the rate of this key is 3/minute" in problem["detail"]
    assert 1 <= int(answer.headers["retry-after"]) <= 60
    assert status(wire, keys, "also slow") == 200  # each has its own
    assert status(wire, keys, "ops") == 200
    text = wire.get("/metrics", headers=keys.headers("ops")).text
    assert 'forage_refused_total{reason="rate"} 3.0' in text


def test_a_batch_counts_as_what_is_in_it(wire: Wire, keys: Keys) -> None:
    batch = {"requests": [{"context": {"persona": "cat"}}] * 4}
    keys.add("slow", "select", rate="10/hour")
    keys.add("slower", "select", rate="3/hour")

    def asked(name: str) -> httpx.Response:
        return wire.post("/select/batch", batch, headers=keys.headers(name))

    assert [asked("slow").status_code for _ in range(3)] == [200, 200, 429]
    assert "one request exceeds the whole rate" in expect_problem(asked("slower"), 429)["detail"]


def test_a_refused_request_costs_nothing_of_the_rate(wire: Wire, keys: Keys) -> None:
    keys.add("slow", "admin", rate="2/hour")
    for _ in range(5):
        assert wire.get("/metrics", headers=keys.headers("slow")).status_code == 403
    assert [status(wire, keys, "slow") for _ in range(3)] == [200, 200, 429]
