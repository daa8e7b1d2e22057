"""forage repair: an embedded log with an event that no Forage can read, until it audits clean."""

import asyncio
import json
from pathlib import Path
from zlib import crc32

import httpx
import pytest

from service.log.stores import open_store
from service.log.stores.base import Append, Appended
from service.state.events import SCHEMA
from tests.cli.forage import expect_refusal, forage, serving


def add_unreadable(folder: Path) -> int:
    """What two rewards of 1e308 came to under a sum; its position."""
    settled = [{"arm": "4", "reward": None, "row": ["", [0, 0]], "inline": False}]
    event = {"type": "Rewarded", "at": 1.0, "decision": "d", "policy": "linucb"}
    body = json.dumps({**event, "schema_version": 1, "settled": settled}).encode()
    record = b'{"schema":%d,"event":%b,"crc":%d}' % (SCHEMA, body, crc32(body, SCHEMA))

    async def append() -> int:
        store = open_store(f"sqlite:///{folder}/forage.db")
        await store.open()
        (appended,) = await store.commit([Append("zooplus", record, {"bad": ""})])
        await store.close()
        assert isinstance(appended, Appended)
        return appended.position

    return asyncio.run(append())


@pytest.mark.process
def test_a_log_that_cannot_be_folded_is_served_again_and_audits_clean(tmp_path: Path) -> None:
    with serving(tmp_path) as running:
        for _ in range(3):
            running.visit()
        assert running.stop() == 0
    position = add_unreadable(tmp_path)

    shown = forage("repair", folder=tmp_path)
    assert shown.returncode == 1
    assert f"zooplus: the event at position {position} cannot be folded" in shown.stdout
    assert '"reward": null' in shown.stdout
    command = ["repair", "zooplus", "--skip", str(position)]
    assert f"forage {' '.join(command)}" in shown.stdout
    unserved = forage(*command, "--url", "http://127.0.0.1:9", folder=tmp_path)
    assert "start the service" in expect_refusal(unserved)

    with serving(tmp_path) as running:
        question = {"context": {"persona": "cat_connoisseur"}}
        answer = running.client.post("/select", json=question)
        assert answer.status_code == httpx.codes.SERVICE_UNAVAILABLE
        skipped = forage(*command, "--url", running.url, folder=tmp_path)
        assert (skipped.returncode, skipped.stderr) == (0, "")
        again = forage(*command, "--url", running.url, folder=tmp_path)
        assert "answers 409" in expect_refusal(again)
        running.visit()
        assert running.get("/policies/linucb")["rewards"] == 4
        assert running.stop() == 0

    assert forage("repair", folder=tmp_path).stdout == "every event can be folded\n"
    audited = forage("audit", folder=tmp_path)
    assert audited.returncode == 0, audited.stdout
    evaluated = forage(
        "evaluate", "--experiment", "zooplus", "--policies", "linucb", folder=tmp_path
    )
    assert "position" not in evaluated.stderr, evaluated.stderr
    exported = forage("export", "--to", str(tmp_path / "archive"), folder=tmp_path)
    assert exported.returncode == 0, exported.stderr
    copied = forage("backup", "--to", str(tmp_path / "copy.db"), folder=tmp_path)
    assert copied.returncode == 0, copied.stderr
    restored = forage("audit", "--store", f"sqlite:///{tmp_path}/copy.db", folder=tmp_path)
    assert restored.returncode == 0, restored.stdout
