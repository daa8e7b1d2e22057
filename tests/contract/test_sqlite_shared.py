"""What only processes that share a file of SQLite can show: their locks, turns and deaths."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from service.errors import ConfigurationError, StoreLocked, StoreReplaced
from service.log.stores import Store, open_store
from service.log.stores.sqlite_shared import Turns, expect_local
from tests.support.stores import Backend, Scenario, event, expect_dense, marks_of
from tests.support.two_processes import TwoProcesses

TAKES_THE_TURN = """
import sys, time
from pathlib import Path
from service.log.stores.sqlite_shared import Turns

turns = Turns(Path(sys.argv[1]))
turns.open()
with turns.take():
    print("taken", flush=True)
    time.sleep(60)
"""

WRITES = """
import asyncio, sys
from itertools import count
from service.log.stores import open_store
from service.log.stores.base import Append, Appended

async def main(url, turn, who):
    store = open_store(url, shared=True)
    await store.open()
    for n in count():
        own = Append("zoo", b"e", {f"{who}/{n}": "1"})
        common = Append("zoo", b"e", {f"{turn}/{n}": who})
        _, result = await store.commit([own, common])
        print(n, isinstance(result, Appended), flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


def url(path: Path) -> str:
    return f"sqlite:///{path}"


def shared(path: Path) -> Store:
    return open_store(url(path), shared=True)


def run(path: Path, scenario: Scenario) -> None:
    Backend(lambda: shared(path)).run(scenario)


@contextmanager
def process(code: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", code, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        try:
            yield child
        finally:
            child.kill()


def lines_of(child: subprocess.Popen[str]) -> Iterator[str]:
    assert child.stdout is not None
    return iter(child.stdout)


def test_workers_share_a_file_and_a_lone_service_neither_joins_nor_is_joined(path: Path) -> None:
    async def main() -> None:
        first, second, lone = shared(path), shared(path), open_store(url(path))
        await first.open()
        await second.open()
        with pytest.raises(StoreLocked, match="served by another forage process"):
            await lone.open()
        await first.close()
        await second.close()
        await lone.open()
        with pytest.raises(StoreLocked, match="served by another forage process"):
            await first.open()
        await lone.close()

    asyncio.run(main())


def test_a_commit_waits_for_its_turn(path: Path) -> None:
    async def scenario(store: Store) -> None:
        turns = Turns(path)
        turns.open()
        with turns.take():
            commit = asyncio.create_task(store.commit([event("a")]))
            probe = asyncio.create_task(store.marks("zoo", ["a"]))
            assert await probe == {}  # readers have no turns
            await asyncio.sleep(0.05)
            assert not commit.done()
        await commit
        turns.close()
        await expect_dense(store, 1)

    run(path, scenario)


@pytest.mark.process
def test_a_process_that_is_killed_passes_its_turn_on(path: Path) -> None:
    async def scenario(store: Store) -> None:
        with process(TAKES_THE_TURN, str(path)) as child:
            assert await asyncio.to_thread(next, lines_of(child)) == "taken\n"
            commit = asyncio.create_task(store.commit([event("a")]))
            await asyncio.sleep(0.05)
            assert not commit.done()
            child.kill()
            await asyncio.wait_for(commit, 30)
        await expect_dense(store, 1)

    run(path, scenario)


@pytest.mark.process
def test_processes_that_are_killed_lose_nothing_and_count_each_mark_once(path: Path) -> None:
    said = dict[str, list[str]]()
    for turn in range(4):
        names = f"{turn}a", f"{turn}b"
        with (
            process(WRITES, url(path), str(turn), names[0]) as a,
            process(WRITES, url(path), str(turn), names[1]) as b,
        ):
            written = [[next(lines_of(each)) for _ in range(20)] for each in (a, b)]
            a.kill()
            written[0] += lines_of(a)
            written[1] += [next(lines_of(b)) for _ in range(20)]
            b.kill()
            written[1] += lines_of(b)
        said |= dict(zip(names, written, strict=True))

    async def scenario(store: Store) -> None:
        found = await marks_of(store, "zoo")
        for name, lines in said.items():
            for line in lines:
                number, won = line.split()
                assert f"{name}/{number}" in found
                assert (found[f"{name[0]}/{number}"].value == name) is (won == "True")
        events = len({mark.position for mark in found.values()})
        assert events == len(found)
        assert [each.position for each in await store.read("zoo", 0, 100_000)] == [
            *range(1, events + 1)
        ]

    run(path, scenario)


def test_every_process_refuses_files_that_are_others_now(path: Path, sibling: Path) -> None:
    async def scenario() -> None:
        store = TwoProcesses(url(path), sibling)
        await store.open()
        for name in "abcd":
            await store.commit([event(name)])
        await store.scrub()  # one of them empties the write-ahead log of both
        for name in "efgh":
            await store.commit([event(name)])
        for file in path.parent.glob(f"{path.name}*"):
            file.unlink()
        for _ in range(4):
            with pytest.raises(StoreReplaced, match="was deleted or moved"):
                await store.commit([event("x")])
        await store.close()

    asyncio.run(scenario())


def test_a_list_that_was_cut_off_begins_anew(path: Path) -> None:
    async def scenario(store: Store) -> None:
        await store.present("a", "serving", 60.0)
        turn = path.with_name(f"{path.name}.turn")
        text = turn.read_text()
        assert json.loads(text).keys() == {"a"}
        turn.write_text(text[:-3])
        assert await store.present("b", "serving", 60.0) == {"b": "serving"}

    run(path, scenario)


MOUNTS = """\
22 1 8:1 / / rw,relatime shared:1 - {root} /dev/sda1 rw
30 22 0:26 / /mnt/of\\040all rw shared:9 - {below} server:/all rw
"""


@pytest.mark.parametrize(
    "kind", ["ext4", "xfs", "btrfs", "overlay", "tmpfs", "fuse.fuse-overlayfs"]
)
def test_a_local_file_system_is_taken(tmp_path: Path, kind: str) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(MOUNTS.format(root="nfs4", below=kind))
    expect_local(Path("/mnt/of all/forage.db"), mounts)
    expect_local(Path("/mnt/of all/forage.db"), tmp_path / "none")


@pytest.mark.parametrize(
    "kind", ["nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "fuse.glusterfs", "9p"]
)
def test_a_network_file_system_is_refused(tmp_path: Path, kind: str) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(MOUNTS.format(root="ext4", below=kind))
    expect_local(Path("/mnt/other/forage.db"), mounts)
    with pytest.raises(ConfigurationError, match=f"a file system of type {kind}, where"):
        expect_local(Path("/mnt/of all/forage.db"), mounts)
