"""forage rebuild: beside a service, to files and into it."""

from pathlib import Path

import pytest

from tests.cli.forage import forage, serving, started
from tests.support.keys import Keys

pytestmark = pytest.mark.process


def test_a_head_without_a_pages_decisions_is_written_to_a_file_and_served(tmp_path: Path) -> None:
    """A page asked for half of the decisions."""
    folder = tmp_path
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
    assert [path.name for path in (folder / "rebuilt").iterdir()] == ["zooplus.linucb.1.version"]
    assert forage("audit", folder=folder).returncode == 0
