"""forage doctor: what it finds of host, secrets, store and service, and what it says to do."""

import json
import os
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest

from benchmarks.support.redis_server import RedisServer
from service.cli.program import main
from service.maintenance.doctor import Check, text
from service.maintenance.doctor.service import _clock, _metrics, examine_experiment
from service.maintenance.doctor.sqlite import _disk, file_system, tail
from service.security.keys import Key, changing, digest_of, mint
from service.settings import Settings
from tests.cli.forage import Serving, serving, started


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
    """Exit status, and what was found by name: the worst of each."""
    status = main(["doctor", "--json", *arguments])
    output = capsys.readouterr()
    assert output.err == ""
    checks = [Check(**each) for each in json.loads(output.out)["checks"]]
    assert all(bool(each.advice) == (each.level != "ok") for each in checks), checks
    assert (status == 1) == any(each.level == "fault" for each in checks)
    order = ["ok", "warning", "fault"]
    found: dict[str, Check] = {}
    for each in sorted(checks, key=lambda each: order.index(each.level)):
        found[each.name] = each
    return status, found


@pytest.mark.process
def test_a_running_service_is_healthy(zoo: Serving, capsys: pytest.CaptureFixture[str]) -> None:
    status, found = examined("--store", store_of(zoo), "--url", zoo.url, capsys=capsys)
    assert status == 0
    assert all(each.level != "fault" for each in found.values())
    assert "power loss" in found["durability"].message
    assert f"held by process {zoo.pid}" in found["lock"].message
    assert "mode 0600" in found["database"].message
    assert "1 decisions, 1 rewards" in found["experiment zooplus"].message
    assert {"clock", "ready", "service", "disk", "file system"} <= found.keys()


@pytest.mark.process
def test_a_service_that_does_not_answer_for_the_host_says_which_setting(
    zoo: Serving, capsys: pytest.CaptureFixture[str]
) -> None:
    url = zoo.url.replace("127.0.0.1", "0.0.0.0")  # noqa: S104 (to connect there is loopback)
    _, found = examined("--store", store_of(zoo), "--url", url, capsys=capsys)
    assert "FORAGE_ALLOWED_HOSTS" in (found["experiments"].advice or "")
    assert found["service"].level == "ok"


@pytest.mark.process
def test_it_changes_nothing(zoo: Serving, capsys: pytest.CaptureFixture[str]) -> None:
    folder = Path(f"/proc/{zoo.pid}/cwd").resolve()
    files = ("forage.db", "forage.db.lock")
    before = [(folder / name).read_bytes() for name in files]
    examined("--store", store_of(zoo), "--url", zoo.url, capsys=capsys)
    assert [(folder / name).read_bytes() for name in files] == before


def test_what_it_says_is_a_line_each_and_what_to_do() -> None:
    told = text([Check("disk", "ok", "fine"), Check("clock", "fault", "off", "run NTP")])
    assert told.splitlines() == [
        "ok       disk   fine",
        "fault    clock  off",
        "                -> run NTP",
        "1 ok, 0 to look at, 1 to mend",
    ]
    assert "\033[31m" in text([Check("clock", "fault", "off")], colour=True)


@pytest.mark.process
def test_without_a_terminal_it_has_no_colour(zoo: Serving) -> None:
    ended = started("doctor", "--store", store_of(zoo), "--url", zoo.url)
    assert ended.returncode == 0
    assert "\033" not in ended.stdout + ended.stderr
    assert re.search(r"\d+ ok, \d+ to look at, 0 to mend\n$", ended.stdout)


@pytest.mark.parametrize(
    ("store", "name", "said"),
    [
        ("sqlite:////nowhere/at/all/forage.db", "store", "does not exist"),
        ("sqlite://", "store", "names no file"),
        ("postgres://host/db", "store", "unknown scheme 'postgres'"),
        ("redis://:SECRETVALUE@127.0.0.1:1/0", "store", "cannot be reached"),
        ("redis://:SECRETVALUE@host:port/0", "store", "not a Redis URL"),
    ],
)
def test_a_store_that_is_not_there_is_a_fault(
    store: str, name: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, found = examined("--store", store, capsys=capsys)
    assert (status, found[name].level) == (1, "fault")
    assert said in found[name].message
    assert "SECRETVALUE" not in str(found)


def test_a_store_that_is_not_made_yet_is_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, found = examined("--store", f"sqlite:///{tmp_path}/forage.db", capsys=capsys)
    assert status == 0
    assert "not there yet" in found["store"].message
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def resting(tmp_path: Path) -> Path:
    """The folder of a store that nobody serves."""
    with serving(tmp_path) as running:
        running.visit()
        assert running.stop() == 0
    return tmp_path


@pytest.mark.process
def test_faults_of_the_files_are_found(resting: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = f"sqlite:///{resting}/forage.db"
    (resting / "forage.db").chmod(0o666)
    status, found = examined("--store", store, capsys=capsys)
    assert status == 1
    assert "free" in found["lock"].message
    assert found["database"].advice == f"chmod 600 {resting}/forage.db"
    with closing(sqlite3.connect(resting / "forage.db")) as db:
        db.execute("PRAGMA journal_mode = DELETE")
        db.execute("PRAGMA user_version = 99")
    _, found = examined("--store", store, capsys=capsys)
    assert "has layout 99, and this Forage reads layout 1" in found["store"].message


@pytest.mark.process
def test_a_journal_that_was_changed_is_told(
    resting: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(sqlite3.connect(resting / "forage.db")) as db:
        db.execute("PRAGMA journal_mode = DELETE")
    _, found = examined("--store", f"sqlite:///{resting}/forage.db", capsys=capsys)
    assert found["durability"].level == "warning"


def test_a_file_of_another_kind_is_a_fault(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "forage.db").write_bytes(b"no database" * 1_000)
    _, found = examined("--store", f"sqlite:///{tmp_path}/forage.db", capsys=capsys)
    assert "is not an SQLite database" in found["store"].message


@pytest.mark.parametrize(
    ("folder", "kind"),
    [("/", "ext4"), ("/data/shop", "nfs4"), ("/data/local", "xfs"), ("/with space", "tmpfs")],
)
def test_a_folder_has_the_file_system_of_its_mount(folder: str, kind: str, tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(
        "a / ext4 rw 0 0\nb /data nfs4 rw 0 0\nc /data/local xfs rw 0 0\n"
        "d /with\\040space tmpfs rw 0 0\nodd\n"
    )
    assert file_system(Path(folder), mounts) == kind
    assert file_system(Path(folder), tmp_path / "none") == ""


def test_a_disk_that_is_full_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for free, level in ((1 << 20, "fault"), (500 << 20, "warning"), (1 << 40, "ok")):
        usage = type("Usage", (), {"free": free, "total": 1 << 41, "used": 0})
        monkeypatch.setattr("shutil.disk_usage", lambda folder, usage=usage: usage)
        assert _disk(tmp_path).level == level


def test_a_long_tail_behind_the_snapshot_is_told() -> None:
    settings = Settings(snapshot_every_events=100)
    assert tail("shop", 600, 100, settings).level == "ok"
    assert tail("shop", 601, 100, settings).level == "warning"
    assert tail("shop", 501, None, settings).level == "warning"


# -- redis -----------------------------------------------------------------------------------------


def configured(server: RedisServer, **options: str | int) -> None:
    for name, value in options.items():
        server.command("CONFIG", "SET", name.replace("_", "-"), value)


@pytest.mark.process
def test_a_redis_as_it_should_be_is_ok(
    redis_server: RedisServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("service.maintenance.doctor.redis.SLOW_S", 10.0)  # the machine may be busy
    configured(redis_server, stream_node_max_entries=1)
    with serving(tmp_path, "--store", redis_server.url) as running:
        running.visit()
        _, found = examined("--store", redis_server.url, "--url", running.url, capsys=capsys)
        assert "1 live on this log" in found["services"].message
        assert running.stop() == 0
    assert [each for each in found.values() if each.level != "ok"] == []
    assert "power loss of the Redis host" in found["durability"].message
    assert "layout 1" in found["layout"].message
    assert "ms from that of Redis" in found["clock"].message or "agrees" in found["clock"].message
    _, found = examined("--store", redis_server.url, capsys=capsys)
    assert "events, 0 since the last snapshot" in found["experiment zooplus"].message


@pytest.mark.process
@pytest.mark.parametrize(
    ("options", "back", "name", "level", "said"),
    [
        ({"appendfsync": "everysec"}, {"appendfsync": "always"}, "durability", "warning", "2 s"),
        ({"appendonly": "no"}, {"appendonly": "yes"}, "durability", "fault", "lost when Redis"),
        (
            {"maxmemory_policy": "allkeys-lru"},
            {"maxmemory_policy": "noeviction"},
            "store",
            "fault",
            "would drop rewards",
        ),
        ({"maxmemory": 500_000}, {"maxmemory": 0}, "memory", "fault", "takes no rewards"),
        (
            {"stream_node_max_entries": 100},
            {"stream_node_max_entries": 1},
            "erasure",
            "warning",
            "is 100",
        ),
    ],
)
def test_a_redis_that_is_set_wrong_is_told_with_what_to_set(
    options: dict[str, Any],
    back: dict[str, Any],
    name: str,
    level: str,
    said: str,
    redis_server: RedisServer,
    capsys: pytest.CaptureFixture[str],
) -> None:
    configured(redis_server, **options)
    try:
        _, found = examined("--store", redis_server.url, capsys=capsys)
    finally:
        configured(redis_server, **back)
    assert (found[name].level, said in found[name].message) == (level, True), found[name]


@pytest.mark.process
def test_replicas_that_are_asked_for_and_missing_are_a_fault(
    redis_server: RedisServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORAGE_REDIS_REPLICAS", "1")
    _, found = examined("--store", redis_server.url, capsys=capsys)
    assert found["replicas"].level == "fault"


@pytest.mark.process
def test_another_layout_is_a_fault(
    redis_server: RedisServer, capsys: pytest.CaptureFixture[str]
) -> None:
    before = redis_server.command("GET", "forage:layout")
    redis_server.command("SET", "forage:layout", 99)
    try:
        _, found = examined("--store", redis_server.url, capsys=capsys)
    finally:
        redis_server.command("SET", "forage:layout", str(before or b"1", "ascii"))  # type: ignore[call-overload]
    assert found["layout"].level == "fault"


# -- secrets, host ---------------------------------------------------------------------------------


def test_keys_that_have_expired_or_will_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "keys.json"
    with changing(path) as keys:
        for name, year in (("old", 2001), ("fine", 3000)):
            name_of, secret = mint()
            keys.append(
                Key(
                    id=name_of,
                    name=name,
                    digest=digest_of(secret.encode()).hex(),
                    scopes=("select",),
                    created=datetime(2000, 1, 1, tzinfo=UTC),
                    expires=datetime(year, 1, 1, tzinfo=UTC),
                )
            )
    monkeypatch.setenv("FORAGE_KEYS", str(path))
    store = f"sqlite:///{tmp_path}/forage.db"
    main(["doctor", "--store", store])
    told = capsys.readouterr().out
    assert "expired: old" in told
    assert "no live key has the scope admin" in told
    assert "1 live of 2" in told
    path.chmod(0o666)
    status, found = examined("--store", store, capsys=capsys)
    assert (status, found["keys"].level) == (1, "fault")
    path.write_text("{}x")
    status, found = examined("--store", store, capsys=capsys)
    assert "not JSON" in found["keys"].message


def test_a_service_open_to_others_without_keys_is_a_fault(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORAGE_HOST", "0.0.0.0")  # noqa: S104
    store = f"sqlite:///{tmp_path}/forage.db"
    assert examined("--store", store, capsys=capsys)[1]["keys"].level == "fault"
    monkeypatch.setenv("FORAGE_OPEN", "true")
    assert examined("--store", store, capsys=capsys)[1]["keys"].level == "warning"


def test_threads_and_open_files_are_looked_at(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    monkeypatch.setattr("resource.getrlimit", lambda _: (256, 512))
    _, found = examined("--store", f"sqlite:///{tmp_path}/forage.db", capsys=capsys)
    assert "OMP_NUM_THREADS=8" in found["threads"].message
    assert "hard limit 512" in found["files"].advice
    assert os.environ["OPENBLAS_NUM_THREADS"] == "1"


# -- a service -------------------------------------------------------------------------------------


def test_a_service_that_is_not_there_is_a_fault(capsys: pytest.CaptureFixture[str]) -> None:
    for url in ("http://127.0.0.1:1", "nonsense"):
        status, found = examined("--store", "memory://", "--url", url, capsys=capsys)
        assert (status, found["service"].level) == (1, "fault")


def policy(**parts: Any) -> dict[str, Any]:
    return {
        "name": "p",
        "share": 1.0,
        "decisions": 5_000,
        "rewards": 5_000,
        "head": None,
        "training_due": False,
        "training_due_at": None,
        "trained_to": None,
        **parts,
    }


@pytest.mark.parametrize(
    ("parts", "level", "said"),
    [
        ({}, "ok", "5,000 decisions"),
        ({"rewards": 0}, "warning", "not one reward"),
        ({"training_due": True, "training_due_at": 4_900}, "ok", ""),
        ({"training_due": True, "training_due_at": 256}, "warning", "nobody trains"),
        ({"head": {"smallest_eigenvalue": 0.0}}, "fault", "smallest eigenvalue"),
        ({"head": {"smallest_eigenvalue": 1.0}}, "ok", ""),
    ],
)
def test_an_experiment_is_judged_by_its_policies(
    parts: dict[str, Any], level: str, said: str
) -> None:
    [found] = examine_experiment({"name": "shop", "arms": 3}, [policy(**parts)])
    assert (found.level, said in found.message) == (level, True), found


def test_an_experiment_without_arms_or_with_an_idle_policy_is_told() -> None:
    [found] = examine_experiment({"name": "shop", "arms": 0}, [policy()])
    assert "no arms" in found.message
    idle = policy(name="idle", decisions=0, rewards=0)
    [found] = examine_experiment({"name": "shop", "arms": 3}, [policy(), idle])
    assert "no decision of 5,000" in found.message


def test_a_clock_that_is_off_is_told() -> None:
    now = datetime.now(UTC).timestamp()
    for seconds, level in ((0, "ok"), (-1, "ok"), (60, "warning"), (-60, "warning")):
        date = format_datetime(datetime.fromtimestamp(now + seconds, UTC), usegmt=True)
        assert _clock(date, now, now).level == level


def test_what_was_lost_is_told() -> None:
    counted = 'forage_lost_decisions_total 3.0\nforage_damaged_snapshots_total{a="b"} 0.0\n'
    [found] = _metrics(counted, 1)
    assert "3 decisions were lost" in found.message
