"""forage rebuild: beside a service, to files and into it."""

from pathlib import Path

import pytest

from tests.cli.forage import expect_refusal, forage, serving, started
from tests.support.keys import Keys

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a stopped service. A page asked for half of its decisions; a head without them
    was written to a file, then activated, while it served."""
    folder = tmp_path_factory.mktemp("rebuilt")
    keys = Keys(folder / "keys.json")
    for name in ("backend", "page"):
        keys.add(name, "select", "reward")
    admin = keys.add("admin", "admin")
    with serving(folder, FORAGE_KEYS=str(keys.path), FORAGE_KEY=admin) as running:
        for number in range(20):
            name = ["backend", "page"][number % 2]
            body = {"context": {"persona": "new_puppy_parent"}, "policy": "linucb"}
            headers = keys.headers(name)
            answer = running.client.post("/select", json=body, headers=headers).json()
            told = {"decision_id": answer["decision_id"], "reward": 1.0 if name == "page" else 0.0}
            running.client.post("/reward", json=told, headers=headers).raise_for_status()
        command = ("rebuild", "--without", "key=page", "--policies", "linucb")
        ended = started(*command, folder=folder)
        assert (ended.returncode, ended.stderr) == (0, ""), ended.stderr
        head, row = ended.stdout.splitlines()
        assert head.split() == ["policy", "version", "learned", "left", "out"]
        assert row.split() == ["linucb", "1", "10", "10"]
        path = "/policies/linucb"
        before = running.client.get(path, headers=keys.headers("admin")).json()
        assert (before["version"], before["head"]["effective_count"]) == (0, 20)
        more = {"FORAGE_KEY": admin}
        served = started(*command, "--activate", "--url", running.url, folder=folder, **more)
        assert (served.returncode, served.stderr) == (0, ""), served.stderr
        assert served.stdout.endswith("linucb/1 serves\n")
        after = running.client.get(path, headers=keys.headers("admin")).json()
        assert (after["version"], after["head"]["effective_count"]) == (1, 10)
        assert running.stop() == 0
    return folder


def test_the_version_is_written_to_a_file(folder: Path) -> None:
    assert [path.name for path in (folder / "rebuilt").iterdir()] == ["zooplus.linucb.1.version"]


def test_the_log_audits_clean_after_a_rebuilt_version_serves(folder: Path) -> None:
    assert forage("audit", folder=folder).returncode == 0


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("page", "write it as key=..., unit=..., from=..., to=..."),
        ("key=", "write it as key=..."),
        ("key=a,key=b", "key is given twice"),
        ("from=yesterday", "write times as 2026-01-31"),
    ],
)
def test_what_is_not_understood_is_refused(what: str, message: str) -> None:
    ended = forage("rebuild", "--without", what)
    assert ended.returncode == 2
    assert message in " ".join(ended.stderr.split())


def test_nothing_that_is_named_is_no_rebuild(folder: Path) -> None:
    line = expect_refusal(forage("rebuild", "--without", "key=a,b=c", folder=folder))
    assert "no such decision" in line
