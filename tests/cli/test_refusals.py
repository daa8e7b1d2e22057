"""A command that cannot do what it is asked says so in one line and changes nothing."""

from pathlib import Path

import pytest

from tests.cli.forage import forage, serving

UNREADABLE = "no other process can read"
KEPT = "exists, and nothing is written over"
COMMANDS = {
    "audit": "audit",
    "evaluate": "evaluate --policies random",
    "export": "export --to archive",
    "backup": "backup --to b.db",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a stopped service, with a backup and with files that are no store."""
    folder = tmp_path_factory.mktemp("refusals")
    with serving(folder) as running:
        running.visit("random")
        assert running.stop() == 0
    assert forage("backup", "--to", "backup.db", folder=folder).returncode == 0
    (folder / "old.db-wal").write_bytes(b"of a database that is gone" * 1_000)
    (folder / "text.db").write_bytes(b"not a database" * 100)
    (folder / "file").write_text("")
    (folder / "empty.toml").write_text('name = "zooplus"\n')
    (folder / "wrong.toml").write_text('[policies.idea]\nkind = "linucb"\nalpha = "much"\n')
    return folder


def content(folder: Path) -> dict[str, bytes]:
    kept = (path for path in folder.iterdir() if path.suffix not in (".lock", ".db-shm"))
    return {path.name: path.read_bytes() for path in kept if path.is_file()}


@pytest.mark.process
@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_a_store_that_cannot_be_read_is_named(folder: Path, command: str) -> None:
    for store, said in {
        "memory://": UNREADABLE,
        "sqlite:///nothing.db": "does not exist yet",
        "mysql://host/db": "unknown scheme",
        "sqlite:///text.db": "not an SQLite database",
    }.items():
        expect_one_line(folder, f"{command} --store {store}", said)


@pytest.mark.process
@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("audit --experiment nowhere", "'nowhere'; there are: 'zooplus'"),
        ("audit --json nowhere/found.json", "No such file or directory"),
        ("backup --to backup.db", f"backup.db {KEPT}"),
        ("backup --to old.db", f"old.db-wal {KEPT}"),
        ("backup --to nowhere/b.db", "nowhere/b.db does not exist"),
        ("backup --to b.db --store redis://h", "Redis and PostgreSQL make their own"),
        ("restore --from no.db", "no.db does not exist"),
        ("restore --from old.db-wal --store sqlite:///n.db", "not an SQLite"),
        ("restore --from backup.db", f"forage.db {KEPT}"),
        ("restore --from backup.db --store memory://", "backups are of sqlite"),
        ("restore --from backup.db --store redis://h", "Redis and PostgreSQL make their own"),
        ("copy --from sqlite:///no.db --to sqlite:///n.db", "no.db does not exist"),
        ("copy --from memory:// --to sqlite:///n.db", "ends with its process"),
        ("copy --from sqlite:///forage.db --to redis://127.0.0.1:1", "127.0.0.1:1"),
        ("evaluate --experiment nowhere", "'nowhere'; there are: 'zooplus'"),
        ("evaluate --policies nobody", "no policy 'nobody'; there are: "),
        ("evaluate --definition nowhere.toml", "No such file or directory"),
        ("evaluate --definition empty.toml", "there is no policy in it"),
        ("evaluate --definition wrong.toml", "policies.idea"),
        ("evaluate --policies random --json nowhere/found.json", "No such file or directory"),
        (
            "export --to archive --experiment nowhere",
            "'nowhere'; there are: 'zooplus'",
        ),
        ("export --to file/archive", "Not a directory"),
        ("rebuild --without key=a,b=c", "no such decision"),
        ("repair --skip 3", "name the experiment"),
    ],
)
def test_a_refusal_is_one_line_and_changes_nothing(folder: Path, command: str, said: str) -> None:
    expect_one_line(folder, command, said)


def expect_one_line(folder: Path, command: str, said: str) -> None:
    before = content(folder)
    ended = forage(*command.split(), folder=folder)
    assert ended.returncode == 1
    line = ended.stderr.splitlines()[-1]
    assert line.startswith("forage: ")
    assert said in line
    assert content(folder) == before


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("", "--help)"),
        ("sell", "--help)"),
        ("keys", "--help)"),
        ("serv", "No such command 'serv'. Did you mean 'serve'?"),
        ("xyz", "No such command 'xyz'. (see forage --help)"),
        ("serve --colour", "--help)"),
        ("serve --port x", "--help)"),
        ("serve --prot 1", "No such option: --prot (Possible options: --host, --port, --role)"),
        ("check a.toml --jason", "--json"),
        ("export --to", "--help)"),
        ("evaluate --since yesterday", "--since"),
        ("evaluate --decisions 0", "--decisions"),
        ("evaluate --confidence 1", "--confidence"),
        ("evaluate --policies ,", "--policies"),
        ("rebuild --without page", "write it as key=..., unit=..., from=..., to=..."),
        ("rebuild --without key=", "write it as key=..."),
        ("rebuild --without key=a,key=b", "key is given twice"),
        ("rebuild --without from=yesterday", "write times as 2026-01-31"),
    ],
)
def test_a_wrong_command_line_ends_with_2(command: str, said: str) -> None:
    ended = forage(*command.split())
    assert ended.returncode == 2
    assert said in " ".join(ended.stderr.split())
