"""forage doctor: its checks of settings, store and service, and the remedies that it names."""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest

from service.cli.program import main
from service.offline.doctor import Check, check_clock, check_training, text
from service.security.keys import ApiKey, changing, digest_of, mint
from tests.cli.forage import Serving, serving
from tests.support.redis_server import RedisServer
from tests.support.service import SHOP


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with serving(tmp_path_factory.mktemp("zoo")) as running:
        running.visit()
        yield running


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis")).start()
    yield server
    server.kill()


def store_of(running: Serving) -> str:
    return f"sqlite:///{Path(f'/proc/{running.pid}/cwd').resolve()}/forage.db"


def examined(*arguments: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Check]]:
    """The exit status, and the worst check of each name."""
    status = main(["doctor", "--json", *arguments])
    output = capsys.readouterr()
    assert output.err == ""
    checks = [Check(**each) for each in json.loads(output.out)["checks"]]
    assert all(bool(each.advice) == (each.level != "ok") for each in checks), checks
    assert (status == 1) == any(each.level == "fault" for each in checks)
    order = ["ok", "warning", "fault"]
    return status, {
        each.name: each for each in sorted(checks, key=lambda each: order.index(each.level))
    }


def test_each_check_is_a_line_with_its_remedy_below() -> None:
    assert text(
        [Check("disk", "ok", "fine"), Check("clock", "fault", "off", "run NTP")]
    ).splitlines() == [
        "ok       disk   fine",
        "fault    clock  off",
        "                -> run NTP",
        "1 ok, 0 warning, 1 fault",
    ]


# -- settings --------------------------------------------------------------------------------------


def test_expired_and_missing_keys_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "keys.json"
    with changing(path) as keys:
        for name, year in (("old", 2001), ("fine", 3000)):
            key_id, secret = mint()
            keys.append(
                ApiKey(
                    id=key_id,
                    name=name,
                    digest=digest_of(secret.encode()).hex(),
                    scopes=("select",),
                    created=datetime(2000, 1, 1, tzinfo=UTC),
                    expires=datetime(year, 1, 1, tzinfo=UTC),
                )
            )
    monkeypatch.setenv("FORAGE_KEYS", str(path))
    assert main(["doctor", "--store", "memory://"]) == 0
    printed = capsys.readouterr().out
    assert "expired: old" in printed
    assert "no live key has the scope admin" in printed
    assert "1 live of 2" in printed
    path.write_text("{}x")
    status, found = examined("--store", "memory://", capsys=capsys)
    assert (status, found["keys"].level) == (1, "fault")
    assert "not JSON" in found["keys"].message


@pytest.mark.parametrize(
    ("asked", "settings", "check", "level"),
    [
        ("--store memory://", {"FORAGE_HOST": "0.0.0.0"}, "keys", "fault"),  # noqa: S104
        ("--store memory://", {"FORAGE_HOST": "::", "FORAGE_OPEN": "true"}, "keys", "warning"),
        ("--store memory:// --url http://127.0.0.1:1", {}, "service", "fault"),
        ("--store memory:// --url nonsense", {}, "service", "fault"),
        ("--store sqlite:////tmp/no-forage.db", {}, "store", "ok"),  # it is made by a start
    ],
)
def test_a_check_has_a_level(
    asked: str,
    settings: dict[str, str],
    check: str,
    level: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    assert examined(*asked.split(), capsys=capsys)[1][check].level == level


def test_an_experiment_file_with_a_fault_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.training.find_spec", lambda name: None)
    monkeypatch.setenv("FORAGE_EXPERIMENTS", str(SHOP))
    _, found = examined("--store", "memory://", capsys=capsys)
    assert "defines experiment 'shop'" in found["definitions"].message
    assert found["trainer"].level == "warning", "without torch, nets stay untrained"
    path = tmp_path / "shop.toml"
    path.write_text(SHOP.read_text().replace("share = 3.0", "shares = 3.0"))
    monkeypatch.setenv("FORAGE_EXPERIMENTS", str(path))
    status, found = examined("--store", "memory://", capsys=capsys)
    assert (status, found["definitions"].advice) == (1, f"forage check {path}")


# -- store -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("store", "said"),
    [
        ("sqlite:////nowhere/at/all/forage.db", "does not exist"),
        ("sqlite://", "names no file"),
        ("mysql://host/db", "unknown scheme 'mysql'"),
        ("redis://:SECRETVALUE@127.0.0.1:1/0", "127.0.0.1:1"),
        ("postgres://u:SECRETVALUE@127.0.0.1:1/db", "127.0.0.1:1"),
    ],
)
def test_a_store_that_cannot_open_is_a_fault(
    store: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, found = examined("--store", store, capsys=capsys)
    assert (status, found["store"].level) == (1, "fault")
    assert said in found["store"].message
    assert "SECRETVALUE" not in str(found)


@pytest.mark.process
def test_a_store_of_another_kind_or_layout_is_a_fault(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = f"sqlite:///{tmp_path}/forage.db"
    with serving(tmp_path) as running:
        assert running.stop() == 0
    with closing(sqlite3.connect(tmp_path / "forage.db")) as db:
        db.execute("PRAGMA user_version = 99")
    _, found = examined("--store", store, capsys=capsys)
    assert "has layout 99, and this Forage reads layout" in found["store"].message
    (tmp_path / "forage.db").write_bytes(b"no database" * 1_000)
    _, found = examined("--store", store, capsys=capsys)
    assert "is not an SQLite database" in found["store"].message


@pytest.mark.process
def test_redis_is_judged_by_its_settings(
    redis_server: RedisServer, capsys: pytest.CaptureFixture[str]
) -> None:
    def judged(name: str, value: str, back: str) -> dict[str, Check]:
        redis_server.command("CONFIG", "SET", name, value)
        try:
            return examined("--store", redis_server.url, capsys=capsys)[1]
        finally:
            redis_server.command("CONFIG", "SET", name, back)

    found = judged("appendfsync", "always", "always")
    assert {found[name].level for name in ("store", "durability", "clock")} == {"ok"}
    assert "from that of the store" in found["clock"].message
    assert judged("appendfsync", "everysec", "always")["durability"].level == "warning"
    assert judged("appendonly", "no", "yes")["durability"].level == "warning"
    evicting = judged("maxmemory-policy", "allkeys-lru", "noeviction")
    assert (evicting["store"].level, "would drop" in evicting["store"].message) == ("fault", True)
    assert judged("maxmemory", "500000", "0")["store"].level == "fault"


# -- a running service -----------------------------------------------------------------------------


@pytest.mark.process
def test_a_running_service_is_healthy(zoo: Serving, capsys: pytest.CaptureFixture[str]) -> None:
    folder = Path(f"/proc/{zoo.pid}/cwd").resolve()
    files = ("forage.db", "forage.db.lock")
    before = [(folder / name).read_bytes() for name in files]
    status, found = examined("--store", store_of(zoo), "--url", zoo.url, capsys=capsys)
    assert status == 0
    assert "power loss" in found["durability"].message
    assert found["experiment zooplus"].level == "ok"
    assert {"clock", "ready", "service", "token secret"} <= found.keys()
    assert [(folder / name).read_bytes() for name in files] == before


@pytest.mark.process
def test_a_service_that_refuses_the_host_names_the_setting(
    zoo: Serving, capsys: pytest.CaptureFixture[str]
) -> None:
    url = zoo.url.replace("127.0.0.1", "0.0.0.0")  # noqa: S104 (to connect there is loopback)
    _, found = examined("--store", store_of(zoo), "--url", url, capsys=capsys)
    assert "FORAGE_ALLOWED_HOSTS" in found["experiments"].advice
    assert found["service"].level == "ok"


@pytest.mark.parametrize(
    ("due", "due_at", "level"),
    [(False, None, "ok"), (False, 256, "ok"), (True, 4_900, "ok"), (True, 256, "warning")],
)
def test_overdue_training_is_named(due: bool, due_at: int | None, level: str) -> None:
    policy: dict[str, Any] = {
        "name": "p",
        "rewards": 5_000,
        "training_due": due,
        "training_due_at": due_at,
    }
    [found] = check_training("shop", [policy])
    assert found.level == level


def test_a_clock_that_is_off_is_named() -> None:
    now = datetime.now(UTC).timestamp()
    for seconds, level in ((0, "ok"), (-1, "ok"), (60, "warning"), (-60, "warning")):
        date = format_datetime(datetime.fromtimestamp(now + seconds, UTC), usegmt=True)
        assert check_clock(date, now, now).level == level
